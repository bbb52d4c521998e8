"""Pool: calls of functions in warm processes, each with just what it asked for.

What is held is held by slots, and a slot is a job (`slots.py`): the controller gives them out, and
has no part in the calls themselves. A call goes straight to a worker that has nothing to do, else
it waits in the line of its shape (`shapes.py`); one thread hears what the workers answer, and gives
them what waits (`poolio.py`). Workers that have nothing to do for a moment are given back.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from gridhand.client.transport import Address
from gridhand.core.errors import CallFailed, GridClosed, GridError, WorkerLost
from gridhand.library.caller import FunctionCall, Returned
from gridhand.library.functions import Functions, packed_arguments
from gridhand.library.poolfolder import PoolFolder, sweep
from gridhand.library.shapes import Call, CallFuture, Shape, Worker, begin, force_cancel
from gridhand.library.submitting import with_jobs
from gridhand.library.values import FileValue, InlineValue, keep_those_in
from gridhand.worker import here, wire
from gridhand.worker.failing import raised
from gridhand.worker.values import Dumps, Folders, Packed

if TYPE_CHECKING:
    from gridhand.core.requests import Request
    from gridhand.library.backend import Backend
    from gridhand.library.callreport import CallReport
    from gridhand.library.poolio import Loop
    from gridhand.library.slots import Slots

Group = tuple[bytes | None, int | None]  # what a worker calls first, and at most how many there are
Answered = list[tuple[Call, int, bytes]]
_ANY: Group = (None, None)
_REMEMBERED = 10_000


class Pool:
    """The caller of a grid with a controller on this machine. Any thread may use it.

    Nothing is started before the first call.
    """

    def __init__(self, backend: Backend, owner: str, *, linger_s: float | None = None) -> None:
        self._remote = with_jobs(backend)
        self._owner = owner
        self.linger_s = linger_s if linger_s is not None else _linger_s()
        self.lock = threading.Lock()
        self._functions = Functions()
        self._numbers = itertools.count(1)
        self._count = 0
        self._shapes: dict[tuple[str, Group], Shape] = {}
        self._last: tuple[Request | None, Group, Shape | None] = (None, _ANY, None)
        self._pid = os.getpid()
        self._closed = False
        self._folder: PoolFolder | None = None
        self._values: Folders
        self._slots: Slots
        self._loop: Loop
        self._report: CallReport
        _pools.add(self)

    # ---- what a caller does

    def submit(self, call: FunctionCall) -> Future[Returned]:
        return self.start(call, CallFuture())

    def start(self, asked: FunctionCall, future: CallFuture, group: Group = _ANY) -> CallFuture:
        """Have it called, and its end told to this future."""
        if self._closed or self._folder is None or os.getpid() != self._pid:
            self._begin()
        name = asked.name
        try:
            function = self._functions.packed(asked.code, name)
            packed = packed_arguments(self._values, asked.args, asked.kwargs, name)
        except GridError as error:
            future.set_exception(error)
            return future
        kept: Any = asked.args, asked.kwargs
        if packed[0] == wire.FILE:
            kept = kept, FileValue(os.fsdecode(packed[1]))
        call = Call(next(self._numbers), future, function, packed, name, asked.time_limit_s, kept)
        future.call = call
        with self.lock:
            if self._closed:
                self._refuse()
            request, known, shape = self._last
            alone = asked.held or asked.apart
            if request is not asked.request or known is not group or shape is None or alone:
                shape = self._shape_of(asked, group)
            call.shape = shape
            shape.notes.begin(call)
            if shape.broken is not None:
                future.set_exception(shape.broken)
                call.over()
                return future
            shape.waiting.append(call)
            if shape.idle:
                self._loop.pump(shape.idle.pop())
                return future
            short = not (shape.workers or shape.asked or shape.asking)
        if short or not call.number & 63:  # else those who look now and then will see
            self._slots.wake()
        return future

    def stop(self, call: Future[Returned]) -> None:
        one = call.call if isinstance(call, CallFuture) else None
        if one is None or call.done():
            return
        with self.lock:
            worker = self._worker_of(one)
            if worker is not None:
                self._loop.stop(worker, one)
        if force_cancel(call):
            one.over()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self.lock:
            was, self._closed = self._closed, True
            open_calls = [call for shape in self._shapes.values() for call in shape.waiting]
            workers = [one for shape in self._shapes.values() for one in shape.workers]
            for worker in workers:
                open_calls += worker.running.values()
            for shape in self._shapes.values():
                shape.waiting.clear()
        if was or self._folder is None:
            return
        for call in open_calls:
            force_cancel(call.future)
            call.over()
        self._loop.close()
        self._slots.close()
        self._report.close()
        keep_those_in(self._folder.folders)
        self._folder.remove()
        atexit.unregister(self._at_exit)

    # ---- beginning

    def _begin(self) -> None:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this pool belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        if self._closed:
            self._refuse()
        address = Address.parse(self._remote.checked().client(None).address)
        if not address.path:
            raise GridError(
                f"the controller at {address} is on another machine, which cannot call functions"
                " of this process",
                hint="Use Grid(), which talks to this machine's controller.",
            )
        with self.lock:
            if self._folder is None:
                self._really_begin()

    def _really_begin(self) -> None:
        from gridhand.library.callreport import CallReport
        from gridhand.library.poolio import Loop
        from gridhand.library.slots import Slots

        sweep()
        folder = PoolFolder()
        self._values = Folders(folder.folders, "c")
        self._loop = Loop(self, folder)
        self._slots = Slots(self, self._remote, self._owner, folder.own)
        self._report = CallReport(self, self._remote, self._owner)
        self._folder = folder
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        self.close()

    def _refuse(self) -> None:
        raise GridClosed("this grid was closed", hint="Open another one.")

    def _shape_of(self, asked: FunctionCall, group: Group) -> Shape:
        request, held, apart = asked.request, asked.held, asked.apart
        key = f"{held or request.key()} {apart}", group
        shape = self._shapes.get(key)
        if shape is None:
            self._count += 1
            shape = self._shapes[key] = Shape(
                self._count, request, self._report.notes, *group, held, apart
            )
        if not held and not apart:
            self._last = request, group, shape
        return shape

    def forget_if_over(self, shape: Shape) -> None:
        """What was held for some calls is for these alone. For one who has the lock."""
        if shape.alone and not (shape.waiting or shape.workers or shape.asked or shape.asking):
            self._shapes = {key: one for key, one in self._shapes.items() if one is not shape}

    def _worker_of(self, call: Call) -> Worker | None:
        """Who has it, also if that one is to be given back after it."""
        worker = call.worker
        return worker if worker is not None and call.number in worker.running else None

    # ---- for those who ask the controller

    def shapes(self) -> list[Shape]:
        with self.lock:
            return self.known()

    def known(self) -> list[Shape]:
        """All shapes, for one who has the lock."""
        return list(self._shapes.values())

    def to_ask(self, shape: Shape, most: Callable[[Shape], tuple[int, int]]) -> int:
        """How many more slots to ask for; they count as being asked for from now on."""
        with self.lock:
            shape.forget_cancelled()
            if not shape.missing(1 << 30, 1 << 30) or self._others_starve(shape):
                return 0
        limits = most(shape)
        with self.lock:
            count = shape.missing(*limits)
            shape.asking += count
            return count

    def _others_starve(self, shape: Shape) -> bool:
        """Whether others wait for what this one would get more of."""
        now = self._loop.now()
        others = [one for one in self._shapes.values() if one is not shape]
        return bool(shape.workers) and any(one.starves(now) for one in others)

    def asked(self, shape: Shape, count: int, jobs: list[str]) -> None:
        """So many were asked for, and these came of it."""
        now = self._loop.now()
        with self.lock:
            shape.asking -= count
            for job in jobs:
                if job in shape.early:
                    shape.early.discard(job)
                else:
                    shape.asked[job] = now

    def surplus(self, shape: Shape) -> list[str]:
        """Slots that have not come and for which there is nothing to do any more."""
        with self.lock:
            if shape.waiting or not shape.asked:
                return []
            jobs = list(shape.asked)
            shape.asked.clear()
            if len(shape.unwanted) > _REMEMBERED:  # the oldest are long gone
                shape.unwanted.clear()
            shape.unwanted.update(jobs)  # one that comes before it is told is sent away
            return jobs

    def awaited(self) -> list[tuple[Shape, str]]:
        """The slot of each shape that has been asked for the longest, and has not come."""
        with self.lock:
            found = [(one, next(iter(one.asked), "")) for one in self._shapes.values()]
        return [(shape, job) for shape, job in found if job]

    def did_not_come(self, shape: Shape, job: str, why: str, most: int) -> None:
        with self.lock:
            if shape.asked.pop(job, None) is None:
                return  # it came after all
            shape.failures += 1
            hopeless = shape.failures >= most
        if hopeless:
            shape.failures = 0
            self.fail_waiting(
                WorkerLost("", "start_failed", f"no worker could be started: {why}"), shape
            )

    # ---- for the one who reports on the calls

    def standing(self) -> tuple[dict[int, float], dict[Shape, str | None]]:
        """Since when each call runs that does; and the slot that those of each shape wait for."""
        with self.lock:
            awaited = {one: next(iter(one.asked), None) for one in self._shapes.values()}
            return self._loop.running(), awaited

    def forget(self, cancelled: list[Call]) -> None:
        """Those who wait for these are told that nobody calls them any more."""
        with self.lock:
            for call in cancelled:
                begin(call.future)
                call.over()

    # ---- ends of calls

    def settle(self, answered: Answered, worker: Worker) -> None:
        """Tell the futures. Not under the lock: callbacks may submit more."""
        node, allocation = worker.node, worker.allocation
        for call, how, data in answered:
            self._tell(call, how, data, node, allocation)

    def _tell(self, call: Call, how: int, data: bytes, node: str, allocation: str) -> None:
        if how <= wire.PARTS:
            value: InlineValue | FileValue = InlineValue(how, data)
        elif how == wire.FILE:
            value = FileValue(os.fsdecode(data))
        else:
            self.fail(call, raised(data, call.name))
            return
        try:
            call.future.set_result(Returned(value, node, allocation))
        except InvalidStateError:  # it was stopped just now
            value.drop()
        call.over()  # last: to remove large files takes a moment

    def settle_here(self, call: Call, how: int, data: bytes) -> None:
        """The end of a call that was run in this process."""
        slot = here.slot or {}
        self._tell(call, how, data, slot.get("node", ""), slot.get("allocation", ""))

    def packed(self, value: Any, dumps: Dumps) -> Packed:
        return self._values.pack(value, dumps)

    def fail(self, call: Call, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            call.future.set_exception(error)
        call.over()

    def lost(self, worker: Worker, call: Call) -> None:
        self._slots.explain(worker, call)

    def end_jobs(self, jobs: list[str]) -> None:
        self._slots.end(jobs)

    def fail_waiting(self, error: BaseException, shape: Shape | None = None) -> None:
        with self.lock:
            calls: list[Call] = []
            for one in [shape] if shape is not None else list(self._shapes.values()):
                if shape is not None or not one.workers:
                    calls += one.waiting
                    one.waiting.clear()
        for call in calls:
            if begin(call.future):
                self.fail(call, _not_placed(call, error))
            else:
                call.over()

    def look_for_more(self) -> None:
        self._slots.wake()

    # ---- forks

    def forked(self) -> None:
        """In a child: what is open is the parent's."""
        self.lock = threading.Lock()
        if self._folder is not None and not self._closed:
            self._loop.forked()
            self._folder.let_go()


def _not_placed(call: Call, error: BaseException) -> BaseException:
    """What a call is told that there is no place for. One that tells of itself stays as it is."""
    if isinstance(error, CallFailed | BrokenExecutor):
        return error
    hint = error.hint if isinstance(error, GridError) else ""
    failed = CallFailed(call.name, "not_placed", str(error), hint=hint)
    failed.__cause__ = error
    return failed


def _linger_s() -> float:
    try:
        return float(os.environ["GRIDHAND_LINGER_S"])
    except (KeyError, ValueError):
        return 0.5


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.forked()


os.register_at_fork(after_in_child=_after_fork)
