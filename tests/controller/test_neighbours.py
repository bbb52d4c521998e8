"""Neighbours: other controllers are noticed, and nobody can hurt us by leaving marks."""

import contextlib
import fcntl
import os

import pytest

from gridhand.controller import neighbours
from gridhand.controller.neighbours import Neighbours


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "marks")


@contextlib.contextmanager
def mark(folder, name, text):
    """A mark that somebody has locked."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(text)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_two_controllers_see_each_other_until_one_leaves(folder):
    here = Neighbours("/here", folder)
    here.enter()
    with mark(folder, "1000-77", b"77\n/there\n"):
        assert list(here.others()) == [(77, "/there")]
    assert list(here.others()) == []
    assert os.listdir(folder) == [os.path.basename(here._path)]  # what nobody has locked goes
    here.leave()
    here.leave()
    assert os.listdir(folder) == []


def test_ours_is_seen_by_others_and_has_our_pid_and_home(folder):
    here = Neighbours("/here", folder)
    here.enter()
    other = Neighbours("/there", folder)
    other._path = os.path.join(folder, "another")
    try:
        assert list(other.others()) == [(os.getpid(), "/here")]
    finally:
        here.leave()


def test_a_mark_that_one_with_our_pid_has_left_is_replaced(folder):
    here = Neighbours("/here", folder)
    os.makedirs(folder)
    with open(here._path, "w") as file:
        file.write("1\n/old\n")
    here.enter()
    assert here._fd is not None
    here.leave()


MARKS = {
    "a number of thousands of digits": b"9" * 4999 + b"\n/x",
    "digits of another script": "٣\n/x".encode(),
    "no number": b"abc\n/x",
    "nothing": b"",
    "no text": bytes(range(256)),
}


@pytest.mark.parametrize("text", MARKS.values(), ids=MARKS)
def test_what_is_no_mark_is_passed_over(folder, text):
    here = Neighbours("/here", folder)
    with mark(folder, "a", text), mark(folder, "b", b"77\n/there\n"):
        assert list(here.others()) == [(77, "/there")]


def test_what_others_wrote_cannot_write_to_our_terminal(folder):
    with mark(folder, "a", b"77\n/\x1b]0;mine\x07\x1b[2J\nhint: rm\n"):
        [(_, home)] = Neighbours("/here", folder).others()
    assert home.isprintable()


def test_only_so_many_are_looked_at(folder, monkeypatch):
    monkeypatch.setattr(neighbours, "_MOST", 2)
    with contextlib.ExitStack() as marks:
        for name in "abcd":
            marks.enter_context(mark(folder, name, b"7\n/x\n"))
        assert len(list(Neighbours("/here", folder).others())) == 2


def test_links_pipes_and_closed_folders_are_passed_over(folder, tmp_path):
    os.makedirs(folder)
    (tmp_path / "target").write_text("7\n/x\n")
    os.symlink(tmp_path / "target", os.path.join(folder, "link"))
    os.mkfifo(os.path.join(folder, "pipe"))
    assert list(Neighbours("/here", folder).others()) == []
    assert (tmp_path / "target").exists()
    file = tmp_path / "file"
    file.write_text("")
    nowhere = Neighbours("/here", str(file))
    nowhere.enter()  # nobody is warned, and all else works
    assert list(nowhere.others()) == []
    nowhere.leave()
