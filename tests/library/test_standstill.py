"""Who waits in vain: what counts as waiting, what is in the way, and what others are told of it."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from gridhand import Grid
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.library import nested
from gridhand.library.marks import Marks
from gridhand.library.standstill import Unchanged, Waiting, is_blocked, no_way_out


def held(node, **amounts):
    return Waiting(0.0, "a", node, Resources.of(**amounts).parts())


#    what is asked            who waits                                                   no way out
CASES = {
    "nobody waits":           (Request.of(cpu=4),            [],                                                False),
    "it never fits":          (Request.of(cpu=5),            [],                                                True),
    "enough beside one":      (Request.of(cpu=3),            [held("a", cpu=1), held("b", cpu=4)],              False),
    "not beside two":         (Request.of(cpu=3),            [held("a", cpu=1), held("a", cpu=1), held("b", cpu=4)], True),
    "another node":           (Request.of(cpu=3),            [held("a", cpu=4)],                                False),
    "something else is held": (Request.of(cpu=4),            [held("a", memory="1GB"), held("b", memory="1GB")], False),
    "one of two is lacking":  (Request.of(cpu=1, memory="2GB"), [held("a", memory="1GB"), held("b", memory="1GB")], True),
    "an alternative":         (Request.of(cpu=4, alternatives=[{"cpu": 1}]), [held("a", cpu=3), held("b", cpu=4)], False),
    "a node that is gone":    (Request.of(cpu=4),            [held("c", cpu=9)],                                False),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "waiting", "expected"), CASES.values(), ids=CASES)
def test_no_way_out(request_, waiting, expected):
    with Grid.in_memory() as grid:
        for name in "ab":
            grid.register_node(name, cpu=4, memory="2GB")
        assert no_way_out(request_, grid.status(), waiting) is expected


WAITING = {
    "a future": lambda: Future().result(30),
    "an event": lambda: threading.Event().wait(30),
    "an event loop": lambda: asyncio.run(asyncio.sleep(30)),
}
WORKING = {
    "sleep": lambda: time.sleep(30),
}


@pytest.mark.parametrize("what", WAITING)
def test_a_thread_that_waits(what):
    thread = threading.Thread(target=lambda: contextless(WAITING[what]), daemon=True)
    thread.start()
    until(lambda: is_blocked(thread.ident))


def contextless(work):
    try:
        work()
    except Exception:
        return


@pytest.mark.parametrize("what", ["sleep"])
def test_a_thread_that_does_something(what):
    thread = threading.Thread(target=WORKING[what], daemon=True)
    thread.start()
    time.sleep(0.1)
    assert not is_blocked(thread.ident)


def test_nobody_is_not_blocked():
    assert not is_blocked(None)
    assert not is_blocked(threading.get_ident())


def until(look):
    for _ in range(2000):
        if look():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come about")


def test_for_how_long():
    same = Unchanged()
    assert same.seconds(("a",), 10.0) == 0
    assert same.seconds(("a",), 12.0) == 2
    assert same.seconds(("a", "b"), 13.0) == 0
    assert same.seconds(("a", "b"), 14.5) == 1.5


# ---- marks


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_marks_are_seen_by_those_who_have_the_same_controller():
    one, other, stranger = Marks("unix:/a"), Marks("unix:/a"), Marks("unix:/b")
    assert one.all() == []
    one.set("a1-1", "n1", {"cpu": 5})
    one.set("a1-1", "n1", {"cpu": 5})
    other.set("a1-2", "n2", {})
    assert [(mark.id, mark.node, mark.held) for mark in one.all()] == [
        ("a1-1", "n1", {"cpu": 5}),
        ("a1-2", "n2", {}),
    ]
    assert stranger.all() == []
    one.unset()
    one.unset()
    assert [mark.id for mark in other.all()] == ["a1-2"]
    other.unset()
    assert one.all() == []


def test_a_mark_goes_with_its_process(tmp_path):
    script = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from gridhand.library.marks import Marks\n"
        "marks = Marks('unix:/a'); marks.set('a1-1', 'n1', {'cpu': 5})\n"
        "print('set', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout.readline() == "set\n"
    marks = Marks("unix:/a")
    assert [mark.id for mark in marks.all()] == ["a1-1"]
    child.kill()
    child.wait()
    assert marks.all() == []
    [folder] = tmp_path.iterdir()
    assert list(folder.iterdir()) == []
    child.stdin.close()
    child.stdout.close()


def test_a_mark_that_was_taken_away_is_set_again(tmp_path):
    marks = Marks("unix:/a")
    marks.set("a1-1", "n1", {})
    [folder] = tmp_path.iterdir()
    (folder / "a1-1").unlink()
    assert marks.all() == []
    marks.set("a1-1", "n1", {})
    assert [mark.id for mark in marks.all()] == ["a1-1"]
    marks.unset()


def test_marks_of_others_do_not_count(tmp_path):
    """A folder that somebody else could write to is not looked into, nor written."""
    marks = Marks("unix:/a")
    marks.set("a1-1", "n1", {})
    [folder] = tmp_path.iterdir()
    folder.chmod(0o777)
    assert marks.all() == []
    marks.unset()
    marks.set("a1-2", "n1", {})
    assert os.listdir(folder) == []


def test_what_cannot_be_read_does_not_count(tmp_path):
    marks, other = Marks("unix:/a"), Marks("unix:/a")
    marks.set("a1-1", "n1", {})
    [folder] = tmp_path.iterdir()
    for text in (b"", b"{", b"[]", b"{}", b'{"since": "x", "node": 1, "held": 2}'):
        (folder / "a1-1").write_bytes(text)
        assert other.all() == []
    marks.unset()


# ---- in a worker


@pytest.fixture
def worker(monkeypatch):
    """A worker with a core of four that waits for a call of three cores; what it is told."""
    monkeypatch.setattr(nested, "SURE_S", 0.0)
    monkeypatch.setattr(nested, "is_blocked", lambda thread: True)
    slot = {"allocation": "a1-9", "node": "a", "request": Resources.of(cpu=1).parts()}
    monkeypatch.setattr(nested.here, "slot", slot)
    one = nested.Nested.__new__(nested.Nested)
    one.told = []
    one._pool = SimpleNamespace(fail_waiting=lambda error, shape: one.told.append(error))
    one._marks, one._same, one._threads = Marks("unix:/a"), Unchanged(), set()
    shape = SimpleNamespace(
        request=Request.of(cpu=3), workers=(), waiting=[1], first_name=lambda: "f"
    )
    with Grid.in_memory() as grid:
        grid.register_node("a", cpu=4)
        one.look = lambda: one._refuse([shape], [shape], grid.status())
        yield one
    one._marks.unset()


def test_the_last_who_stands_still_is_told(worker):
    other = Marks("unix:/a")
    other.set("a1-1", "a", Resources.of(cpu=1).parts())
    worker.look()
    assert [error.reason for error in worker.told] == ["nested"]
    other.unset()


def test_who_can_leave_no_mark_waits_on(worker, tmp_path):
    """As where somebody else has made the folder, who must not have calls fail."""
    worker._marks.set("x", "a", {})
    worker._marks.unset()
    [folder] = tmp_path.iterdir()
    folder.chmod(0o777)
    worker.look()
    assert worker.told == []
