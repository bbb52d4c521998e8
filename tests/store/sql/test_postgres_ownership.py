"""One owner of a store at a time, in real processes (rows 16, 17 and 18 of docs/reliability.md).

A lock says who may begin; the epoch, which the database itself compares in every transaction, sees
to it that whoever has lost the store can write nothing, whatever it believes.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import errors

from gridhand import Grid
from gridhand.core.errors import StoreFenced, StoreOwned, StoreUnavailable
from gridhand.store.ownership import Taking
from gridhand.store.reader import audit
from gridhand.store.urls import store_at
from postgres_server import sql

WORKER = """
import json, os, signal, sys, threading
from gridhand import Grid, GridError
from gridhand.store.sql.sql_store import SqlStore

def tell(**line):
    print(json.dumps(line), flush=True)

def stop_in_the_next_transaction():
    write = SqlStore._write
    def once(self, final):
        SqlStore._write = write
        write(self, final)
        tell(stopping=os.getpid())
        # To this very thread: another might be stopped a moment before it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    SqlStore._write = once

grid = None
tell(ready=os.getpid())
for line in sys.stdin:
    call, args, options = json.loads(line)
    try:
        if call == "open":
            grid = Grid.at(*args, **options)
            tell(reply="open")
        elif call == "stop_in_the_next_transaction":
            stop_in_the_next_transaction()
            tell(reply="armed")
        elif call == "close":
            grid.close()
            tell(reply="closed")
        else:
            tell(reply=getattr(getattr(grid, call)(*args, **options), "id", None))
    except GridError as error:
        tell(code=error.code, says=str(error), hint=error.hint, pid=getattr(error, "pid", None))
"""


class Worker:
    """Another process, that does with a grid what it is told."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def tell(self, call, *args, **options):
        self.process.stdin.write(json.dumps([call, args, options]) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, call, *args, **options):
        self.tell(call, *args, **options)
        return self.hear()

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def workers():
    """Starts other processes, and ends them."""
    made = []

    def start():
        made.append(Worker())
        assert made[-1].hear() == {"ready": made[-1].pid}
        return made[-1]

    yield start
    for worker in made:
        worker.end()


class File:
    """A store in a file, seen from beside it."""

    def __init__(self, url):
        self.url = url

    def sql(self, statement):
        with contextlib.closing(sqlite3.connect(self.url)) as database:
            found = database.execute(statement).fetchall()
            database.commit()
            return found


class Database:
    """A store in a database, seen from beside it."""

    def __init__(self, url):
        self.url = url

    def sql(self, statement):
        return sql(self.url, statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return File(str(tmp_path / "grid.db"))
    return Database(request.getfixturevalue("database"))


def furnish(url):
    with Grid.at(url) as grid:
        grid.register_node("a", cpu=100)


def everything(place):
    tables = ("gridhand_meta", "nodes", "allocations", "events", "operations")
    return {table: sorted(place.sql(f"SELECT * FROM {table}"), key=repr) for table in tables}


# ---- who has it


def test_the_second_is_told_who_has_the_store(place, workers):
    furnish(place.url)
    first, second = workers(), workers()
    assert first.ask("open", place.url) == {"reply": "open"}
    before = everything(place)
    for opener in (second.ask, lambda *args: error_of(Grid.at, *args[1:])):
        answer = opener("open", place.url)
        assert (answer["code"], answer["pid"]) == ("store_owned", first.pid)
        assert str(first.pid) in answer["says"]
        assert answer["hint"]
    assert everything(place) == before
    assert "reply" in first.ask("allocate", cpu=1)


def error_of(call, *args, **options):
    with pytest.raises(StoreOwned) as caught:
        call(*args, **options)
    error = caught.value
    return {"code": error.code, "says": str(error), "hint": error.hint, "pid": error.pid}


def test_waiting_ends_when_the_time_is_over(place, workers):
    first = workers()
    first.ask("open", place.url)
    began = time.monotonic()
    with pytest.raises(StoreOwned) as caught:
        Grid.at(place.url, wait=0.3)
    assert 0.3 <= time.monotonic() - began < 20
    assert caught.value.pid == first.pid


def test_the_next_in_line_takes_over_when_the_owner_is_killed(place, workers):
    furnish(place.url)
    first, second = workers(), workers()
    first.ask("open", place.url)
    held = first.ask("allocate", cpu=2, op_id="mine")["reply"]
    second.tell("open", place.url, wait=60)
    first.kill()
    began = time.monotonic()
    assert second.hear() == {"reply": "open"}
    assert time.monotonic() - began < 50  # not only when its own wait was over
    assert second.ask("allocate", cpu=2, op_id="mine") == {"reply": held}
    assert "reply" in second.ask("allocate", cpu=1)
    assert audit(place.url).violations == []


def test_of_many_who_come_at_once_one_has_it(place, workers, postgres, tmp_path):
    """Also when the store is made only then."""
    crowd = [workers() for _ in range(4)]
    for number in range(5):
        is_file = isinstance(place, File)
        url = str(tmp_path / f"{number}.db") if is_file else postgres.new_database()
        for worker in crowd:
            worker.tell("open", url)
        answers = [worker.hear() for worker in crowd]
        codes = sorted(answer.get("code", "open") for answer in answers)
        assert codes == ["open", *["store_owned"] * 3], answers
        owner = crowd[[answer.get("reply") for answer in answers].index("open")]
        assert owner.ask("register_node", "a", cpu=1).keys() == {"reply"}
        assert {answer.get("pid") for answer in answers} <= {owner.pid, None}
        assert owner.ask("close") == {"reply": "closed"}
        if not is_file:
            postgres.drop(url)


def test_a_schema_that_another_makes_at_the_same_moment_is_no_failure(database):
    with raw(database) as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN")
        other.execute("CREATE SCHEMA gridhand")
        opening = pool.submit(Grid.at, database)
        until_somebody_waits_for_a_lock(database)
        other.execute("COMMIT")
        opening.result(10).close()


# ---- who has lost it


def assert_fenced(answer):
    assert answer["code"] == "store_fenced", answer
    assert "another process has taken over" in answer["says"]
    assert answer["hint"]


def test_an_owner_that_hung_can_write_nothing_when_it_goes_on(place, workers):
    furnish(place.url)
    first = workers()
    first.ask("open", place.url)
    held = first.ask("allocate", cpu=1)["reply"]
    first.signal(signal.SIGSTOP)
    with Grid.at(place.url, take_over=True) as second:
        second.allocate(cpu=3, holder="second")
        before = everything(place)
        first.signal(signal.SIGCONT)
        assert_fenced(first.ask("allocate", cpu=1))
        assert_fenced(first.ask("release", held))
        assert_fenced(first.ask("register_node", "b", cpu=1))
        assert_fenced(first.ask("allocate", cpu=1, op_id="again"))
        assert everything(place) == before
        assert second.check() == []
        second.allocate(cpu=4)  # and the second goes on
    assert audit(place.url).violations == []


@pytest.mark.parametrize("ask", ["release", "op_id"])
def test_whatever_is_asked_first_of_a_fenced_owner_it_says_so(place, workers, ask):
    """Asking may begin with looking something up, which is no write."""
    furnish(place.url)
    first = workers()
    first.ask("open", place.url)
    held = first.ask("allocate", cpu=1)["reply"]
    first.ask("release", held)
    first.signal(signal.SIGSTOP)
    with Grid.at(place.url, take_over=True) as second:
        before = everything(place)
        first.signal(signal.SIGCONT)
        answers = [
            first.ask("release", held)
            if ask == "release"
            else first.ask("allocate", cpu=1, op_id=f"op{turn}")
            for turn in range(2)
        ]
        answers.append(first.ask("allocate", cpu=1))
        assert "store_fenced" in {answer.get("code") for answer in answers}
        assert_fenced(answers[-1])
        # One that was lost and not yet known to be may be told that the store cannot be reached.
        lost = {"store_unavailable", "store_outcome_unknown"}
        assert {answer.get("code") for answer in answers} <= {None, "store_fenced", *lost}
        assert everything(place) == before
        assert second.check() == []


def test_a_fenced_owner_does_not_keep_the_store_from_others(place, workers):
    furnish(place.url)
    first = workers()
    first.ask("open", place.url)
    first.signal(signal.SIGSTOP)
    Grid.at(place.url, take_over=True).close()
    first.signal(signal.SIGCONT)
    assert_fenced(first.ask("allocate", cpu=1))
    with Grid.at(place.url) as third:
        third.allocate(cpu=1)
        assert_fenced(first.ask("allocate", cpu=1))
        assert third.check() == []


def test_a_live_owner_can_be_taken_over_too(place, workers):
    furnish(place.url)
    first, second = workers(), workers()
    first.ask("open", place.url)
    assert second.ask("open", place.url, take_over=True) == {"reply": "open"}
    assert "reply" in second.ask("allocate", cpu=1)
    assert_fenced(first.ask("allocate", cpu=1))
    assert error_of(Grid.at, place.url)["pid"] == second.pid


def test_taking_over_a_store_that_nobody_has_is_opening_it(place):
    furnish(place.url)
    with Grid.at(place.url, take_over=True) as grid:
        grid.allocate(cpu=1)
    with Grid.at(place.url, take_over=True, wait=0.1) as grid:
        assert len(grid.allocations()) == 1


# ---- in the middle of a transaction (row 18)


def test_an_owner_that_hangs_in_a_transaction_loses_it(database, workers):
    furnish(database)
    first = workers()
    first.ask("open", database)
    first.ask("stop_in_the_next_transaction")
    first.tell("allocate", cpu=1, op_id="late")
    assert first.hear() == {"stopping": first.pid}
    with Grid.at(database, take_over=True) as second:
        assert second.allocations() == []
        mine = second.allocate(cpu=2)
        before = everything(Database(database))
        first.signal(signal.SIGCONT)
        assert_fenced(first.hear())
        assert everything(Database(database)) == before
        assert [held.id for held in second.allocations()] == [mine.id]
    assert audit(database).violations == []


def test_an_owner_that_hangs_in_a_transaction_on_a_file_ends_it_first(tmp_path, workers):
    """Nothing can end another process's transaction on a file: it is before, or it is refused."""
    path = tmp_path / "grid.db"
    furnish(str(path))
    first = workers()
    first.ask("open", str(path))
    first.ask("stop_in_the_next_transaction")
    first.tell("allocate", cpu=1)
    assert first.hear() == {"stopping": first.pid}
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        Grid.at(f"sqlite:///{path}?timeout=0.2", take_over=True)
    assert time.monotonic() - began < 20
    first.signal(signal.SIGCONT)
    held = first.hear()["reply"]
    with Grid.at(str(path), take_over=True) as second:
        assert [one.id for one in second.allocations()] == [held]
        assert_fenced(first.ask("allocate", cpu=1))
    assert audit(str(path)).violations == []


def test_a_take_over_that_failed_leaves_the_owner_its_store(tmp_path, workers):
    path = tmp_path / "grid.db"
    furnish(str(path))
    first = workers()
    first.ask("open", str(path))
    first.ask("stop_in_the_next_transaction")
    first.tell("allocate", cpu=1)
    assert first.hear() == {"stopping": first.pid}
    with pytest.raises(StoreUnavailable):
        Grid.at(f"sqlite:///{path}?timeout=0.2", take_over=True)
    first.signal(signal.SIGCONT)
    assert "reply" in first.hear()
    with pytest.raises(StoreOwned):  # nobody asked to take it over this time
        Grid.at(str(path)).close()
    assert "reply" in first.ask("allocate", cpu=1)


@contextlib.contextmanager
def raw(url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path TO gridhand")
        yield connection


def until_somebody_waits_for_a_lock(url):
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    deadline = time.monotonic() + 10
    while sql(url, query) == [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stale_transaction_that_wrote_first_is_before_the_new_owner(database):
    """Its session has lost the lock, but not yet its transaction."""
    furnish(database)
    with raw(database) as stale:
        stale.execute("BEGIN")
        stale.execute("UPDATE gridhand_meta SET writer = 1")
        stale.execute("UPDATE nodes SET price = 7")
        found = []

        def take():
            store = store_at(database, Taking(take_over=True))
            found.append(store.open().epoch)
            found.append(store.load().nodes[0].price)
            store.close()

        taking = threading.Thread(target=take)
        taking.start()
        until_somebody_waits_for_a_lock(database)
        assert found == []
        stale.execute("COMMIT")
        taking.join(10)
        assert found == [2, 7]  # what it wrote is seen by the new owner
        with pytest.raises(errors.CheckViolation):
            stale.execute("UPDATE gridhand_meta SET writer = 1")


def test_a_stale_transaction_that_comes_second_is_refused(database):
    furnish(database)
    store = store_at(database)
    assert store.open().epoch == 2
    found = []

    def write():
        with raw(database) as stale:
            stale.execute("BEGIN")
            stale.execute("UPDATE nodes SET price = 7")
            try:
                stale.execute("UPDATE gridhand_meta SET writer = 2")
            except psycopg.Error as error:
                found.append(error)

    with raw(database) as new:
        new.execute("BEGIN")
        new.execute("UPDATE gridhand_meta SET epoch = epoch + 1, writer = epoch + 1")
        writing = threading.Thread(target=write)
        writing.start()
        until_somebody_waits_for_a_lock(database)
        new.execute("COMMIT")
        writing.join(10)
    assert isinstance(found[0], errors.CheckViolation)
    assert store.load().nodes[0].price == 0
    store.close()


def test_the_database_itself_refuses_a_stale_writer(place):
    for _ in range(3):
        furnish(place.url)
    assert place.sql("SELECT epoch, writer FROM gridhand_meta") == [(3, 3)]
    for epoch in (2, 1, 4):
        with pytest.raises((errors.CheckViolation, sqlite3.IntegrityError), match="writer_is_owner"):  # fmt: skip
            place.sql(f"UPDATE gridhand_meta SET writer = {epoch}")
    place.sql("UPDATE gridhand_meta SET writer = 3")


def test_a_session_lost_to_another_owner_is_fenced_even_if_that_one_has_gone(database):
    """The lock is free again then: only the epoch tells."""
    furnish(database)
    with Grid.at(database) as old:
        new = store_at(database, Taking(take_over=True))  # as another process would
        new.open()
        new.close()
        with pytest.raises(StoreFenced):
            old.allocate(cpu=1)
        with pytest.raises(StoreFenced):
            old.allocations()


def test_two_grids_of_one_process_are_two_owners(place):
    furnish(place.url)
    with Grid.at(place.url):
        assert error_of(Grid.at, place.url)["pid"] == os.getpid()
