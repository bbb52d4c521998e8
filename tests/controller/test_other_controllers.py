"""Neighbours: other controllers are noticed, and nobody can hurt us by leaving marks."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gridhand.controller import other_controllers
from gridhand.controller.other_controllers import Neighbours
from other_user import OTHER, OtherProcess, needs_root, run_as_other


@pytest.fixture
def shared():
    """A folder that everybody can write to, as /tmp is; other users cannot reach `tmp_path`."""
    folder = Path(tempfile.mkdtemp(prefix="gridhand-test-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(shared):
    """The folder with the marks of our user."""
    return shared / f"gridhand-controllers-{os.geteuid()}"


@contextlib.contextmanager
def mark(folder, name, text):
    """A mark that a process has locked."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    with open(folder / name, "wb") as file:
        file.write(text)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_two_controllers_see_each_other_until_one_leaves(shared, folder):
    here = Neighbours("/here", str(shared))
    here.enter()
    with mark(folder, "77", b"77\n/there\n"):
        assert list(here.others()) == [(77, "/there")]
    assert list(here.others()) == []
    assert os.listdir(folder) == [str(os.getpid())]  # a mark that nobody has locked is removed
    here.leave()
    here.leave()
    assert os.listdir(folder) == []


def test_ours_is_seen_by_others_and_has_our_pid_and_home(shared):
    here = Neighbours("/here", str(shared))
    here.enter()
    other = Neighbours("/there", str(shared))
    other._name = "another"
    try:
        assert list(other.others()) == [(os.getpid(), "/here")]
    finally:
        here.leave()


def test_a_mark_that_one_with_our_pid_has_left_is_replaced(shared, folder):
    here = Neighbours("/here", str(shared))
    with mark(folder, str(os.getpid()), b"1\n/old, and longer than the new one\n"):
        pass
    here.enter()
    assert (folder / str(os.getpid())).read_text() == f"{os.getpid()}\n/here\n"
    here.leave()


MARKS = {
    "a number of thousands of digits": b"9" * 4999 + b"\n/x",
    "digits of another script": "٣\n/x".encode(),
    "no number": b"abc\n/x",
    "nothing": b"",
    "no text": bytes(range(256)),
    "no path": b"5\nx",
}


@pytest.mark.parametrize("text", MARKS.values(), ids=MARKS)
def test_what_is_no_mark_is_passed_over(shared, folder, text):
    here = Neighbours("/here", str(shared))
    with mark(folder, "a", text), mark(folder, "b", b"77\n/there\n"):
        assert list(here.others()) == [(77, "/there")]


def test_what_others_wrote_cannot_write_to_our_terminal(shared, folder):
    with mark(folder, "a", b"77\n/\x1b]0;mine\x07\x1b[2J\nhint: rm\n"):
        [(_, home)] = Neighbours("/here", str(shared)).others()
    assert home.isprintable()


def test_only_so_many_are_looked_at(shared, folder, monkeypatch):
    monkeypatch.setattr(other_controllers, "_MOST", 2)
    with contextlib.ExitStack() as marks:
        for name in "abcd":
            marks.enter_context(mark(folder, name, b"7\n/x\n"))
        assert len(list(Neighbours("/here", str(shared)).others())) == 2


def test_links_pipes_and_closed_folders_are_passed_over(shared, folder, tmp_path):
    folder.mkdir()
    folder.chmod(0o755)
    (tmp_path / "7").write_text("7\n/x\n")
    os.symlink(tmp_path / "7", folder / "7")
    os.mkfifo(folder / "pipe")
    assert list(Neighbours("/here", str(shared)).others()) == []
    assert (tmp_path / "7").exists()
    file = tmp_path / "file"
    file.write_text("")
    nowhere = Neighbours("/here", str(file))
    nowhere.enter()  # nobody is warned, and all else works
    assert list(nowhere.others()) == []
    nowhere.leave()


def test_only_what_is_a_mark_by_its_content_is_removed(shared, folder):
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "thesis.txt").write_text("many words")
    (folder / "12").write_text("34\n/not the pid of its name\n")
    (folder / "13").write_text("13\n/left\n")
    assert list(Neighbours("/here", str(shared)).others()) == []
    assert sorted(os.listdir(folder)) == ["12", "thesis.txt"]


@needs_root
@pytest.mark.parametrize("name", ["gridhand-controllers", f"gridhand-controllers-{os.geteuid()}"])
def test_files_behind_a_link_of_another_user_stay(shared, tmp_path, name):
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "precious").write_text("7\n/x\n")
    (victim / "7").write_text("7\n/x\n")
    run_as_other("import os, sys; os.symlink(*sys.argv[1:])", victim, shared / name)
    here = Neighbours("/here", str(shared))
    here.enter()
    assert list(here.others()) == []
    here.leave()
    assert sorted(os.listdir(victim)) == ["7", "precious"]


LOCKED = """
import fcntl, os, sys, time
folder, name = sys.argv[1:]
os.makedirs(folder, mode=0o755, exist_ok=True)
file = open(f"{folder}/{name}", "w")
file.write(f"{name}\\n/theirs\\n")
file.flush()
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""


@needs_root
def test_controllers_of_other_users_are_seen_in_their_own_folders_only(shared, folder):
    here = Neighbours("/here", str(shared))
    with OtherProcess(LOCKED, shared / f"gridhand-controllers-{OTHER}", 88):
        assert list(here.others()) == [(88, "/theirs")]
    assert list(here.others()) == []
    assert os.listdir(shared / f"gridhand-controllers-{OTHER}") == ["88"]  # theirs to remove
    with OtherProcess(LOCKED, folder, 99):  # in our name
        here.enter()
        assert list(here.others()) == []
        here.leave()
    assert os.listdir(folder) == ["99"]
