"""The journal is on the disk when it says so, also after a failed sync and after a rename."""

import os
from types import SimpleNamespace

import pytest

from gridhand.agent.starter.attempts import Attempts as StartedAttempts
from gridhand.agent.starter.journal import Journal
from gridhand.agent.starter.starter import Starter

FIRST, SECOND = {"do": "epoch", "epoch": 1}, {"do": "epoch", "epoch": 2}


@pytest.fixture
def journal(tmp_path):
    made = Journal(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The system calls that make things durable, in order; those in `failing` fail once."""
    seen, failing = [], {}

    def watch(name, target):
        real = getattr(os, name)

        def call(*args, **more):
            seen.append(f"{name} {target(*args)}")
            if (error := failing.pop(seen[-1], None)) is not None:
                raise error
            return real(*args, **more)

        monkeypatch.setattr(os, name, call)

    def path_of(fd, *_):
        return os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))

    watch("fdatasync", path_of)
    watch("fsync", path_of)
    watch("rename", lambda old, new, **_: os.path.basename(new))
    return SimpleNamespace(seen=seen, failing=failing, folder=tmp_path.name)


def records(folder):
    read = Journal(str(folder))
    try:
        return list(read.read())
    finally:
        read.close()


def test_what_is_synced_is_written_and_synced_once(journal, calls, tmp_path):
    journal.append(FIRST)
    assert not journal.settled
    journal.sync()
    journal.sync()
    assert calls.seen == ["fdatasync journal"]
    assert journal.settled
    assert records(tmp_path) == [FIRST]


def test_a_rewrite_is_on_the_disk_before_its_name_and_its_name_before_it_returns(journal, calls):
    journal.append(FIRST)
    journal.rewrite([SECOND])
    assert calls.seen == ["fdatasync journal.new", "rename journal", f"fsync {calls.folder}"]
    journal.sync()
    assert len(calls.seen) == 3


def test_a_rename_that_may_be_undone_by_a_power_cut_is_an_error(journal, calls):
    calls.failing[f"fsync {calls.folder}"] = OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        journal.rewrite([SECOND])


def test_a_rewrite_that_fails_leaves_the_old_lines(journal, calls, tmp_path):
    journal.append(FIRST)
    journal.sync()
    calls.failing["fdatasync journal.new"] = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        journal.rewrite([SECOND])
    journal.append(SECOND)
    journal.sync()
    assert records(tmp_path) == [FIRST, SECOND]
    assert os.listdir(tmp_path) == ["journal"]


def test_lines_that_could_not_be_written_keep_waiting_in_order(journal, monkeypatch, tmp_path):
    journal.append(FIRST)
    journal.write()
    size = journal.size
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, text: real(fd, text[:5]))
    journal.append(SECOND)
    with pytest.raises(OSError, match="No space"):
        journal.write()
    assert (journal.size, os.path.getsize(tmp_path / "journal")) == (size, size)
    monkeypatch.undo()
    journal.append(FIRST)
    journal.sync()
    assert records(tmp_path) == [FIRST, SECOND, FIRST]


def test_half_a_line_at_the_end_does_not_spoil_the_next(journal, tmp_path):
    journal.append(FIRST)
    journal.sync()
    with open(tmp_path / "journal", "ab") as file:
        file.write(b'{"do":"epo')
    again = Journal(str(tmp_path))
    assert list(again.read()) == [FIRST]
    again.append(SECOND)
    again.sync()
    again.close()
    assert records(tmp_path) == [FIRST, SECOND]


def test_an_epoch_never_goes_back():
    attempts = StartedAttempts("boot")
    for epoch in (1, 5, 3):
        assert attempts.replay({"do": "epoch", "epoch": epoch})
    assert attempts.epoch == 5


# ---- the starter that writes it


class Attempts:
    known = ()

    def records(self):
        return [SECOND]


def starter_with(journal):
    made = object.__new__(Starter)
    made.journal, made.attempts, made.trouble = journal, Attempts(), ""
    made._compact_bytes, made._unpushed = 1 << 20, [SimpleNamespace(written=False)]
    return made


def test_after_a_failed_sync_everything_is_written_anew_before_it_counts(journal, calls, tmp_path):
    starter = starter_with(journal)
    journal.append(FIRST)
    calls.failing["fdatasync journal"] = OSError(5, "Input/output error")
    starter.commit()
    assert starter.trouble == "Input/output error"
    assert not starter._unpushed[0].written
    starter.commit()
    assert starter.trouble == ""
    assert starter._unpushed[0].written
    assert calls.seen == [
        "fdatasync journal",
        "fdatasync journal.new",
        "rename journal",
        f"fsync {calls.folder}",
    ]
    assert records(tmp_path) == [SECOND]


def test_what_cannot_be_written_anew_either_is_not_told(journal, calls):
    starter = starter_with(journal)
    journal.append(FIRST)
    calls.failing["fdatasync journal"] = OSError(5, "Input/output error")
    starter.commit()
    calls.failing["fdatasync journal.new"] = OSError(5, "Input/output error")
    starter.commit()
    assert starter.trouble
    assert not starter._unpushed[0].written
    assert "rename journal" not in calls.seen
