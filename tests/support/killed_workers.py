"""Real processes that are killed, and what must be so after each of them."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing

import pytest

import ledger_worker as worker
from gridhand import Grid, GridError, NoRoom
from gridhand.audit import check_history, check_rebuild
from gridhand.core.rows.ledger import allocation_row, node_row
from gridhand.store.urls import store_at

WORKER = worker.__file__

MAKING = ("allocate", "reserve", "allocate_group")
SPARE = "spare"


class Nursery:
    """Starts children that work on a store; hears what they say; kills them."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, **job):
        self._write(json.dumps(job) + "\n")

    def go(self):
        """Let a child that waits go on."""
        self._write("!")

    def _write(self, text):
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def line(self):
        """The next thing a child says; what it was killed in the middle of saying is nothing."""
        while True:
            text = self._process.stdout.readline()
            assert text, "the nursery is gone"
            try:
                return json.loads(text)
            except ValueError:
                continue

    def until(self, *words):
        """Everything that is said up to the first line with one of these words in it."""
        lines = []
        while not lines or not any(word in lines[-1] for word in words):
            lines.append(self.line())
        return lines

    def kill_after(self, pid, seconds):
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)  # not reaped, so not another's, until `ended` is heard

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class Books:
    """What callers were told, and what they had asked when the answer did not come any more."""

    def __init__(self):
        self.live = {}
        self.mortal = set()
        self.closed = set()
        self.spare = None
        self.pending = {}
        self.counts = Counter()

    def read(self, lines):
        for line in lines:
            assert "crash" not in line, line["trace"]
            if "do" in line:
                self.pending[line["do"]["op_id"]] = line["do"]
            elif "refused" in line:
                self.counts["refused"] += 1
                self.refuse(self.pending.pop(line["refused"]), line["code"])
            elif "done" in line:
                self.counts["done"] += 1
                self.take(self.pending.pop(line["done"]), line["reply"])
        owners = [intent["owner"] for intent in self.pending.values()]
        assert len(set(owners)) == len(owners), "each thread waits for its answer"

    def take(self, intent, reply):
        call = intent["call"]
        if call in MAKING:
            for fact in reply:
                self.live[fact["id"]] = fact
            if intent["options"].get("ttl") == worker.SHORT_S:
                self.mortal.update(fact["id"] for fact in reply)
        elif call == "register_node":
            self.spare = reply[0]
        elif call == "unregister":
            self.spare = None
        elif call == "release":
            self.close(reply[0])
        else:
            self._change(reply[0])

    def refuse(self, intent, code):
        assert code in ("no_room", "holder_busy", "reservation_expired", "lease_expired", "unknown_node"), intent  # fmt: skip
        if intent["call"] == "confirm":
            assert intent["args"][0] in self.mortal

    def members(self, id):
        """The allocation and all that was granted with it."""
        group = self.live.get(id, {}).get("group")
        return {other for other in self.live if group and self.live[other]["group"] == group} | {id}

    def close(self, fact):
        for id in self.members(fact["id"]):
            self.live.pop(id, None)
            self.closed.add(id)

    def _change(self, fact):
        for id in self.members(fact["id"]):
            self.live[id] |= {"state": fact["state"], "lifetime": fact["lifetime"]}
            self.mortal.discard(id)

    def in_doubt(self):
        """What an unanswered call may or may not have changed."""
        return {
            id
            for intent in self.pending.values()
            if intent["call"] in ("release", "confirm", "renew")
            for id in self.members(intent["args"][0])
        }


def events_of(source, step=2000):
    found, some = [], source.events(limit=step)
    while some:
        found += some
        some = source.events(after=some[-1].number, limit=step)
    return found


def check_file(path):
    """The file is sound, its history lawful, and its tables are what its history leads to."""
    store = store_at(str(path))
    store.open()
    try:
        contents, start = store.load(), store.checkpoint()
        events = [event._asdict() for event in events_of(store)]
    finally:
        store.close()
    state = {
        "nodes": [node_row(node) for node in contents.nodes],
        "allocations": [allocation_row(held) for held in contents.allocations],
    }
    assert check_history(events, start) == []
    assert check_rebuild(events, state, start) == []
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []


class Aftermath:
    """Opens a store whose owner was killed, and expects what was promised."""

    def __init__(self, path, books):
        self.path, self.books = path, books

    def verify(self, *, fill=True):
        check_file(self.path)
        with Grid.at(str(self.path)) as self.grid:
            self.books.counts["rounds"] += 1
            assert self.grid.check() == []
            self._acknowledged_is_there()
            self._rest_was_asked_for()
            self._settle()
            if fill:
                fill_up(self.grid)
            assert self.grid.check() == []
            for _ in self.grid.prune(5.0, most=500):
                pass

    def _held(self):
        return {fact["id"]: fact for fact in worker.facts(self.grid.allocations())}

    def _acknowledged_is_there(self):
        books, held = self.books, self._held()
        doubt = books.in_doubt()
        for id, fact in books.live.items():
            if id in doubt or (id in books.mortal and id not in held):
                continue
            assert held.get(id) == fact
        assert not books.closed & held.keys(), "what was given back is held again"
        if not any(intent["args"][0] == SPARE for intent in books.pending.values()):
            names = {status.name: status.node for status in self.grid.nodes()}
            assert (SPARE in names) == (books.spare is not None)
            assert books.spare is None or worker.facts(names[SPARE])[0] == books.spare

    def _rest_was_asked_for(self):
        """Nothing that nobody was told of counts, but what was being asked for at the end."""
        self.made = {}
        for event in events_of(self.grid):
            if event.op_id in self.books.pending:
                self.made.setdefault(event.op_id, []).append(event.subject)
        unknown = self._held().keys() - self.books.live.keys()
        asked = {id for ids in self.made.values() for id in ids}
        assert unknown <= asked

    def _settle(self):
        """Ask again what was not answered: each takes effect once, whichever time it was."""
        books = self.books
        for op_id, intent in list(books.pending.items()):
            before = self.made.get(op_id, [])
            books.counts["in flight, written" if before else "in flight, not written"] += 1
            try:
                reply = worker.perform(self.grid, intent)
            except GridError as error:
                assert not before
                books.refuse(intent, error.code)
            else:
                assert worker.perform(self.grid, intent) == reply
                self._happened_once(intent, reply, before)
                books.take(intent, reply)
            del books.pending[op_id]
        held = self._held()
        assert held.keys() <= books.live.keys()
        assert held.keys() - books.mortal == books.live.keys() - books.mortal
        assert all(held[id] == books.live[id] for id in held)
        for id in books.mortal & books.live.keys():  # no lapse is to disturb what follows
            self.grid.for_owner(books.live[id]["owner"]).release(id)
            books.close(books.live[id])

    def _happened_once(self, intent, reply, before):
        events = [event.subject for event in events_of(self.grid) if event.op_id == intent["op_id"]]
        assert len(set(events)) == len(events)
        if before:
            assert events == before
        if intent["call"] in MAKING and events:  # else the holder had it already
            assert sorted(events) == sorted(fact["id"] for fact in reply)


def fill_up(grid):
    """Every node can be filled to the last part, then holds nothing more, and can be emptied."""
    before = {status.name: status.available for status in grid.nodes()}
    made = []
    for status in grid.nodes():
        plain = status.available.without("gpu", "gpu_memory")
        if plain:
            made.append(grid.allocate(plain, node=status.name, holder=f"fill-{status.name}"))
        free = sum(not (gpu.share or gpu.memory_bytes) for gpu in status.gpus)
        if free:
            made.append(grid.allocate(gpu=free, node=status.name))
        left = grid.node(status.name).available
        assert not left.without("gpu", "gpu_memory")
        assert left["gpu"] == status.available["gpu"] - free * 10_000
        for one in (*({name: "1B" if name == "memory" else 0.0001} for name in plain), {"gpu": 1}):
            if status.total[next(iter(one))]:
                with pytest.raises(NoRoom):
                    grid.allocate(one, node=status.name)
    for held in made:
        held.release()
    assert {status.name: status.available for status in grid.nodes()} == before


def furnish(path):
    """A store with nodes that are soon full."""
    with Grid.at(str(path)) as grid:
        grid.register_node("a", cpu=4, memory="2GB")
        grid.register_node("b", cpu=6, memory="4GB", gpus=[{"memory": "10GB"}] * 3)
        grid.register_node("c", cpu=2.5)


class EndToEnd:
    """What the test modules share."""

    Books = Books
    Aftermath = Aftermath
    SHORT_S = worker.SHORT_S
    furnish = staticmethod(furnish)
    fill_up = staticmethod(fill_up)
    check_file = staticmethod(check_file)
    events_of = staticmethod(events_of)
    random = staticmethod(random.Random)


@pytest.fixture
def tools():
    return EndToEnd


@pytest.fixture
def nursery():
    made = Nursery()
    yield made
    made.close()
