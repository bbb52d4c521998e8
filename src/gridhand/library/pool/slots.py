"""Slots: the jobs whose commands are the workers of a pool.

A slot is an attached job like any other, so what it holds, its limits, its end with this process,
and why it waits are what they are for all jobs. One thread asks the controller for them: as many as
there are calls that wait and room for, in one submission, so that those for which there is no room
yet have their place in the queue. Calls themselves never come this way.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.client import routes
from gridhand.core.errors import (
    AllocationBusy,
    CallFailed,
    CallTimeout,
    GridError,
    MoveRefused,
    OutOfMemory,
    UnknownAllocation,
    UnknownJob,
    WorkerLost,
)
from gridhand.core.names import check_label
from gridhand.core.requests import Request
from gridhand.core.resources import UNIT
from gridhand.library.asking import Asking
from gridhand.library.children import MOST_APART, Children, most_children, program
from gridhand.library.jobs import cancelling, looking, text_of
from gridhand.library.nested import Nested
from gridhand.library.submitting import Submitting, submission

if TYPE_CHECKING:
    from gridhand.core.views import Status
    from gridhand.library.pool import Pool
    from gridhand.library.remote import Remote
    from gridhand.library.shapes import Call, Shape, Worker

_GRACE_S = 0.1
_SOON_S = 0.02
_LATER_S = 0.5
_LOOK_S = 0.15
_EXPLAINED_S = 10.0
_KNOWN_S = 2.0  # for how long the size of the cluster is taken as known
_MOST_ASKED = 500
_FAILURES = 3
_CLOSING_S = 5.0
_BY_THEMSELVES_S = 0.3
_OPEN = ("queued", "running")
NAMED = {
    "name": None, "priority": None, "task_type": None, "time_limit": None, "retries": 0,
    "retry_on": None, "after": (), "env": None, "cwd": None, "stdin": None, "stdout": None,
    "stderr": None, "detach": False, "within": None,
}  # fmt: skip


class Lost(NamedTuple):
    """A worker that is gone, and the call that it took with it."""

    worker: Worker
    call: Call
    since: float


class Slots:
    """Asks the controller for a pool; what it changes there it changes under the pool's lock."""

    def __init__(self, pool: Pool, remote: Remote, owner: str, folder: str) -> None:
        self._pool = pool
        self._remote = remote
        self._owner = owner
        self._folder = folder
        self._children = Children(folder)
        self._nested = Nested(pool, remote, owner)
        self._woken = threading.Event()
        self._lost: list[Lost] = []
        self._unwanted: list[str] = []
        self._jobs: set[str] = set()  # all that may be open
        self._known: tuple[float, Status] | None = None
        self._looked = 0.0
        self._again = False  # something is to be asked for once more, soon
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gridhand-slots", daemon=True)
        self._thread.start()

    # ---- from any thread

    def wake(self) -> None:
        self._woken.set()

    def explain(self, worker: Worker, call: Call) -> None:
        """Find out why the worker ended, and tell the call."""
        self._lost.append(Lost(worker, call, time.monotonic()))
        self.wake()

    def end(self, jobs: list[str]) -> None:
        """These are not wanted any more, whatever they are doing."""
        self._unwanted += jobs
        self.wake()

    def close(self) -> None:
        """Come back when all of them are over, and with them all that they held."""
        self._closed = True
        self.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)
        for shape in self._pool.shapes():
            self._unwanted += self._pool.surplus(shape)
        begin = time.monotonic()
        try:
            self._cancel()
            while (left := self._open()) and time.monotonic() - begin < _CLOSING_S:
                if time.monotonic() - begin > _BY_THEMSELVES_S:
                    self._unwanted += left
                    self._cancel()
                time.sleep(_SOON_S)
        except GridError:
            pass  # what is left ends with the session
        self._children.close(_BY_THEMSELVES_S)

    # ---- the thread

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            pause: float | None = None
            try:
                shapes = self._pool.shapes()
                for shape in shapes:
                    self._ask_for(shape)
                self._nested.help(shapes, self._known and self._known[1])
                self._cancel()
                if self._lost:
                    self._explain()
                    pause = _SOON_S
                if self._again:
                    self._again, pause = False, _SOON_S
                if self._look():
                    pause = min(pause or _LOOK_S, _LOOK_S)
            except Exception as error:  # whatever it is, those who wait are to hear of it
                self._pool.fail_waiting(error)
                pause = _LATER_S
            self._woken.wait(pause)

    def _ask_for(self, shape: Shape) -> None:
        count = self._pool.to_ask(shape, self._most)
        surplus = self._pool.surplus(shape)
        if surplus:
            self._unwanted += surplus
        if not count:
            return
        if shape.free:
            self._start(shape, count)
            return
        try:
            made = self._remote.call(self._submitting(shape, min(count, _MOST_ASKED)))
        except AllocationBusy:  # the worker before is about to be gone
            self._pool.asked(shape, count, [])
            self._again = True
            return
        except GridError as error:
            self._pool.asked(shape, count, [])
            if shape.held and isinstance(error, UnknownAllocation | MoveRefused):
                gone = f"what was held for it ({shape.held}) is not any more"
                error = CallFailed("", "node_lost", gone)
            self._pool.fail_waiting(error, shape)
            return
        ids = [str(job["id"]) for job in made]
        self._jobs.update(ids)
        self._pool.asked(shape, count, ids)

    def _start(self, shape: Shape, count: int) -> None:
        """Workers that need no job, because nothing is to be held for their calls."""
        try:
            ids = [self._children.start(shape) for _ in range(count)]
        except OSError as error:
            self._pool.asked(shape, count, [])
            said = f"no worker could be started: {error}"
            self._pool.fail_waiting(WorkerLost("", "start_failed", said), shape)
            return
        self._pool.asked(shape, count, ids)

    def _submitting(self, shape: Shape, count: int) -> Submitting:
        named = {**NAMED, "name": _name(shape), "within": shape.held or None}
        array = f"1-{count}" if count > 1 else None
        words = program(self._folder, str(shape.number))
        asked = None if shape.held else shape.request
        body = submission(words, asked, {}, local=True, array=array, **named)
        return Submitting(self._owner, None, {**body, "grace_s": _GRACE_S})

    def _most(self, shape: Shape) -> tuple[int, int]:
        """How many of these the whole cluster could hold, and how many to begin with."""
        if shape.held:
            return 1, 1
        if shape.free:
            most = MOST_APART if shape.apart else most_children()
            return most, most
        now = time.monotonic()
        if self._known is None or now - self._known[0] > _KNOWN_S:
            self._known = now, self._remote.call(self._remote.status())
        status = self._known[1]
        return most_slots(status, shape.request), most_slots(status, shape.request, whole=True)

    def _cancel(self) -> None:
        while self._unwanted:
            job = self._unwanted.pop()
            if not self._children.end(job):
                with suppress(UnknownJob):  # so old that it was forgotten
                    self._remote.call(cancelling(self._owner, job))

    def _explain(self) -> None:
        """Look at each once: how it ended may not be known yet."""
        for lost in list(self._lost):
            late = time.monotonic() - lost.since > _EXPLAINED_S
            try:
                facts = self._facts(lost.worker.job)
            except GridError as error:  # nobody can tell now
                if late:
                    self._tell(lost, WorkerLost(lost.call.name, "worker_lost", str(error)))
                continue
            attempt = _attempt(facts, lost.worker.attempt)
            over = attempt.get("ended_at") is not None or facts["state"] not in _OPEN
            if over or late:
                self._tell(lost, how_lost(lost.call.name, lost.worker, facts, attempt))

    def _tell(self, lost: Lost, error: GridError) -> None:
        self._lost.remove(lost)
        self._jobs.discard(lost.worker.job)
        self._pool.fail(lost.call, error)

    def _look(self) -> bool:
        """Whether some have not come yet. One that never will is found out here."""
        waiting = self._pool.awaited()
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._children.reap()
            for shape, job in waiting:
                facts = self._facts(job)
                shape.no_room = facts["state"] == "queued"
                if facts["state"] not in _OPEN:
                    self._never_came(shape, facts)
        return bool(waiting)

    def _never_came(self, shape: Shape, facts: dict[str, Any]) -> None:
        self._jobs.discard(facts["id"])
        said = str(facts["message"] or f"it ended as {facts['state']} ({facts['reason']})")
        if facts["reason"] == "exit" and shape.free is False:
            client = self._remote.client(self._owner)
            said += f": {text_of(client, facts['id'], 'stderr').strip()[-500:]}"
        self._pool.did_not_come(shape, str(facts["id"]), said, _FAILURES)

    def _facts(self, job: str) -> dict[str, Any]:
        return self._children.facts(job) or self._remote.call(looking(job))

    def _open(self) -> set[str]:
        ask = routes.jobs(("open",), self._owner, None, 10_000)
        jobs = self._remote.call(Asking(None, ask, list))
        return self._jobs & {str(job["id"]) for job in jobs}


def _name(shape: Shape) -> str:
    """What such a job is called in lists: as the first function that asks for it."""
    try:
        return check_label(shape.first_name(), "name")
    except GridError:
        return "function"


def most_slots(status: Status, request: Request, *, whole: bool = False) -> int:
    """At most so many have room in the whole cluster, if it were empty. At least 1: it may grow.

    As many as have `whole` cores is less, for those who share one.
    """
    found = 1
    for choice in request.choices():
        asked = choice.resources.parts()
        if whole and "cpu" in asked:
            asked["cpu"] = max(asked["cpu"], UNIT)
        count = 0
        for node in status.nodes:
            if choice.node in (None, node.name):
                count += min(
                    (node.total[name] // amount for name, amount in asked.items()), default=1
                )
        found = max(found, count)
    return found


def _attempt(facts: dict[str, Any], number: int) -> dict[str, Any]:
    for one in facts["attempts"]:
        if one["number"] == number:
            return dict(one)
    return {}


def how_lost(
    name: str, worker: Worker, facts: dict[str, Any], attempt: dict[str, Any]
) -> GridError:
    """The error for the call that a worker took with it."""
    who = worker.job if worker.shape.free else f"job {worker.job}"
    return _lost(name, f"its worker is gone ({who}): ", facts, attempt)


def how_ended(name: str, facts: dict[str, Any]) -> GridError:
    """The error for a call that was a job of its own, and has left no result."""
    attempt = facts["attempts"][-1] if facts["attempts"] else {}
    reason = attempt.get("reason") or facts["reason"]
    if reason == "timeout":
        return CallTimeout(name, facts["time_limit_s"] or 0.0)
    return _lost(name, f"job {facts['id']} has no result: ", facts, attempt)


def _lost(name: str, who: str, facts: dict[str, Any], attempt: dict[str, Any]) -> GridError:
    reason = str(attempt.get("reason") or facts["reason"] or "worker_lost")
    said = attempt.get("message") or facts["message"]
    if reason == "oom":
        limit = facts["request"].get("memory")
        return OutOfMemory(name, said, limit, attempt.get("peak_memory_bytes"))
    if not said:
        signal, code = attempt.get("signal"), attempt.get("exit_code")
        said = f"it is {facts['state']}" if code is None else f"it exited with code {code}"
        said = said if signal is None else f"signal {signal} ended it"
    return WorkerLost(name, reason, f"{who}{said}")


def timed_out(call: Call) -> GridError:
    return CallTimeout(call.name, call.limit_s or 0.0)
