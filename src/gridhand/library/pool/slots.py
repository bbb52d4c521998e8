"""Slots: the jobs whose commands are the workers of a pool.

A slot is an attached job like any other: it holds resources, has limits, ends with this process,
and its wait can be explained. One thread asks the controller for them, as many as there are calls
waiting and room for, in one submission, so that those for which there is no room yet have their
place in the queue. Calls themselves never go this way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
from gridhand.core.model.names import check_label
from gridhand.core.model.requests import Request, Tie
from gridhand.core.model.resources import UNIT
from gridhand.core.operations import GetStatus
from gridhand.library.job_handle import cancel_job, find_job, read_log
from gridhand.library.pool.local_workers import MOST_APART, Children, most_children, program
from gridhand.library.pool.nested import Nested
from gridhand.library.remote_operations import RemoteRequest
from gridhand.library.submission import RemoteSubmit, submission

if TYPE_CHECKING:
    from gridhand.core.ledger.status import Status
    from gridhand.library.pool.pool import Pool
    from gridhand.library.pool.shape import PendingCall, Shape, WorkerHandle
    from gridhand.library.pool.state import PoolState
    from gridhand.library.remote import Remote

_GRACE_S = 0.1
_SOON_S = 0.02
_LATER_S = 0.5
_LOOK_S = 0.15
_EXPLAINED_S = 10.0
_KNOWN_S = 2.0  # for how long the size of the cluster is taken to be the same
_MOST_ASKED = 500
_FAILURES = 3
_CLOSING_S = 5.0
_NESTED_S = 1.0
_BY_THEMSELVES_S = 0.3
_OPEN = ("queued", "running")
NAMED = {
    "name": None, "priority": None, "task_type": None, "timeout": None, "retries": 0,
    "retry_on": None, "after": (), "env": None, "cwd": None, "stdin": None, "stdout": None,
    "stderr": None, "detach": False, "within": None,
}  # fmt: skip


class SlotLost(NamedTuple):
    """A worker that is gone, and the call that it was running."""

    worker: WorkerHandle
    call: PendingCall
    since: float


class Slots:
    """Asks the controller for the slots of a pool, and finds out why workers were lost."""

    def __init__(
        self, pool: Pool, state: PoolState, remote: Remote, owner: str, folder: str
    ) -> None:
        self._pool = pool
        self._state = state
        self._remote = remote
        self._owner = owner
        self._folder = folder
        self._children = Children(folder)
        self._nested = Nested(pool, remote, owner)
        self._woken = threading.Event()
        self._lost: list[SlotLost] = []
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

    def explain(self, worker: WorkerHandle, call: PendingCall) -> None:
        """Find out why the worker ended, and fail the call with that."""
        self._lost.append(SlotLost(worker, call, time.monotonic()))
        self.wake()

    def end(self, jobs: list[str]) -> None:
        """Cancel these jobs, whatever they are doing."""
        self._unwanted += jobs
        self.wake()

    def close(self) -> None:
        """Return when all slots are over, and what they held is released."""
        self._closed = True
        self.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)
        with self._state.lock:
            for shape in self._state.shapes():
                self._unwanted += self._state.take_surplus(shape)
        with suppress(GridError):  # what is left ends with the session
            self._cancel()
            self._wait_for_end(self._open_jobs, self._cancel)
        self._children.close(_BY_THEMSELVES_S)

    def wait_for_unused(self) -> None:
        """Return when all slots are over that are not in use."""
        if not self._jobs:
            return
        with self._state.lock:
            for shape in self._state.shapes():
                self._unwanted += self._state.take_surplus(shape)
        self.wake()
        with suppress(GridError):  # the controller is away: the caller will be told
            self._wait_for_end(self._unused_jobs, self.wake)

    def _wait_for_end(self, left: Callable[[], set[str]], cancel: Callable[[], None]) -> None:
        """Wait for jobs that end by themselves; cancel those that take too long."""
        begin = time.monotonic()
        while (jobs := left()) and time.monotonic() - begin < _CLOSING_S:
            if time.monotonic() - begin > _BY_THEMSELVES_S:
                self._unwanted += jobs
                cancel()
            time.sleep(_SOON_S)

    def _unused_jobs(self) -> set[str]:
        jobs = self._open_jobs()
        with self._state.lock:
            return jobs - self._state.jobs_in_use()

    # ---- the thread

    def _run(self) -> None:
        while not self._closed:
            self._woken.clear()
            pause: float | None = None
            try:
                with self._state.lock:
                    shapes = self._state.shapes()
                for shape in shapes:
                    self._ask_for(shape)
                if self._nested.help(shapes):
                    pause = _NESTED_S
                self._cancel()
                if self._lost:
                    self._explain()
                    pause = _SOON_S
                if self._again:
                    self._again, pause = False, _SOON_S
                if self._look():
                    pause = min(pause or _LOOK_S, _LOOK_S)
            except Exception as error:  # whatever it is, the calls that wait fail with it
                self._pool.fail_waiting(error)
                pause = _LATER_S
            self._woken.wait(pause)

    def _ask_for(self, shape: Shape) -> None:
        count = self._missing(shape)
        with self._state.lock:
            self._unwanted += self._state.take_surplus(shape)
        if not count:
            return
        if shape.free:
            self._start(shape, count)
            return
        try:
            made = self._remote.run(self._submitting(shape, min(count, _MOST_ASKED)))
        except AllocationBusy:  # the worker before is about to end
            self._asked(shape, count, [])
            self._again = True
            return
        except GridError as error:
            self._asked(shape, count, [])
            if shape.held and isinstance(error, UnknownAllocation | MoveRefused):
                gone = f"the allocation it was to run in ({shape.held}) is gone"
                error = CallFailed("", "node_lost", gone)
            self._pool.fail_waiting(error, shape)
            return
        ids = [str(job["id"]) for job in made]
        self._jobs.update(ids)
        self._asked(shape, count, ids)

    def _missing(self, shape: Shape) -> int:
        state = self._state
        with state.lock:
            if not state.wants_slots(shape, time.monotonic()):
                return 0
        limits = self._most(shape)  # which may ask the controller
        with state.lock:
            return state.ask_for_slots(shape, *limits)

    def _asked(self, shape: Shape, count: int, jobs: list[str]) -> None:
        with self._state.lock:
            self._state.slots_asked(shape, count, jobs, time.monotonic())

    def _start(self, shape: Shape, count: int) -> None:
        """Start workers that need no job, because nothing is held for their calls."""
        try:
            ids = [self._children.start(shape) for _ in range(count)]
        except OSError as error:
            self._asked(shape, count, [])
            said = f"no worker could be started: {error}"
            self._pool.fail_waiting(WorkerLost("", "start_failed", said), shape)
            return
        self._asked(shape, count, ids)

    def _submitting(self, shape: Shape, count: int) -> RemoteSubmit:
        named = {
            **NAMED,
            "name": _name(shape),
            "within": shape.held or None,
            "priority": shape.priority,
        }
        array = f"1-{count}" if count > 1 else None
        words = program(self._folder, str(shape.number))
        asked = None if shape.held else shape.request.tied(Tie.CALLER)
        body = submission(words, asked, {}, local=True, array=array, **named)
        return RemoteSubmit(self._owner, None, {**body, "grace_s": _GRACE_S})

    def _most(self, shape: Shape) -> tuple[int, int]:
        """Return how many of these the whole cluster could hold, and how many to begin with."""
        if shape.held:
            return 1, 1
        if shape.free:
            most = MOST_APART if shape.apart else most_children()
            return most, most
        now = time.monotonic()
        if self._known is None or now - self._known[0] > _KNOWN_S:
            self._known = now, self._remote.run(GetStatus())
        status = self._known[1]
        return most_slots(status, shape.request), most_slots(status, shape.request, whole=True)

    def _cancel(self) -> None:
        while self._unwanted:
            job = self._unwanted.pop()
            if not self._children.end(job):
                with suppress(UnknownJob):  # it was forgotten, so old is it
                    self._remote.run(cancel_job(self._owner, job))

    def _explain(self) -> None:
        """Look at each lost worker once: how it ended may not be known yet."""
        for lost in list(self._lost):
            late = time.monotonic() - lost.since > _EXPLAINED_S
            try:
                facts = self._facts(lost.worker.job)
            except GridError as error:  # the controller is away
                if late:
                    self._tell(lost, WorkerLost(lost.call.name, "worker_lost", str(error)))
                continue
            attempt = _attempt(facts, lost.worker.attempt)
            over = attempt.get("ended_at") is not None or facts["state"] not in _OPEN
            if over or late:
                self._tell(lost, how_lost(lost.call.name, lost.worker, facts, attempt))

    def _tell(self, lost: SlotLost, error: GridError) -> None:
        self._lost.remove(lost)
        self._jobs.discard(lost.worker.job)
        self._pool.fail(lost.call, error)

    def _look(self) -> bool:
        """Return whether some slots have not come yet. One that never will is found here."""
        with self._state.lock:
            waiting = self._state.awaited_slots()
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
            said += f": {read_log(client, facts['id'], 'stderr').strip()[-500:]}"
        with self._state.lock:
            hopeless = self._state.slot_failed(shape, str(facts["id"]), _FAILURES)
        if hopeless:
            why = f"no worker could be started: {said}"
            self._pool.fail_waiting(WorkerLost("", "start_failed", why), shape)

    def _facts(self, job: str) -> dict[str, Any]:
        return self._children.facts(job) or self._remote.run(find_job(job))

    def _open_jobs(self) -> set[str]:
        """Return the slots that are not over."""
        mine = set(self._jobs)
        ask = routes.jobs(("open",), self._owner, None, 10_000)
        jobs = self._remote.run(RemoteRequest(None, ask, list))
        return mine & {str(job["id"]) for job in jobs}


def _name(shape: Shape) -> str:
    """Return the name of such a job: that of the first function that asks for it."""
    try:
        return check_label(shape.first_name(), "name")
    except GridError:
        return "function"


def most_slots(status: Status, request: Request, *, whole: bool = False) -> int:
    """Return how many slots the whole cluster has room for if empty; at least 1: it may grow.

    With `whole`, count at least one core for each: there are fewer if they would share cores.
    """
    found = 1
    for choice in request.choices():
        asked = choice.resources.parts()
        if whole and "cpu" in asked:
            asked["cpu"] = max(asked["cpu"], UNIT)
        count = 0
        for node in status.nodes:
            if choice.node in (None, node.name) and not node.node.remote:
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
    name: str, worker: WorkerHandle, facts: dict[str, Any], attempt: dict[str, Any]
) -> GridError:
    """Return the error of the call that a lost worker was running."""
    who = worker.job if worker.shape.free else f"job {worker.job}"
    return _lost(name, f"its worker is gone ({who}): ", facts, attempt)


def how_ended(name: str, facts: dict[str, Any]) -> GridError:
    """Return the error of a detached call that has left no result."""
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


def timed_out(call: PendingCall) -> GridError:
    return CallTimeout(call.name, call.limit_s or 0.0)
