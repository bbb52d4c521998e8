"""The state of a pool: who gets which call, and what is to be done, without any process."""

import time

import pytest

from gridhand import Request
from gridhand.library.functions.function_runner import FunctionCall
from gridhand.library.functions.pickled_function import PickledFunction
from gridhand.library.pool.call_log import Notes
from gridhand.library.pool.shape import AHEAD, CallFuture, PendingCall
from gridhand.library.pool.state import PoolState
from gridhand.library.pool.worker_group import ANY, WorkerGroup
from gridhand.worker import wire

LINGER_S = 0.5


class Place:
    """A state with calls and workers that exist in it alone."""

    def __init__(self):
        self.state = PoolState(LINGER_S)
        self.notes = Notes(lambda: None)
        self.now = time.monotonic()
        self.count = 0

    def shape(self, request=None, group=ANY, **more):
        call = FunctionCall(print, request or Request.of(cpu=1), **more)
        return self.state.shape_of(call, group, self.notes)

    def call(self, shape, seconds=None, limit_s=None):
        """A call that waits, of a function that is known to take so long."""
        self.count += 1
        function = PickledFunction(self.count, b"")
        function.seconds = seconds
        call = PendingCall(self.count, CallFuture(), function, (0, b""), "f", limit_s, ())
        call.future.call = call
        call.shape = shape
        self.notes.begin(call)
        shape.waiting.append(call)
        return call

    def worker(self, shape, job="1"):
        return self.state.welcome(shape.number, 0, [job, "1", "n", f"a-{job}"])

    def busy(self, shape, count=1, **more):
        """A worker that has so many calls, and these."""
        worker = self.worker(shape)
        calls = [self.call(shape, 0.0, **more) for _ in range(count)]
        assert shape.take(worker) == calls
        worker.begun = self.now
        return worker, calls

    def due(self, seconds):
        return self.state.due(self.now + seconds)


@pytest.fixture
def place():
    return Place()


def answer(number, how=wire.INLINE, data=b"", seconds=0.25):
    return wire.ANSWER.pack(number, how, seconds, len(data)) + data


# ---- shapes


def test_calls_that_ask_for_the_same_share_a_shape(place):
    one = place.shape(Request.of(cpu=1))
    assert place.shape(Request.of(cpu=1)) is one
    assert place.shape(Request.of(cpu=2)) is not one
    assert place.shape(Request.of(cpu=1), WorkerGroup(b"setup", 3)) is not one
    assert place.shape(Request.of(cpu=1), apart="x") is not one
    assert place.shape(Request.of(cpu=1), held="a1-1").held == "a1-1"


#    what is known of the calls      seconds  waiting  workers  given
TAKEN = {
    "nothing, so one":               (None,   5,       1,       1),
    "short ones go together":        (0.0001, 5,       1,       5),
    "but no more than are allowed":  (0.0,    100,     1,       AHEAD),
    "nor more than a fair part":     (0.0,    10,      3,       4),
    "long ones go one by one":       (1.0,    5,       1,       1),
    "none waits":                    (0.0,    0,       1,       0),
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "waiting", "workers", "given"), TAKEN.values(), ids=TAKEN)
def test_how_many_calls_a_worker_gets(place, seconds, waiting, workers, given):
    shape = place.shape()
    found = [place.worker(shape, str(number)) for number in range(workers)]
    calls = [place.call(shape, seconds) for _ in range(waiting)]
    assert shape.take(found[0]) == calls[:given]
    assert list(shape.waiting) == calls[given:]
    assert all(call.future.running() and call.worker is found[0] for call in calls[:given])


def test_a_cancelled_call_is_given_to_nobody(place):
    shape = place.shape()
    worker = place.worker(shape)
    first, second = place.call(shape, 0.0), place.call(shape, 0.0)
    first.future.cancel()
    assert shape.take(worker) == [second]
    assert list(place.notes.open) == [second.number]


def test_the_calls_of_a_shape_are_taken_or_of_all_that_have_no_worker(place):
    one, other = place.shape(Request.of(cpu=1)), place.shape(Request.of(cpu=2))
    first, second = place.call(one), place.call(other)
    place.worker(other)
    assert place.state.take_waiting() == [first]
    assert place.state.take_waiting(other) == [second]


# ---- slots


def test_slots_are_asked_for_until_there_are_enough(place):
    shape, state = place.shape(), place.state
    for _ in range(5):
        place.call(shape, 1.0)
    assert state.wants_slots(shape, place.now)
    assert state.ask_for_slots(shape, 3, 3) == 3
    assert state.ask_for_slots(shape, 3, 3) == 0  # they are being asked for
    assert place.worker(shape, "7")  # one comes before its id is known
    state.slots_asked(shape, 3, ["7", "8", "9"], place.now)
    assert list(shape.asked) == ["8", "9"]
    assert state.awaited_slots() == [(shape, "8")]
    assert state.ask_for_slots(shape, 3, 3) == 0


def test_slots_that_nobody_needs_any_more_are_given_up_and_sent_away(place):
    shape, state = place.shape(), place.state
    call = place.call(shape)
    state.slots_asked(shape, 0, ["7"], place.now)
    assert state.take_surplus(shape) == []
    shape.waiting.remove(call)
    assert state.take_surplus(shape) == ["7"]
    assert place.worker(shape, "7") is None
    assert state.welcome(999, 0, ["8", "1", "n", ""]) is None


def test_a_shape_whose_slots_fail_again_and_again_has_no_hope(place):
    shape, state = place.shape(), place.state
    state.slots_asked(shape, 0, ["1", "2", "3"], place.now)
    assert [state.slot_failed(shape, job, 3) for job in ("1", "1", "2", "3")] == [
        False, False, False, True,
    ]  # fmt: skip


# ---- answers


def test_answers_are_taken_from_the_worker(place):
    worker, (first, second) = place.busy(place.shape(), 2)
    data = answer(1, data=b"value") + answer(99, wire.FILE, b"/path")
    answers = place.state.take_answers(worker, [data], place.now + 2)
    assert answers.answered == [(first, wire.INLINE, b"value")]
    assert answers.strays == [(wire.FILE, b"/path")]
    assert list(worker.running.values()) == [second]
    assert (first.started, first.ended) == (place.now + 1.75, place.now + 2)


def test_calls_that_are_given_back_are_first_in_line_in_their_order(place):
    shape = place.shape()
    worker, calls = place.busy(shape, 3)
    later = place.call(shape)
    data = answer(3, wire.TAKEN_BACK) + answer(2, wire.TAKEN_BACK)
    assert place.state.take_answers(worker, [data], place.now).answered == []
    assert list(shape.waiting) == [calls[1], calls[2], later]
    assert calls[1].future.cancel()


def test_a_worker_that_ends_takes_one_call_with_it(place):
    shape = place.shape()
    worker, calls = place.busy(shape, 3)
    assert place.state.gone(worker, calls[0].number) is calls[0]
    assert list(shape.waiting) == calls[1:]
    assert not shape.workers
    assert not place.state.workers


def test_one_that_was_idle_or_is_killed_takes_none(place):
    shape = place.shape()
    worker, calls = place.busy(shape)
    place.state.retire(worker, doomed=True)
    assert place.state.gone(worker, calls[0].number) is None
    assert list(shape.waiting) == calls
    assert place.state.gone(place.worker(shape), 0) is None


def test_a_shape_for_certain_calls_is_forgotten_with_its_last_worker(place):
    shape = place.shape(apart="x")
    worker = place.worker(shape)
    assert place.state.shapes() == [shape]
    place.state.gone(worker, 0)
    assert place.state.shapes() == []


# ---- as time passes


def test_idle_workers_are_told_to_quit(place):
    worker = place.worker(place.shape())
    worker.since = place.now
    assert place.due(LINGER_S - 0.01).quit == []
    assert place.due(LINGER_S).quit == [worker]
    assert worker.retiring
    assert place.due(LINGER_S).quit == []


def test_a_call_is_over_at_its_limit(place):
    worker, calls = place.busy(place.shape(), limit_s=5.0)
    due = place.due(4.9)
    assert (due.late, due.kill, due.alarm) == ([], [], place.now + 5.0)
    due = place.due(5.0)
    assert (due.late, due.kill) == (calls, [worker])
    assert place.due(6.0).kill == []


def test_calls_behind_a_long_one_are_recalled_once(place):
    worker, _ = place.busy(place.shape(), 2)
    assert place.due(0.01).recall == []
    assert place.due(0.1).recall == [worker]
    assert place.due(0.2).recall == []


#    what is stopped         which  after s  killed  recalled
STOPPED = {
    "the one that runs":    (0, 1.0, True, False),
    "one that waits behind": (1, 1.0, False, True),
    "one that has just begun, perhaps": (0, 0.01, False, True),
}  # fmt: skip


@pytest.mark.parametrize(("which", "after_s", "killed", "recalled"), STOPPED.values(), ids=STOPPED)
def test_stopping_a_call(place, which, after_s, killed, recalled):
    worker, calls = place.busy(place.shape(), 2)
    due = place.state.stop(worker, calls[which], place.now + after_s)
    assert (bool(due.kill), bool(due.recall)) == (killed, recalled)


def test_a_stopped_call_that_is_reached_later_ends_its_worker(place):
    worker, calls = place.busy(place.shape())
    calls[0].future.set_result(None)
    assert place.due(0.01).kill == []
    assert place.due(0.1).kill == [worker]


def test_other_shapes_yield_to_one_that_starves(place):
    rich, poor = place.shape(Request.of(cpu=1)), place.shape(Request.of(cpu=2))
    busy, _ = place.busy(rich)
    idle = place.worker(rich, "2")
    idle.since = place.now
    place.call(poor)
    place.state.slots_asked(poor, 0, ["9"], place.now)
    assert place.due(0.2).quit == []  # it may just be about to start
    poor.no_room = True
    assert place.due(0.2).quit == [idle]
    assert not place.state.wants_slots(rich, place.now + 0.2)
    assert not busy.retiring
    busy.born = place.now - 1
    assert place.due(0.3).quit == []  # it goes once it has done what it has
    assert busy.retiring
    assert place.due(0.3).short


def test_closing_returns_all_open_calls(place):
    shape = place.shape()
    _, calls = place.busy(shape)
    waits = place.call(shape)
    assert place.state.close() == [waits, *calls]
    assert place.state.closed
