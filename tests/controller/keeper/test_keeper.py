"""The keeper: one transaction for a batch, answers only after it, and nothing lost or doubled."""

import asyncio
import contextlib
import itertools
import math
import sqlite3
import threading
import time

import pytest

from gridhand import (
    AsyncGrid,
    Grid,
    GridClosed,
    GridError,
    InvalidInput,
    Node,
    NoRoom,
    OperationReused,
    StoreFenced,
    StoreUnavailable,
    StrategyFailed,
)
from gridhand.audit import check_history, check_rebuild, check_state
from gridhand.controller.keeper.embedded import Embedded
from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.tickets import Ticket, TicketPort
from gridhand.core.errors import OutcomeUnknown
from gridhand.core.ledger.allocations import AllocationMove
from gridhand.core.operations import GetStatus, Register
from gridhand.core.placement.strategies import best_fit
from gridhand.library.ledger_methods import LedgerMethods
from gridhand.store.sql.sqlite import SqliteStore

PATIENCE_S = 30
START = 1_000_000


class Clock:
    """A clock that a test moves. It starts where the store has been, or at START."""

    def __init__(self, high_water_ms=0):
        self.ms = max(high_water_ms, START)

    def now(self):
        return self.ms


class WatchedStore:
    """The real store; commits are counted, and can be held up or made to fail."""

    def __init__(self, path=None):
        self._store = SqliteStore(None if path is None else str(path))
        self.commits = []  # how many entries each had
        self.faults = []  # what the next commits raise: (before writing, error) or None
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.written = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def commit(self, batch):
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        self.commits.append(len(batch.entries))
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            self._store.commit(batch)
            return
        self.written, error = fault
        if self.written:
            self._store.commit(batch)
        raise error

    def recover(self):
        self._store.recover()
        return self.written

    @contextlib.contextmanager
    def held_up(self):
        """No commit is made meanwhile; `entered` tells that one has begun."""
        while self.entered.acquire(blocking=False):
            pass
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    def wait_for_a_commit(self):
        assert self.entered.acquire(timeout=PATIENCE_S), "no commit was begun"


def opened(store, **more):
    return Grid(backend=Embedded(Keeper(store, **more)), owner="me")


@pytest.fixture
def store(tmp_path):
    return WatchedStore(tmp_path / "grid.db")


@pytest.fixture
def grid(store):
    """A grid with one node of 10 CPUs, which must be sound at the end."""
    with opened(store) as made:
        made.register_node("n", cpu=10)
        yield made
        with contextlib.suppress(GridClosed, StoreFenced):
            assert made.check() == []


class Answers(TicketPort):
    """Collects the tickets that were answered."""

    def __init__(self):
        self.tickets = []
        self._news = threading.Condition()

    def deliver(self, tickets):
        with self._news:
            self.tickets += tickets
            self._news.notify_all()

    def wait_for(self, count):
        with self._news:
            assert self._news.wait_for(lambda: len(self.tickets) >= count, PATIENCE_S)
        return self.tickets


def send(grid, *calls):
    """Queue the calls as one; what they are answered comes later."""
    answers = Answers()
    grid._backend.submit([Ticket(call, answers) for call in calls])
    return answers


def allocating(grid, cpu=1, **more):
    asked = {"resources": {"cpu": cpu}, "holder": None, "ttl": None, "op_id": None} | more
    return LedgerMethods("me").allocate(*asked.values(), {})


def releasing(grid, id):
    return LedgerMethods("me").move(id, AllocationMove.RELEASE, None, None)


def eventually(condition, within_s=PATIENCE_S):
    """Ask again and again until it is so."""
    end, pause = time.monotonic() + within_s, threading.Event()
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        pause.wait(0.001)


def in_thread(work):
    """Run `work` in a thread of its own; the list gets its answer, or its error."""
    answers = []

    def run():
        try:
            answers.append(work())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, answers


def rows(state):
    """A dump without its time, and with its rows in order."""
    ordered = sorted(state["allocations"], key=lambda row: row["id"])
    return {**state, "now": 0, "allocations": ordered}


# ---- repeats


def test_an_op_id_is_decided_once_and_refused_with_another_body(grid):
    same = [allocating(grid, 1, op_id="x") for _ in range(2)]
    first, second, other = send(grid, *same, allocating(grid, 2, op_id="x")).wait_for(3)
    assert (first.reply.fresh, second.reply.fresh) == (True, False)
    assert first.reply.allocations == second.reply.allocations
    assert isinstance(other.error, OperationReused)
    (later,) = send(grid, allocating(grid, 2, op_id="x")).wait_for(1)
    assert isinstance(later.error, OperationReused)
    assert len(grid.allocations()) == 1


# ---- callers that give up


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "asked", [{"op_id": "same"}, {"holder": "h"}, {"holder": "h", "op_id": "other"}]
)
def test_an_abandoned_repeat_gives_back_only_what_it_made(grid, store, asked, when):
    (first,) = send(grid, allocating(grid, 2, **asked)).wait_for(1)
    held = first.reply.allocations[0].id
    answers = Answers()
    repeat = Ticket(allocating(grid, 2, **asked), answers)
    with store.held_up() if when == "before" else contextlib.nullcontext():
        if when == "before":
            other = send(grid, allocating(grid))
            store.wait_for_a_commit()
        grid._backend.submit([repeat])
        if when == "after":
            answers.wait_for(1)
        grid._backend._keeper.abandon(repeat)
    if when == "before":
        other.wait_for(1)
    answers.wait_for(1)
    assert repeat.reply.allocations[0].id == held
    fresh = Ticket(allocating(grid, 3), answers)
    grid._backend.submit([fresh])
    answers.wait_for(2)
    grid._backend._keeper.abandon(fresh)
    eventually(lambda: len(grid.allocations()) == (2 if when == "before" else 1))
    assert held in [one.id for one in grid.allocations()]


def test_what_is_granted_to_a_caller_that_has_given_up_is_released(grid, store):
    answers = Answers()
    ticket = Ticket(allocating(grid, 10), answers)
    with store.held_up():
        grid._backend.submit([ticket])
        store.wait_for_a_commit()
        grid._backend._keeper.abandon(ticket)
    answers.wait_for(1)
    assert ticket.error is None
    eventually(lambda: not grid.allocations(), 10)


# ---- batches


def test_what_is_sent_together_is_one_transaction(grid, store):
    before = len(store.commits)
    answers = send(grid, *(allocating(grid) for _ in range(7))).wait_for(7)
    assert [ticket.error for ticket in answers] == [None] * 7
    assert store.commits[before:] == [7]


def test_what_comes_during_a_commit_is_the_next_batch(grid, store):
    """Fifty callers, and three transactions: the first one's, and then all the others'."""
    before = len(store.commits)
    with store.held_up():
        first = send(grid, allocating(grid, 0.1))
        store.wait_for_a_commit()
        others = [send(grid, allocating(grid, 0.1)) for _ in range(49)]
        assert not first.tickets
    first.wait_for(1)
    for one in others:
        one.wait_for(1)
    assert store.commits[before:] == [1, 49]


def test_many_threads_need_fewer_commits_than_calls(grid, store):
    before = len(store.commits)
    with store.held_up():
        threads = [in_thread(lambda: grid.allocate(cpu=0.1))[0] for _ in range(60)]
        store.wait_for_a_commit()
        # Those who have not come yet would only make the batches smaller.
        eventually(lambda: grid._backend._keeper._inbox.qsize() >= 40)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sum(store.commits[before:]) == 60
    assert len(store.commits) - before < 30


def test_questions_and_refusals_write_nothing(grid, store):
    before = len(store.commits)
    grid.status()
    grid.fits("n", cpu=1)
    grid.dump()
    grid.events()
    with pytest.raises(NoRoom):
        grid.allocate(cpu=11)
    assert len(store.commits) == before


def test_a_refusal_in_a_batch_spoils_nothing(grid, store):
    calls = [allocating(grid, 4), allocating(grid, 20), allocating(grid, 7), allocating(grid, 6)]
    answers = send(grid, *calls).wait_for(4)
    assert [type(ticket.error).__name__ for ticket in answers] == [
        "NoneType", "NeverFits", "NoRoom", "NoneType",
    ]  # fmt: skip
    assert grid.node("n").available["cpu"] == 0
    assert grid.check() == []


def test_a_command_that_is_refused_halfway_leaves_nothing(grid, store):
    gpu = [{"id": "U", "memory": "8GB"}]
    both = Register("me", nodes=(Node.of("x", cpu=1, gpus=gpu), Node.of("y", cpu=1, gpus=gpu)))
    first, second = send(grid, both, allocating(grid)).wait_for(2)
    assert isinstance(first.error, InvalidInput)
    assert second.error is None
    assert [node.name for node in grid.nodes()] == ["n"]
    assert store.commits[-1] == 1


def test_a_name_freed_in_a_batch_is_taken_in_the_same(grid, store):
    held = grid.allocate(cpu=10, holder="x")
    answers = send(grid, releasing(grid, held.id), allocating(grid, 9, holder="x")).wait_for(2)
    assert [ticket.error for ticket in answers] == [None, None]
    assert grid.status().allocated["cpu"] == 90_000


def test_what_ended_in_a_batch_is_still_known_in_it(grid, store):
    """Released, expired or lost a moment ago: whoever asks next is told so, as ever after."""
    held = grid.allocate(cpu=1)
    answers = send(grid, *[releasing(grid, held.id)] * 3).wait_for(3)
    assert [ticket.error for ticket in answers] == [None] * 3
    assert {str(ticket.reply[0].state) for ticket in answers} == {"released"}


def test_an_allocation_ends_as_its_last_event_says(grid):
    """Confirmed and released in one transaction: the row that is kept is that of the last event."""
    kept = grid.reserve(cpu=1, ttl=5)
    confirm = LedgerMethods("me").move(kept.id, AllocationMove.CONFIRM, 100, None)
    send(grid, confirm, releasing(grid, kept.id)).wait_for(2)
    last = grid.events()[-1].row
    known = grid.release(kept.id)._record
    assert (last["state"], last["lifetime"], last["deadline"], last["ttl"]) == (
        known.state,
        known.lifetime,
        known.deadline,
        known.ttl_ms,
    )


def test_a_node_may_be_called_like_an_allocation(store):
    """Rows of both kinds in one transaction, under one name."""
    with opened(store) as grid:
        calls = LedgerMethods("me")
        register = calls.register([Node.of("a1-1", cpu=2)], None)
        answers = send(grid, register, allocating(grid), calls.set_draining("a1-1", True, None))
        answers.wait_for(3)
        assert [ticket.error for ticket in answers.tickets] == [None] * 3
        dump = grid.dump()
    with opened(store) as grid:
        assert grid.node("a1-1").draining
        assert [held.id for held in grid.allocations()] == ["a1-1"]
        assert rows(grid.dump()) == rows(dump)


def test_an_overcommitted_node_stays_so_when_a_lease_there_is_renewed(grid):
    """T9: whatever moves on the node, nothing new is placed there while it holds too much."""
    grid.register_node("n", cpu=4, memory="8GB")
    lease, reserved = grid.allocate(cpu=3, ttl=60), grid.reserve(cpu=1, ttl=60)
    grid.register_node("n", cpu=2, memory="8GB")
    for move in (lease.renew, reserved.confirm):
        move()
        assert grid.node("n").overcommitted
        assert not grid.fits("n", memory="1GB")
        assert grid.check() == []


# ---- answers come after the commit


def test_nobody_is_answered_before_the_commit(grid, store):
    with store.held_up():
        answers = send(grid, allocating(grid), allocating(grid))
        store.wait_for_a_commit()
        assert not any(ticket.done for ticket in answers.tickets)
        assert answers.tickets == []
    assert len(answers.wait_for(2)) == 2


def test_no_batch_is_decided_before_the_last_is_durable(grid, store):
    """The second asks for what the first may yet fail to take: it is not even looked at."""
    looked = []

    def watching(asked, snapshot, rows):
        looked.append(asked)
        return best_fit(asked, snapshot, rows)

    grid.register_node("m", cpu=10)
    grid._backend._keeper._context.strategy = watching
    with store.held_up():
        first = send(grid, allocating(grid, 1))
        store.wait_for_a_commit()
        decided = len(looked)
        second = send(grid, allocating(grid, 2))
        question = send(grid, GetStatus())
        assert not store.entered.acquire(timeout=0.05), "a second commit was begun"
        assert len(looked) == decided
        assert second.tickets == question.tickets == []
    for answers in (first, second, question):
        answers.wait_for(1)
    assert len(looked) == decided + 1


def test_reads_see_only_what_is_durable(grid, store):
    with store.held_up():
        send(grid, allocating(grid, 5))
        store.wait_for_a_commit()
        thread, seen = in_thread(lambda: grid.node("n").available["cpu"])
        assert seen == []
        store.faults.append((False, StoreUnavailable("disk full")))
    thread.join(PATIENCE_S)
    assert seen == [100_000]


# ---- commits that fail


def test_a_failed_commit_is_undone_for_everybody(grid, store):
    held = grid.allocate(cpu=2, ttl=600)
    reserved = grid.reserve(cpu=1, ttl=600)
    before = grid.dump()
    store.faults.append((False, StoreUnavailable("disk full")))
    calls = LedgerMethods("me")
    answers = send(
        grid,
        allocating(grid, 3),
        releasing(grid, held.id),
        calls.move(reserved.id, AllocationMove.CONFIRM, None, None),
        calls.set_draining("n", True, None),
        allocating(grid, 99),
        allocating(grid, 1, holder="x", op_id="op"),
    ).wait_for(6)
    assert {ticket.error.code for ticket in answers} == {"store_unavailable"}
    assert all(ticket.reply is None for ticket in answers)
    assert rows(grid.dump()) == rows(before)
    assert grid.check() == []
    again = grid.allocate(cpu=1, holder="x", op_id="op")
    assert again.state == "active"
    held.release()


def test_each_caller_gets_an_error_of_its_own(grid, store):
    store.faults.append((False, StoreUnavailable("disk full")))
    answers = send(grid, allocating(grid), allocating(grid)).wait_for(2)
    first, second = (ticket.error for ticket in answers)
    assert first is not second


OUTCOMES = {"it had been written": True, "it had not": False}


@pytest.mark.parametrize("written", OUTCOMES.values(), ids=OUTCOMES)
def test_a_lost_commit_is_looked_up_before_anybody_is_answered(grid, store, written):
    """Row 20: the connection goes in the middle of a commit, and comes back."""
    kept = grid.allocate(cpu=1, holder="kept")
    store.faults.append((written, OutcomeUnknown("connection lost")))
    answer = send(grid, allocating(grid, 3, op_id="op")).wait_for(1)[0]
    if written:
        assert answer.error is None
    else:
        assert answer.error.code == "store_unavailable"
    again = grid.allocate({"cpu": 3}, op_id="op")
    assert grid.status().allocated["cpu"] == 40_000
    if written:
        assert answer.reply.allocations[0].id == again.id
    assert {held.holder for held in grid.allocations()} > {"kept"}
    again.release()
    kept.release()
    assert grid.check() == []


@pytest.mark.parametrize("written", OUTCOMES.values(), ids=OUTCOMES)
def test_a_store_that_stays_away_is_read_again_later(grid, store, written, monkeypatch):
    monkeypatch.setattr("gridhand.controller.keeper.write_batch._RECOVERY_S", 0.0)
    grid.allocate(cpu=1)
    real = store._store.recover
    absent = [True]

    def recover():
        if absent:
            absent.pop()
            raise StoreUnavailable("not yet")
        return real()

    store._store.recover = recover
    store.faults.append((written, OutcomeUnknown("connection lost")))
    with pytest.raises(StoreUnavailable):
        grid.allocate(cpu=3)
    assert grid.status().allocated["cpu"] == (40_000 if written else 10_000)
    assert grid.check() == []
    grid.allocate(cpu=2)


def test_what_is_in_doubt_is_read_again_though_nobody_asks(grid, store, monkeypatch):
    monkeypatch.setattr("gridhand.controller.keeper.write_batch._RECOVERY_S", 0.0)
    looks = []
    real = store._store.recover

    def recover():
        looks.append(None)
        if len(looks) < 3:  # away for a while: it is tried until it answers
            raise StoreUnavailable("not yet")
        return real()

    store._store.recover = recover
    store.faults.append((True, OutcomeUnknown("connection lost")))
    with pytest.raises(StoreUnavailable):
        grid.allocate(cpu=3)
    keeper = grid._backend._keeper
    deadline = time.monotonic() + 30
    while not keeper._context.ledger.live:  # what had been written is known then, and acted on
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(looks) == 3
    assert grid.check() == []


def test_an_error_that_nobody_knows_is_an_unknown_outcome(grid, store):
    store.faults.append((True, RuntimeError("a bug in a driver")))
    with pytest.raises(GridError):
        grid.allocate(cpu=3)
    grid.allocate(cpu=1)
    assert grid.status().allocated["cpu"] == 40_000  # it had been written, and is found
    assert grid.check() == []


def test_a_store_that_cannot_be_read_fails_its_caller_alone(grid, store):
    """Whatever goes wrong in the store, the keeper answers and goes on."""

    def broken(*args):
        raise RuntimeError("a bug in a driver")

    store._store.operations = broken
    thread, answers = in_thread(lambda: grid.allocate(cpu=1, op_id="op"))
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the caller waits for ever"
    assert isinstance(answers[0], Exception)
    del store._store.operations
    assert grid.allocate(cpu=1).state == "active"


# ---- another owner


def taken_over(path):
    """Another process becomes the writer, behind the back of this one."""
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE gridhand_meta SET epoch = epoch + 1, writer = epoch + 1")


def test_a_keeper_that_was_overtaken_says_so_and_takes_nothing_more(grid, store, tmp_path):
    grid.allocate(cpu=1)
    taken_over(tmp_path / "grid.db")
    for _ in range(3):
        with pytest.raises(StoreFenced):
            grid.allocate(cpu=1)
    with pytest.raises(StoreFenced):
        grid.status()
    with contextlib.closing(sqlite3.connect(tmp_path / "grid.db")) as other:
        assert other.execute("SELECT count(*) FROM allocations").fetchone() == (1,)


def test_tasks_of_a_keeper_that_was_overtaken_are_told(grid, tmp_path):
    """Those who ask after it was found out, too: nobody is left waiting."""
    taken_over(tmp_path / "grid.db")

    async def ask(own):
        return await asyncio.wait_for(own.allocate(cpu=1), 5)

    async def twice():
        own = AsyncGrid.of(grid)
        first = await asyncio.gather(ask(own), ask(own), return_exceptions=True)
        return first + await asyncio.gather(ask(own), ask(own), return_exceptions=True)

    assert [type(error) for error in asyncio.run(twice())] == [StoreFenced] * 4


def test_a_store_that_was_lost_can_be_opened_again(grid, store, tmp_path):
    grid.allocate(cpu=3)
    taken_over(tmp_path / "grid.db")
    with pytest.raises(StoreFenced):
        grid.allocate(cpu=1)
    grid.close()
    with Grid.at(str(tmp_path / "grid.db"), owner="me") as again:
        assert again.status().allocated["cpu"] == 30_000
        assert again.check() == []


# ---- time


def test_a_reservation_ends_at_its_time_without_anybody_asking(grid, store):
    """R2: the keeper wakes up by itself; nobody has to ask for it."""
    kept = grid.reserve(cpu=4, ttl=0.05)
    before = len(store.commits)
    # Looks at the commits alone: asking the grid would wake the keeper.
    eventually(lambda: len(store.commits) > before)
    eventually(lambda: grid.node("n").available["cpu"] == 100_000)
    ends = [event for event in grid.events() if event.kind == "allocation.expired"]
    assert [event.subject for event in ends] == [kept.id]
    assert ends[0].at - ends[0].row["deadline"] < 1000
    assert ends[0].at >= ends[0].row["deadline"]


def test_deadlines_that_were_put_off_are_the_ones_that_count(grid, store):
    held = grid.allocate(cpu=1, ttl=0.05)
    held.renew(600)
    other = grid.allocate(cpu=1, ttl=0.1)
    eventually(lambda: len(grid.allocations()) == 1)
    assert [one.id for one in grid.allocations()] == [held.id]
    assert other.release().state == "expired"


def test_many_deadlines_at_once_are_one_transaction(store):
    with opened(store, clock=Clock) as grid:
        grid.register_node("n", cpu=10)
        for _ in range(20):
            grid.reserve(cpu=0.1, ttl=10)
        before = len(store.commits)
        grid._backend._keeper.clock.ms += 10_000
        assert grid.status().allocated["cpu"] == 0
        assert store.commits[before:] == [20]


def test_an_expiry_that_cannot_be_written_is_tried_again(store):
    """A commit that failed once does not keep the resources for ever, nor free them in secret."""
    with opened(store) as grid:
        grid.register_node("n", cpu=10)
        store.faults.append(None)
        kept = grid.reserve(cpu=4, ttl=0.05)
        store.faults.append((False, StoreUnavailable("disk full")))
        before = len(store.commits)
        eventually(lambda: len(store.commits) >= before + 2)
        assert grid.node("n").available["cpu"] == 100_000
        ends = [event for event in grid.events() if event.kind == "allocation.expired"]
        assert [event.subject for event in ends] == [kept.id]


def test_what_is_due_may_not_be_confirmed_renewed_or_kept(store):
    """Whether anybody has swept or not: here the clock jumps, and the very next call is the move."""
    with opened(store, clock=Clock) as grid:
        grid.register_node("n", cpu=10)
        clock = grid._backend._keeper.clock
        for move, code in (("confirm", "reservation_expired"), ("renew", "lease_expired")):
            reserved, lease = grid.reserve(cpu=1, ttl=1), grid.allocate(cpu=1, ttl=1)
            clock.ms += 999
            assert grid.status().allocated["cpu"] == 20_000
            clock.ms += 1
            with pytest.raises(GridError) as refused:
                getattr(grid, move)(reserved if move == "confirm" else lease)
            assert refused.value.code == code
            assert grid.status().allocated["cpu"] == 0
            assert grid.release(lease).state == "expired"


def test_setting_the_wall_clock_changes_nothing(store, monkeypatch):
    """Rows 31 and 32: an hour forth or back, nothing lapses early, and nothing lives for ever."""
    with opened(store) as grid:
        grid.register_node("n", cpu=10)
        lease = grid.allocate(cpu=1, ttl=60)
        now = grid.dump()["now"]
        wall = time.time_ns()
        for hours in (1, -1, 24 * 365, -24 * 365):
            monkeypatch.setattr(time, "time_ns", lambda jump=hours: wall + jump * 3600 * 10**9)
            assert abs(grid.dump()["now"] - now) < 10_000
            assert grid.status().allocated["cpu"] == 10_000
            lease.renew()
        short = grid.reserve(cpu=1, ttl=0.02)
        eventually(lambda: grid.status().allocated["cpu"] == 10_000)
        assert short.release().state == "expired"


def test_a_wall_clock_in_the_past_never_takes_time_back(tmp_path, monkeypatch):
    """Row 33: what was stored is the least that time can be."""
    path = str(tmp_path / "grid.db")
    with Grid.at(path) as grid:
        grid.register_node("n", cpu=10)
        last = grid.events()[-1].at
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    with Grid.at(path) as grid:
        assert grid.dump()["now"] >= last
        grid.allocate(cpu=1)
        times = [event.at for event in grid.events()]
    assert times == sorted(times)


def test_after_a_restart_every_deadline_is_a_full_ttl_away(tmp_path):
    path = tmp_path / "grid.db"
    with opened(WatchedStore(path), clock=Clock) as grid:
        grid.register_node("n", cpu=10)
        clock = grid._backend._keeper.clock
        reserved = grid.reserve(cpu=1, ttl=10)
        lease = grid.allocate(cpu=1, ttl=60)
        clock.ms += 5_000
        grid.allocate(cpu=1)  # the store has seen this time

    def later(high_water_ms):
        clock.ms = max(high_water_ms, START + 9_000)
        return clock

    with opened(WatchedStore(path), clock=later) as grid:
        deadlines = {row["id"]: row["deadline"] for row in grid.dump()["allocations"]}
        assert deadlines[reserved.id] == START + 9_000 + 10_000
        assert deadlines[lease.id] == START + 9_000 + 60_000
        assert check_state(grid.dump(), strict_time=True) == []
        clock.ms += 9_999
        grid.confirm(reserved.id)
        clock.ms += 60_000
        assert grid.release(lease.id).state == "expired"


def test_time_stands_still_rather_than_going_back(store):
    """Even a clock that is broken: what was decided later is dated later."""
    with opened(store, clock=Clock) as grid:
        grid.register_node("n", cpu=10)
        clock = grid._backend._keeper.clock
        clock.ms += 5_000
        lease = grid.allocate(cpu=1, ttl=10)
        clock.ms -= 4_000
        assert grid.dump()["now"] == START + 5_000
        renewed = lease.renew()
        assert renewed._record.deadline == START + 15_000


# ---- commands that go wrong


class Broken(Exception):
    pass


def raising(asked, snapshot, rows):
    raise Broken


def exiting(asked, snapshot, rows):
    raise SystemExit


def without_room(asked, snapshot, rows):
    raise GridError("of its own")


def emptied(asked, snapshot, rows):
    rows.clear()
    return []


WRONG_STRATEGIES = {
    "raises": (raising, "raised Broken()"),
    "exits": (exiting, "raised SystemExit()"),
    "raises an error of ours": (without_room, "raised GridError("),
    "returns nothing": (lambda asked, snapshot, rows: None, "returned None instead of a list"),
    "returns too few": (lambda asked, snapshot, rows: [1.0], "returned 1 scores for 2 nodes"),
    "returns too many": (lambda asked, snapshot, rows: [1.0] * 3, "returned 3 scores for 2 nodes"),
    "takes rows away": (emptied, "returned 0 scores for 2 nodes"),
    "returns what has no order": (lambda *_: [object(), object()], "which is no number"),
    "returns NaN": (lambda *_: [1.0, math.nan], "returned the score nan, which is no number"),
    "returns text": (lambda *_: ["1", "2"], "returned the score '1', which is no number"),
    "returns a text": (lambda *_: "12", "returned '12' instead of a list"),
    "returns a mapping": (lambda *_: {0: 1.0, 1: 2.0}, "instead of a list"),
    "returns a number": (lambda asked, snapshot, rows: 1, "returned 1 instead of a list"),
}


@pytest.mark.parametrize(("strategy", "what"), WRONG_STRATEGIES.values(), ids=WRONG_STRATEGIES)
def test_a_strategy_gone_wrong_fails_its_caller_alone(strategy, what):
    with Grid.in_memory(strategy=strategy, owner="me") as grid:
        grid.register_node("a", cpu=4)
        grid.register_node("b", cpu=4)
        before = grid.dump()
        pinned = LedgerMethods("me").allocate({"cpu": 2}, None, None, None, {"node": "b"})
        group = LedgerMethods("me").group([{"cpu": 1}] * 2, None, None, None)
        answers = send(grid, allocating(grid, op_id="op"), pinned, group).wait_for(3)
        for failed in (answers[0].error, answers[2].error):
            assert isinstance(failed, StrategyFailed)
            assert (failed.field, failed.strategy) == ("strategy", strategy.__name__)
            assert what in str(failed)
        assert answers[1].error is None
        grid.release(answers[1].reply.allocations[0].id)
        assert rows(grid.dump()) == rows(before)
        assert grid.check() == []
        assert not [event for event in grid.events() if event.op_id == "op"]


def test_a_strategy_that_fails_in_the_middle_of_a_group_leaves_no_trace(store):
    turns = itertools.count(1)

    def third_time(asked, snapshot, rows):
        if next(turns) == 3:
            raise Broken
        return best_fit(asked, snapshot, rows)

    with opened(store, strategy=third_time) as grid:
        grid.register_node("a", cpu=4)
        grid.register_node("b", cpu=4)
        before = grid.dump()
        with pytest.raises(StrategyFailed, match="'third_time' raised Broken"):
            grid.allocate_group([{"cpu": 1}] * 4)
        assert rows(grid.dump()) == rows(before)
        assert len(grid.allocate_group([{"cpu": 1}] * 4)) == 4


# ---- the end


def test_stopping_answers_everybody(store):
    """Callers in the middle of a commit, and callers behind it: each gets a result or is told."""
    grid = opened(store)
    grid.register_node("n", cpu=1000)
    with store.held_up():
        first = send(grid, allocating(grid))
        store.wait_for_a_commit()
        others = [in_thread(lambda: grid.allocate(cpu=1)) for _ in range(30)]
        eventually(lambda: grid._backend._keeper._inbox.qsize() >= 30)
        closing, _ = in_thread(grid.close)
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert first.wait_for(1)[0].error is None  # it was being written, and so it counts
    granted = 1
    for thread, answers in others:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a caller waits for ever"
        granted += not isinstance(answers[0], GridClosed)
    with opened(WatchedStore(store._path)) as again:
        assert again.status().allocated["cpu"] == granted * 10_000
        assert again.check() == []


def test_stopping_amid_traffic_hangs_nobody(tmp_path):
    """Many threads ask, many stop, again and again: whoever was answered finds it in the store."""
    for turn in range(15):
        path = tmp_path / f"grid{turn}.db"
        grid = opened(WatchedStore(path))
        grid.register_node("n", cpu=10_000)
        won = []

        def ask(grid=grid, won=won):
            with contextlib.suppress(GridClosed):
                while True:
                    won.append(grid.allocate(cpu=1).id)

        askers = [in_thread(ask) for _ in range(8)]
        eventually(lambda won=won: len(won) > 5)
        closers = [in_thread(grid.close) for _ in range(4)]
        for thread, answers in (*closers, *askers):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "somebody waits for ever"
            assert answers == [None], answers
        with opened(WatchedStore(path)) as again:
            assert {held.id for held in again.allocations()} == set(won)
            assert again.check() == []


def test_tasks_are_told_when_the_grid_is_closed():
    async def crowd():
        own = AsyncGrid.in_memory()
        await own.register_node("n", cpu=1000)
        tasks = [asyncio.create_task(own.allocate(cpu=1)) for _ in range(50)]
        await asyncio.sleep(0)
        await own.close()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        with pytest.raises(GridClosed):
            await asyncio.wait_for(own.status(), PATIENCE_S)
        return answers

    for answer in asyncio.run(crowd()):
        assert isinstance(answer, GridClosed) or answer.state == "active"


def test_closing_is_for_good_and_may_be_repeated(store):
    grid = opened(store)
    for _ in range(3):
        grid.close()
        with pytest.raises(GridClosed):
            grid.status()


def test_a_grid_that_never_opened_leaves_the_store_free(tmp_path):
    def broken(high_water_ms):
        raise Broken

    with pytest.raises(Broken):
        opened(WatchedStore(tmp_path / "grid.db"), clock=broken)
    with Grid.at(str(tmp_path / "grid.db")) as grid:
        assert grid.nodes() == []


def test_what_happened_can_be_replayed(grid, store):
    """The log alone leads to the present, through refusals, failures and expiries."""
    held = [grid.allocate(cpu=1, ttl=600) for _ in range(3)]
    store.faults.append((False, StoreUnavailable("disk full")))
    with pytest.raises(StoreUnavailable):
        grid.allocate(cpu=1)
    grid.allocate_group([{"cpu": 1}, {"cpu": 2}])
    held[0].renew(60)
    held[1].release()
    with pytest.raises(NoRoom):
        grid.allocate(cpu=10)
    events = [event._asdict() for event in grid.events()]
    assert check_history(events) == []
    assert check_rebuild(events, grid.dump()) == []
