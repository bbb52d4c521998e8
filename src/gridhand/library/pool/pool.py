"""Pool: calls of functions in warm processes, each with just the resources that it asked for.

The resources are held by slots, and a slot is a job (`slots.py`): the controller grants them, and
has no part in the calls themselves. A call goes straight to an idle worker, else it waits in the
line of its shape (`state.py`, `shape.py`); one thread reads what the workers answer, and sends them
the calls that wait (`event_loop.py`). Workers that are idle for a moment are given back.
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

from gridhand.client.launch import say
from gridhand.client.transport import Address
from gridhand.core.errors import CallFailed, GridClosed, GridError
from gridhand.library.functions.function_runner import FunctionCall, Returned
from gridhand.library.functions.future_state import force_cancel, mark_running
from gridhand.library.functions.pickled_function import Functions, packed_arguments
from gridhand.library.functions.values import FileValue, InlineValue, keep_those_in
from gridhand.library.idle_slots import add_holder
from gridhand.library.pool.folder import PoolFolder
from gridhand.library.pool.shape import CallFuture, PendingCall, Shape, WorkerHandle
from gridhand.library.pool.state import Answered, PoolState
from gridhand.library.pool.worker_group import ANY, WorkerGroup
from gridhand.library.submission import with_jobs
from gridhand.posix.temporary_folders import sweep
from gridhand.worker import current_slot, wire
from gridhand.worker.encoded_values import Dumps, Folders, Packed
from gridhand.worker.errors import raised

if TYPE_CHECKING:
    from gridhand.library.backend import Backend
    from gridhand.library.pool.call_reporter import CallReport
    from gridhand.library.pool.event_loop import WorkerLoop
    from gridhand.library.pool.slots import Slots


class Pool:
    """The function runner of a grid whose controller is on this machine. Any thread may use it.

    Nothing is started before the first call.
    """

    def __init__(self, backend: Backend, owner: str, *, linger_s: float | None = None) -> None:
        self._remote = with_jobs(backend)
        self._owner = owner
        self.state = PoolState(linger_s if linger_s is not None else _linger_s())
        self._functions = Functions()
        self._numbers = itertools.count(1)
        self._pid = os.getpid()
        self._folder: PoolFolder | None = None
        self._address = ""
        self._values: Folders
        self._slots: Slots
        self._loop: WorkerLoop
        self._report: CallReport
        _pools.add(self)

    # ---- what a caller does

    def submit(self, call: FunctionCall) -> Future[Returned]:
        return self.start(call, CallFuture())

    def start(
        self, asked: FunctionCall, future: CallFuture, group: WorkerGroup = ANY
    ) -> CallFuture:
        """Queue the call; the future is settled when it ends."""
        state = self.state
        if state.closed or self._folder is None or os.getpid() != self._pid:
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
        call = PendingCall(
            next(self._numbers), future, function, packed, name, asked.time_limit_s, kept
        )
        future.call = call
        with state.lock:
            if state.closed:
                self._refuse()
            shape = call.shape = state.shape_of(asked, group, self._report.notes)
            shape.notes.begin(call)
            if group.broken is not None:
                future.set_exception(group.broken)
                call.over()
                return future
            shape.waiting.append(call)
            if shape.idle:
                self._loop.pump(shape.idle.pop())
                return future
            short = not (shape.workers or shape.asked or shape.asking)
        if short or not call.number & 63:  # else the next tick of the loop will see it
            self._slots.wake()
        return future

    def stop(self, call: Future[Returned]) -> None:
        pending = call.call if isinstance(call, CallFuture) else None
        if pending is None or call.done():
            return
        with self.state.lock:
            worker = pending.worker  # also if that is to be given back after it
            if worker is not None and pending.number in worker.running:
                self._loop.stop(worker, pending)
        if force_cancel(call):
            pending.over()

    def release(self, mark: str) -> None:
        self.give_back(lambda shape: shape.apart.startswith(mark))

    def give_back_idle(self, address: str) -> None:
        if address == self._address:
            self.give_back(lambda shape: True)

    def give_back(self, is_meant: Callable[[Shape], bool]) -> None:
        """End the idle workers of these shapes, and return when what they held is released."""
        if self._folder is None or self.state.closed or os.getpid() != self._pid:
            return
        with self.state.lock:
            self._loop.release_idle(is_meant)
        self._slots.wait_for_unused()

    def close(self) -> None:
        self._end_calls()

    def _end_calls(self) -> int:
        """Close the pool; return how many calls had not ended, and are cancelled."""
        if os.getpid() != self._pid:
            return 0
        with self.state.lock:
            was_closed = self.state.closed
            open_calls = self.state.close()
        if was_closed or self._folder is None:
            return 0
        cancelled = 0
        for call in open_calls:
            cancelled += force_cancel(call.future)
            call.over()
        self._loop.close()
        self._slots.close()
        self._report.close()
        keep_those_in(self._folder.folders)
        self._folder.remove()
        atexit.unregister(self._at_exit)
        return cancelled

    # ---- beginning

    def _begin(self) -> None:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this pool belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        if self.state.closed:
            self._refuse()
        address = Address.parse(self._remote.checked().client(None).address)
        if not address.path:
            raise GridError(
                f"the controller at {address} is on another machine, which cannot call functions"
                " of this process",
                hint='Run a command there: grid.run("python file.py"). For functions use Grid(),'
                " which talks to this machine's controller.",
            )
        with self.state.lock:
            if self._folder is None:
                self._really_begin()

    def _really_begin(self) -> None:
        from gridhand.library.pool.call_reporter import CallReport
        from gridhand.library.pool.event_loop import WorkerLoop
        from gridhand.library.pool.slots import Slots

        sweep()
        folder = PoolFolder()
        self._values = Folders(folder.folders, "c")
        self._loop = WorkerLoop(self, self.state, folder)
        self._slots = Slots(self, self.state, self._remote, self._owner, folder.own)
        self._report = CallReport(self.state, self._remote, self._owner)
        self._folder = folder
        self._address = self._remote.client(None).address
        add_holder(self)
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        if count := self._end_calls():
            calls = "1 call was" if count == 1 else f"{count} calls were"
            say(f"grid: {calls} stopped with this program; detach=True lets calls go on\n")

    def _refuse(self) -> None:
        raise GridClosed("this grid was closed", hint="Open another one.")

    # ---- ends of calls

    def settle(self, answered: Answered, worker: WorkerHandle) -> None:
        """Settle the futures. Not under the lock: callbacks may submit more."""
        node, allocation = worker.node, worker.allocation
        for call, how, data in answered:
            self._tell(call, how, data, node, allocation)

    def _tell(self, call: PendingCall, how: int, data: bytes, node: str, allocation: str) -> None:
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

    def settle_here(self, call: PendingCall, how: int, data: bytes) -> None:
        """Settle a call that was run in this process."""
        slot = current_slot.slot or {}
        self._tell(call, how, data, slot.get("node", ""), slot.get("allocation", ""))

    def packed(self, value: Any, dumps: Dumps) -> Packed:
        return self._values.pack(value, dumps)

    def fail(self, call: PendingCall, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            call.future.set_exception(error)
        call.over()

    def lost(self, worker: WorkerHandle, call: PendingCall) -> None:
        self._slots.explain(worker, call)

    def end_jobs(self, jobs: list[str]) -> None:
        self._slots.end(jobs)

    def fail_waiting(self, error: BaseException, shape: Shape | None = None) -> None:
        """Fail the waiting calls of a shape, or of all shapes that have no worker."""
        with self.state.lock:
            calls = self.state.take_waiting(shape)
        for call in calls:
            if mark_running(call.future):
                self.fail(call, _not_placed(call, error))
            else:
                call.over()

    def look_for_more(self) -> None:
        self._slots.wake()

    # ---- forks

    def forked(self) -> None:
        """In a child process, let go of the parent's connections and files."""
        self.state.lock = threading.Lock()
        if self._folder is not None and not self.state.closed:
            self._loop.forked()
            self._folder.let_go()


def _not_placed(call: PendingCall, error: BaseException) -> BaseException:
    """Return the error of a call that finds no place. One that is about a call stays as it is."""
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
