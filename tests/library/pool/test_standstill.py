"""Who waits in vain: what counts as waiting, what is in the way, and what others are told of it."""

import asyncio
import queue
import threading
import time
from concurrent.futures import Future, wait

import pytest

from gridhand import Grid
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.library.pool.blocked_threads import BlockedCall, Unchanged, is_blocked, no_way_out
from gridhand.library.pool.nested import WaitReports
from until import until


def held(node, **amounts):
    return BlockedCall(0.0, "a", node, Resources.of(**amounts).parts())


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


def sleeping():
    thread = threading.Thread(target=time.sleep, args=(30,), daemon=True)
    thread.start()
    return thread


WAITING = {
    "a future": lambda: Future().result(30),
    "an event": lambda: threading.Event().wait(30),
    "an event loop": lambda: asyncio.run(asyncio.sleep(30)),
    "some futures": lambda: wait([Future()], 30),
    "a queue": lambda: queue.Queue().get(timeout=30),
    "another thread": lambda: sleeping().join(30),
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


def test_for_how_long():
    same = Unchanged()
    assert same.seconds(("a",), 10.0) == 0
    assert same.seconds(("a",), 12.0) == 2
    assert same.seconds(("a", "b"), 13.0) == 0
    assert same.seconds(("a", "b"), 14.5) == 1.5


#    what is seen, and when                                                   which of them are reported
QUEUED, RUNNING, BOTH, GOES_ON = (
    (("7",), (), True),
    ((), ("a1",), True),
    (("7",), ("a1",), True),
    ((), (), False),
)
REPORTS = {
    "a wait for room, at once and again":   ([(0, QUEUED), (0.2, QUEUED), (1, QUEUED), (1.5, QUEUED)],     [0, 1]),
    "also if the function is not blocked":  ([(0, (("7",), (), False)), (0.2, (("7",), (), False))],       [0]),
    "a wait for what runs, if it lasts":    ([(0, RUNNING), (0.5, RUNNING), (1, RUNNING), (2, RUNNING)],   [1, 2]),
    "a change, at once":                    ([(0, QUEUED), (0.2, BOTH), (0.3, QUEUED)],                    [0, 0.2, 0.3]),
    "that it goes on, once":                ([(0, QUEUED), (0.2, GOES_ON), (3, GOES_ON)],                  [0, 0.2]),
    "no wait, never":                       ([(0, GOES_ON), (3, GOES_ON)],                                 []),
    "nothing of short waits":               ([(0, RUNNING), (0.5, GOES_ON), (1, RUNNING), (1.5, GOES_ON)], []),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "reported"), REPORTS.values(), ids=REPORTS)
def test_when_a_wait_is_reported(seen, reported):
    reports = WaitReports()
    assert [at for at, wait in seen if reports.due(wait, 100 + at)] == reported
