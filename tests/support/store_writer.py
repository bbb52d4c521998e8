"""Histories for a store, made by a real ledger, and the kinds of stores under test."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from gridhand.audit import check_history, check_rebuild, check_state
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import AttemptEnd, JobSpec, Reason
from gridhand.core.ledger.allocations import AllocationMove, AllocationState, Lifetime, Terms
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.core.placement.place import Refusal, place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import best_fit
from gridhand.core.rows.jobs import job_row
from gridhand.core.rows.ledger import allocation_row, node_row
from gridhand.store.base import Batch
from gridhand.store.urls import memory_store, store_at


class SqliteFile:
    """A place that outlives its stores: each `store()` is a new owner of the same ledger."""

    durable = True

    def __init__(self, folder):
        self.url = str(Path(folder) / "grid.db")
        self.made = []

    def store(self):
        self.made.append(store_at(self.url))
        return self.made[-1]

    def remove(self): ...


class SqliteMemory:
    durable = False

    def __init__(self, folder):
        self.made = []

    def store(self):
        self.made.append(memory_store())
        return self.made[-1]

    def remove(self): ...


class PostgresDatabase:
    """A database of its own on the server that all tests share."""

    durable = True

    def __init__(self, folder):
        from postgres_server import shared_server

        self._server = shared_server()
        self.url = self._server.new_database()
        self.made = []

    def store(self):
        self.made.append(store_at(self.url))
        return self.made[-1]

    def remove(self):
        self._server.drop(self.url)


PLACES = {
    "sqlite file": SqliteFile,
    "sqlite memory": SqliteMemory,
    "postgresql": PostgresDatabase,
}
DURABLE = [name for name, kind in PLACES.items() if kind.durable]


@contextmanager
def new_place(name):
    """A place of this kind. Stores that a failed test left open are closed."""
    with tempfile.TemporaryDirectory() as folder:
        place = PLACES[name](folder)
        try:
            yield place
        finally:
            for made in place.made:
                made.close()
            place.remove()


class Writer:
    """A ledger whose changes go to a store, a batch at a time."""

    def __init__(self, store, *, epoch=1, next_number=1, next_job=1, now=1_000):
        self.store, self.now = store, now
        self.ledger = Ledger(epoch=epoch, next_number=next_number, next_job=next_job)

    def register(self, name, **more):
        return self.ledger.register(Node.of(name, **more))

    def grant(self, *requests, owner="ann", holder=None, ttl_ms=None, reserve=False):
        """The allocations made, or nothing where there is no room."""
        lease = ttl_ms is not None and not reserve
        terms = Terms(
            owner,
            holder,
            AllocationState.RESERVED if reserve else AllocationState.ACTIVE,
            Lifetime.LEASE if lease else Lifetime.UNTIL_RELEASED,
            ttl_ms,
        )
        placed = [
            place(Request.of(one), Snapshot(self.ledger), best_fit) for one in requests
        ]  # members of a group may be promised the same room here; the ledger then refuses
        if any(isinstance(one, Refusal) for one in placed):
            return []
        return self.ledger.grant(placed, terms, now=self.now)

    def move(self, held, move, **more):
        return self.ledger.move(held.id, move, now=self.now, **more)

    def release(self, held):
        return self.move(held, AllocationMove.RELEASE)

    # ---- jobs

    def submit(self, work=None, *, array=None, index=None, **more):
        """A job that is queued, perhaps as a task of an array."""
        book = self.ledger.jobs
        number = book.next_number
        book.next_number += 1
        id = str(number) if array is None else f"{array}_{index}"
        job = jobs.submit(
            work or self.work(), id=id, number=number, now=self.now, array=array,
            array_index=index, **more,
        )  # fmt: skip
        return self.ledger.put_job("job.submitted", job)

    def submit_array(self, indexes, work=None):
        """The tasks of an array, which share one work."""
        work, first = work or self.work(), str(self.ledger.jobs.next_number)
        return [self.submit(work, array=first, index=index) for index in indexes]

    @staticmethod
    def work(request="cpu=1", *, owner="ann", command=("true",), **more):
        request = request if isinstance(request, Request) else Request.of(request)
        return JobSpec(owner, tuple(command), "/", request, **more)

    def start(self, job):
        """The job with an attempt under way, or None where there is no room."""
        placed = place(job.request, Snapshot(self.ledger), best_fit)
        if isinstance(placed, Refusal):
            return None
        choice = list(job.request.choices()).index(placed.asked)
        terms = Terms(job.work.owner, lifetime=Lifetime.JOB)
        (held,) = self.ledger.grant([placed], terms, now=self.now)
        moved = jobs.start(job, node=held.node, allocation=held.id, now=self.now, choice=choice)
        return self.ledger.put_job("job.started", moved)

    def stop(self, job, reason=Reason.TIMEOUT):
        return self.ledger.put_job("job.stopping", jobs.stop(job, job.attempt.number, reason))

    def cancel(self, job):
        after = jobs.cancel(job, now=self.now)
        return self.ledger.put_job("job.stopping" if after.open else "job.ended", after)

    def end(self, job, reason=Reason.EXIT, code=0, **more):
        """The job after its attempt: what it held is free, and it is over or queued again."""
        attempt = job.attempt
        code = code if reason is Reason.EXIT else None
        how = AttemptEnd(attempt.number, attempt.allocation, reason, code, **more)
        after = jobs.end(job, how, now=self.now)
        self.ledger.move(attempt.allocation, AllocationMove.RELEASE, now=self.now)
        return self.ledger.put_job("job.requeued" if after.open else "job.ended", after)

    def batch(self, *, owner="ann", op_id=None, operations=()):
        entries = [(change, owner, op_id) for change in self.ledger.changes]
        return Batch(self.now, entries, list(operations))

    def commit(self, **more):
        batch = self.batch(**more)
        self.store.commit(batch)
        self.ledger.settle()
        return batch


def all_events(store, step=700):
    found, some = [], store.events(limit=step)
    while some:
        found += some
        some = store.events(after=some[-1].number, limit=step)
    return found


def lawful(store):
    """Fails unless the events lead from the checkpoint to the tables, step by lawful step."""
    contents, start = store.load(), store.checkpoint()
    state = {
        "now": 0,
        "nodes": [node_row(node) for node in contents.nodes],
        "allocations": [allocation_row(held) for held in contents.allocations],
        "jobs": [job_row(job) for job in contents.jobs],
    }
    assert check_state(state) == []
    events = [event._asdict() for event in all_events(store)]
    assert check_history(events, start) == []
    assert check_rebuild(events, state, start) == []


class Negative(Resources):
    """Amounts that the core would never make."""

    def __init__(self, **parts):
        super().__init__({name: abs(amount) for name, amount in parts.items()})
        object.__setattr__(self, "wrong", parts)

    def parts(self):
        return self.wrong

    # Equal to nothing else, lest something that remembers texts by amounts takes it for another.
    __eq__ = object.__eq__
    __hash__ = object.__hash__
