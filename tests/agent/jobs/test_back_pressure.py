"""A job pauses while its reader is far behind, and what that has not read is not cut."""

import pytest

from gridhand.agent.jobs import back_pressure
from gridhand.agent.jobs.capped_log import CappedLog, read_range
from gridhand.agent.jobs.running_attempt import AttemptNote, RunningAttempt

CAP = 16 * 4096


@pytest.fixture
def run(tmp_path, monkeypatch):
    """An attempt with a log, and the signals that its processes got."""
    path = str(tmp_path / "out")
    run = RunningAttempt("1", 1, "a", AttemptNote(log_bytes=CAP, stdout=path, stderr=path))
    signals = []
    monkeypatch.setattr(back_pressure, "_signal", lambda run, signum: signals.append(signum.name))
    return run, tmp_path / "out", signals


def test_nothing_is_cut_that_a_reader_has_not_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 10 * CAP)
    log = CappedLog(str(path), CAP)
    log.reader = 5 * CAP
    log.trim()
    whole = sum(len(piece) for _, piece in read_range(str(path), 5 * CAP, 100 * CAP))
    assert whole == 5 * CAP == log.behind()
    log.finish()
    assert sum(len(piece) for _, piece in read_range(str(path), 5 * CAP, 100 * CAP)) == 5 * CAP
    log.reader = None
    log.trim()
    assert path.stat().st_blocks * 512 <= CAP


def test_it_pauses_when_the_reader_is_far_behind_and_goes_on_when_it_has_caught_up(run):
    run, path, signals = run
    path.write_bytes(b"x" * CAP)
    back_pressure.press(run)
    assert signals == []  # nobody reads
    run.note_reader({"stdout": 0, "stderr": 0})
    back_pressure.press(run)
    assert set(signals) == {"SIGSTOP"}
    run.note_reader({"stdout": CAP // 2, "stderr": 0})
    signals.clear()
    back_pressure.press(run)
    assert (signals, run.paused) == ([], True)
    run.note_reader({"stdout": CAP * 7 // 8, "stderr": 0})
    back_pressure.press(run)
    assert (signals, run.paused) == (["SIGCONT"], False)


#    what it shows                     what happens to the paused attempt
RESUMED = {
    "its reader is gone":             lambda run: run.note_reader({}),
    "it is being stopped":            lambda run: setattr(run, "stopping", "cancelled"),
}  # fmt: skip


@pytest.mark.parametrize("happens", RESUMED.values(), ids=RESUMED)
def test_a_paused_one_goes_on(run, happens):
    run, path, signals = run
    path.write_bytes(b"x" * CAP)
    run.note_reader({"stdout": 0, "stderr": 0})
    back_pressure.press(run)
    signals.clear()
    happens(run)
    back_pressure.press(run)
    back_pressure.press(run)
    assert signals == ["SIGCONT"]
