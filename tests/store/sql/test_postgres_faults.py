"""The database goes away, restarts, locks or conflicts (rows 19 to 22 of docs/reliability.md).

Every call is answered, or told that the store could not take it; work goes on by itself; and what
was answered is there, once.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import OperationalError

import gridhand.store.sql.postgres as postgres_module
from gridhand import Grid, StoreError, StoreUnavailable
from gridhand.store.reader import audit
from gridhand.store.sql.postgres import PostgresStore
from gridhand.store.urls import store_at
from postgres_server import sql

CALLERS = 4


def within(seconds, call, *args, **options):
    """The answer of a call that must not hang."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args, **options).result(seconds)


def insist(call, *args, seconds=20, **options):
    """The answer, asked for again as long as the store cannot give it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return within(seconds, call, *args, **options)
        except StoreUnavailable:
            assert time.monotonic() < deadline, "the store does not work again"
            time.sleep(0.02)


def held_by(grid):
    return {held.id for held in grid.allocations()}


def terminate(url):
    """End the owner's session, from the database."""
    holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    sql(url, f"SELECT pg_terminate_backend(pid) FROM ({holders}) AS found")


@pytest.fixture
def furnished(database):
    """A grid with plenty of room on PostgreSQL, and its address."""
    with Grid.at(database) as grid:
        grid.register_node("a", cpu=100_000)
        yield grid, database
        assert grid.check() == []
        assert audit(database).violations == []


@pytest.fixture
def mortal(private):
    """The same on a server of its own, and the server."""
    url = private.new_database()
    with Grid.at(url) as grid:
        grid.register_node("a", cpu=100_000)
        yield grid, url, private
        assert insist(grid.check) == []
        assert audit(url).violations == []


# ---- callers at work while it happens


class Callers:
    """Threads that allocate and release, each in its own name, and note what they were answered."""

    def __init__(self, grid):
        self.grid = grid
        self.live = [[] for _ in range(CALLERS)]
        self.unanswered = []  # the owner, the op id, and what was to be released, or None
        self.failures = []
        self.wrong = []
        self.answered = 0
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(one,), daemon=True) for one in range(CALLERS)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads), "a caller hangs"

    def _run(self, one):
        try:
            for count in itertools.count():
                if self._end.is_set():
                    return
                self._call(f"c{one}", f"{one}-{count}", self.live[one])
        except BaseException as error:
            self.wrong.append(error)

    def _call(self, owner, op_id, live):
        grid = self.grid.for_owner(owner)
        ended = live.pop(0) if len(live) > 5 else None
        try:
            if ended is None:
                live.append(grid.allocate(cpu=1, op_id=op_id).id)
            else:
                assert grid.release(ended, op_id=op_id).state == "released"
            self.answered += 1
        except StoreError as error:
            self.failures.append(error)
            self.unanswered.append((owner, op_id, ended))
            time.sleep(0.01)

    def until_answered(self, more):
        goal, deadline = self.answered + more, time.monotonic() + 30
        while self.answered < goal:
            assert not self.wrong
            assert time.monotonic() < deadline, "work does not go on"
            time.sleep(0.005)

    def verify(self):
        """What was answered is there; what was not, asked again, takes effect once."""
        assert self.wrong == []
        kept = {id for live in self.live for id in live}
        assert kept <= held_by(self.grid)
        for owner, op_id, ended in self.unanswered:
            grid = self.grid.for_owner(owner)
            if ended is None:
                made = {grid.allocate(cpu=1, op_id=op_id).id for _ in range(2)}
                assert len(made) == 1
                kept |= made
            else:
                assert grid.release(ended, op_id=op_id).state == "released"
        assert held_by(self.grid) == kept, "and nothing else"
        assert all(isinstance(error, StoreUnavailable) for error in self.failures)


def test_a_session_that_is_ended_again_and_again_is_opened_again(furnished):
    grid, url = furnished
    with Callers(grid) as callers:
        for _ in range(8):
            callers.until_answered(10)
            terminate(url)
        callers.until_answered(20)
    callers.verify()


def test_those_who_only_ask_are_answered_again_too(furnished):
    grid, url = furnished
    terminate(url)
    assert len(insist(grid.events)) == 1
    terminate(url)
    assert list(insist(lambda: list(grid.prune(3600))))


def end_backend(server, url):
    """The server takes a killed child for a crash, and restarts itself."""
    holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    os.kill(sql(url, holders)[0][0], signal.SIGKILL)
    time.sleep(0.01)
    server.wait_until_ready()


def kill_server(server, url):
    server.kill()
    server.start()


def stop_server_at_once(server, url):
    server.stop(signal.SIGQUIT)
    server.start()


def stop_server(server, url):
    server.stop(signal.SIGINT)
    server.start()


@pytest.mark.parametrize("fault", [end_backend, kill_server, stop_server_at_once, stop_server])
def test_a_server_that_restarts_is_waited_for(mortal, fault):
    grid, url, server = mortal
    with Callers(grid) as callers:
        for _ in range(3):
            callers.until_answered(10)
            fault(server, url)
        callers.until_answered(20)
    callers.verify()


# ---- down


def test_while_the_database_is_down_nothing_is_granted_from_memory(mortal):
    grid, _, server = mortal
    before = grid.allocate(cpu=1).id
    server.kill()
    began = time.monotonic()
    for ask in (
        lambda: grid.allocate(cpu=1),
        lambda: grid.allocate(cpu=1, op_id="down"),
        lambda: grid.release(before),
        lambda: grid.reserve(cpu=1, holder="h"),
        lambda: grid.register_node("b", cpu=1),
    ):
        with pytest.raises(StoreUnavailable):
            within(10, ask)
    assert time.monotonic() - began < 10  # the first waits for a restart, and then no one does
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        within(10, grid.allocate, cpu=1)
    assert time.monotonic() - began < 3  # for which it would wait
    server.start()
    assert insist(grid.allocate, cpu=1, op_id="down").id
    assert len(held_by(grid)) == 2
    assert before in held_by(grid)
    assert [status.name for status in grid.nodes()] == ["a"]


def test_a_store_whose_database_is_down_cannot_be_opened(private):
    url = private.new_database()
    private.kill()
    with pytest.raises(StoreUnavailable) as caught:
        within(10, Grid.at, url)
    assert caught.value.hint
    private.start()
    Grid.at(url).close()


def test_what_lapses_while_the_database_is_down_lapses_after(mortal):
    grid, _, server = mortal
    grid.reserve(cpu=1, ttl=0.05)
    kept = grid.allocate(cpu=1, ttl=600).id
    server.kill()
    with pytest.raises(StoreUnavailable):
        within(10, grid.allocate, cpu=1)
    server.start()
    deadline = time.monotonic() + 10
    while insist(lambda: held_by(grid)) != {kept}:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- lost in the middle of a commit (row 20)


@pytest.fixture
def cut(monkeypatch):
    """Arms one cut: something happens right before or right after a COMMIT, and no reply comes."""
    real = PostgresStore._transaction
    armed = []

    @contextlib.contextmanager
    def _transaction(self):
        when, happens = armed.pop() if armed else (None, None)
        with real(self):
            yield
            if when == "before":
                happens()
        if when == "after":
            happens()
            try:
                self._raw.execute("SELECT 1")
            except psycopg.Error as error:
                raise self._translated(error) from error

    monkeypatch.setattr(PostgresStore, "_transaction", _transaction)
    return lambda when, happens: armed.append((when, happens))


FAULTS = {
    "the session ended": lambda server, url: terminate(url),
    "the server killed": kill_server,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_cut_before_the_commit_nothing_is_there_and_asking_again_works(mortal, cut, fault):
    grid, url, server = mortal
    kept = grid.allocate(cpu=1).id
    cut("before", lambda: fault(server, url))
    with pytest.raises(StoreUnavailable):
        within(10, grid.allocate, cpu=1, op_id="op")
    assert held_by(grid) == {kept}
    assert sql(url, "SELECT count(*) FROM operations") == [(0,)]
    again = {within(10, grid.allocate, cpu=1, op_id="op").id for _ in range(3)}
    assert len(again) == 1
    assert held_by(grid) == {kept, *again}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_cut_after_the_commit_the_answer_is_what_was_written(mortal, cut, fault):
    grid, url, server = mortal
    cut("after", lambda: fault(server, url))
    made = within(10, grid.allocate, cpu=1, op_id="op").id
    assert {within(10, grid.allocate, cpu=1, op_id="op").id for _ in range(3)} == {made}
    assert held_by(grid) == {made}
    assert sql(url, "SELECT count(*) FROM allocations") == [(1,)]


def test_cut_after_the_commit_of_a_release_it_is_released_once(mortal, cut):
    grid, url, _ = mortal
    held = grid.allocate(cpu=1)
    cut("after", lambda: terminate(url))
    assert within(10, grid.release, held, op_id="op").state == "released"
    assert within(10, grid.release, held, op_id="op").state == "released"
    assert sql(url, "SELECT count(*) FROM events WHERE kind = 'allocation.released'") == [(1,)]


def test_numbers_go_on_after_a_commit_whose_answer_was_lost(database, cut):
    """The next owner begins where the last one was, and not before it."""
    with Grid.at(database) as grid:
        grid.register_node("a", cpu=100)
        cut("after", lambda: terminate(database))
        held = within(10, grid.allocate, cpu=1)
        grid.release(held)  # a batch that gives no number
    with Grid.at(database) as grid:
        assert grid.allocate(cpu=1).fence > held.fence
        assert grid.allocate(cpu=1).fence[1] == held.fence[1] + 2
    assert audit(database).violations == []


def test_an_answer_without_a_change_is_remembered_or_not_given(database, cut):
    """The same holder asks again: nothing changes, but the op id stands for that answer now."""
    with Grid.at(database) as grid:
        grid.register_node("a", cpu=100)
        first = grid.allocate(cpu=1, holder="h")
        cut("before", lambda: terminate(database))
        try:
            assert within(10, grid.allocate, cpu=1, holder="h", op_id="op").id == first.id
        except StoreUnavailable:
            return  # then it may mean something else next time
        grid.release(first)
        assert grid.allocate(cpu=1, holder="h", op_id="op").id == first.id


def test_a_store_that_was_cut_does_not_leak_errors_of_the_driver(database):
    store = store_at(database)
    store.open()
    store.load()
    terminate(database)
    for _ in range(3):
        for ask in (
            lambda: store.operations([("a", "b")]),
            lambda: store.find([1]),
            store.events,
            store.checkpoint,
            store.load,
            lambda: store.prune(before=1, most=1),
        ):
            with pytest.raises(StoreUnavailable):
                ask()
    assert store.recover() is False
    assert store.events() == []
    store.close()


# ---- locks (row 21)


@pytest.fixture
def impatient(monkeypatch):
    """Locks are waited for as short as a test can bear."""
    settings = [
        "SET lock_timeout TO '200ms'" if "lock_timeout" in setting else setting
        for setting in postgres_module._SETTINGS
    ]
    assert settings != list(postgres_module._SETTINGS)
    monkeypatch.setattr(postgres_module, "_SETTINGS", tuple(settings))


@pytest.mark.parametrize("table", ["gridhand_meta", "allocations", "events", "operations"])
def test_a_lock_is_waited_for_a_bounded_time(impatient, furnished, table):
    grid, url = furnished
    held = grid.allocate(cpu=1).id
    before = grid.dump()["allocations"]
    with psycopg.connect(url) as other:
        other.execute(f"LOCK TABLE gridhand.{table} IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable):
            within(10, grid.allocate, cpu=1, op_id="op")
        with pytest.raises(StoreUnavailable):
            within(10, grid.release, held, op_id="end")
        assert grid.dump()["allocations"] == before  # memory is sure, and questions are answered
        other.rollback()
    made = grid.allocate(cpu=1, op_id="op").id
    assert grid.release(held, op_id="end").state == "released"
    assert held_by(grid) == {made}


def test_locks_and_statements_have_limits(database):
    store = store_at(database)
    store.open()
    asked = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    found = {name: store._raw.execute(f"SHOW {name}").fetchone()[0] for name in asked}
    assert all(value not in ("0", "") for value in found.values()), found
    assert store._raw.execute("SHOW synchronous_commit").fetchone()[0] == "on"
    store.close()


# ---- conflicts (row 22)

CONFLICTS = {
    "a deadlock": lambda: errors.DeadlockDetected("injected"),
    "a serialization failure": lambda: errors.SerializationFailure("injected"),
    "one seen through SQLAlchemy": lambda: OperationalError(
        "UPDATE", {}, errors.DeadlockDetected("injected")
    ),
}


@pytest.fixture
def conflicts(monkeypatch):
    """Makes the next so many transactions fail in their middle, after rows were written."""
    real = PostgresStore._write
    coming = []

    def _write(self, final):
        real(self, final)
        if coming:
            raise coming.pop()()

    monkeypatch.setattr(PostgresStore, "_write", _write)
    return coming


@pytest.mark.parametrize("conflict", CONFLICTS.values(), ids=CONFLICTS)
def test_a_conflict_is_tried_again_and_takes_effect_once(furnished, conflicts, conflict):
    grid, url = furnished
    conflicts += [conflict] * (postgres_module._TRIES - 1)
    made = grid.allocate(cpu=1, op_id="op")
    assert conflicts == []
    assert held_by(grid) == {made.id}
    assert sql(url, "SELECT count(*) FROM events WHERE subject = %s", made.id) == [(1,)]
    assert grid.allocate(cpu=1, op_id="op").id == made.id


@pytest.mark.parametrize("conflict", CONFLICTS.values(), ids=CONFLICTS)
def test_a_conflict_that_does_not_end_is_told(furnished, conflicts, conflict):
    grid, url = furnished
    kept = grid.allocate(cpu=1).id
    events = sql(url, "SELECT * FROM events")
    conflicts += [conflict] * postgres_module._TRIES
    with pytest.raises(StoreUnavailable):
        grid.allocate(cpu=1, op_id="op")
    assert conflicts == []
    assert held_by(grid) == {kept}
    assert sql(url, "SELECT * FROM events") == events
    assert grid.allocate(cpu=1, op_id="op").id in held_by(grid)


@pytest.fixture
def causes(monkeypatch):
    """What the driver said, in order."""
    seen = []
    real = PostgresStore._translated

    def _translated(self, error):
        seen.append(getattr(error, "orig", error))
        return real(self, error)

    monkeypatch.setattr(PostgresStore, "_translated", _translated)
    return seen


def until_the_owner_waits(url):
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND application_name LIKE 'gridhand%' AND datname = current_database()"
    )
    deadline = time.monotonic() + 10
    while sql(url, query) == [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_real_deadlock_is_tried_again(database, causes):
    name = sql(database, "SELECT current_database()")[0][0]
    sql(database, f"ALTER DATABASE {name} SET deadlock_timeout TO '100ms'")
    with Grid.at(database) as grid, psycopg.connect(database) as other:
        grid.register_node("a", cpu=1)
        other.execute("SET deadlock_timeout TO '30s'")  # so that it is the owner who gives way
        other.execute("SELECT * FROM gridhand.nodes FOR UPDATE")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(grid.register_node, "a", cpu=2)
            until_the_owner_waits(database)
            other.execute("UPDATE gridhand.gridhand_meta SET writer = writer")
            other.commit()
            answer.result(10)
        assert [type(cause) for cause in causes] == [errors.DeadlockDetected]
        assert grid.node("a").total["cpu"] == 20_000
        assert len(grid.events()) == 2
    assert audit(database).violations == []


def test_a_real_serialization_failure_is_tried_again(database, causes):
    name = sql(database, "SELECT current_database()")[0][0]
    sql(database, f"ALTER DATABASE {name} SET default_transaction_isolation TO 'repeatable read'")
    with Grid.at(database) as grid, psycopg.connect(database) as other:
        grid.register_node("a", cpu=1)
        other.execute("UPDATE gridhand.gridhand_meta SET writer = writer")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(grid.allocate, cpu=1, op_id="op")
            until_the_owner_waits(database)
            other.commit()
            made = answer.result(10)
        assert [type(cause) for cause in causes] == [errors.SerializationFailure]
        assert held_by(grid) == {made.id}
    assert audit(database).violations == []
