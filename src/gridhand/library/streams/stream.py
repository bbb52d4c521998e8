"""A stream: a graph whose functions stay warm while items are pushed through it.

Each function is a stage with workers of its own, which hold its resources from the start of the
stream to its end. One thread moves items from stage to stage: it receives the workers' messages,
asks `StreamRun` what follows, and sends the next items.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gridhand.core.errors import CallFailed, FunctionFailed, GraphTimeout, GridClosed, OutOfMemory
from gridhand.core.graph.stream_run import Outcome, ReadyItem, StreamRun
from gridhand.core.html import table
from gridhand.library.functions.function_runner import FunctionCall, FunctionRunner
from gridhand.library.streams.stage import Stage, WaitingItem
from gridhand.library.streams.stage_ports import Answered, Disconnected, Joined, error_of
from gridhand.library.streams.stream_future import StreamFuture, UnreadItems
from gridhand.worker.stage_worker import SETUP, Answer

if TYPE_CHECKING:
    from gridhand.core.model.requests import Request
    from gridhand.library.streams.stage_ports import StagePort, Wiring

MOST_LOSSES = 3  # workers that may be lost with one item before it fails
_ENDING_S = 10.0


class Pushed(NamedTuple):
    """A message: an item has been pushed."""

    future: StreamFuture
    values: dict[str, Any]


class Withdrawn(NamedTuple):
    """A message: nobody wants this item any more."""

    number: int


class WorkerEnded(NamedTuple):
    """A message: the call that ran a worker of this stage has ended."""

    stage: str
    call: Future[Any]


class Stop(NamedTuple):
    at_once: bool = False


class Stream:
    """Push items, iterate over the results in the order of the pushes, then stop it.

    A failed item yields its `FunctionFailed` in its place, and later items continue. Any number of
    threads may push, iterate and map at the same time: every item has a future of its own, so no
    result reaches anybody but its reader.
    """

    def __init__(
        self,
        run: StreamRun,
        caller: FunctionRunner,
        wiring: Wiring,
        inbox: queue.SimpleQueue[Any],
        requests: dict[str, Request],
        *,
        capacity: int,
    ) -> None:
        self._run = run
        self._caller = caller
        self._wiring = wiring
        self._inbox = inbox
        self._requests = requests
        self._stages = {id: Stage(run.functions[id], plan) for id, plan in run.plans.items()}
        self._of: dict[StagePort, Stage] = {}
        self._room = threading.Semaphore(capacity)
        self.capacity = capacity
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._open: dict[int, StreamFuture] = {}  # of the stream's thread
        self._unread = UnreadItems()  # of `push`, for those who iterate
        self._stopping = False
        self._ready = False
        self._over = False
        self._failure: BaseException | None = None
        self._name = f"s{os.urandom(5).hex()}"
        self._thread = threading.Thread(target=self._run_loop, name="gridhand-stream", daemon=True)

    def begin(self, timeout_s: float | None) -> None:
        """Start every stage and return when each has its workers."""
        for stage in self._stages.values():
            for _ in range(stage.function.parallelism):
                self._start_worker(stage)
        self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._ready or self._over, timeout_s):
                missing = [id for id, stage in self._stages.items() if not stage.complete]
                there = len(self._stages) - len(missing)
                self._failure = GraphTimeout(timeout_s or 0, there, len(self._stages), missing)
        if self._failure is not None:
            self.stop(at_once=True)
            raise self._failure

    # ---- for users

    def push(self, *value: Any, timeout: float | None = None, **inputs: Any) -> StreamFuture:
        """Push one item: its value or, for a graph with several inputs, one value by input id.

        Return its future. Waits while `capacity` items are in the stream, at most `timeout`
        seconds, then raises `TimeoutError`.
        """
        return self._push(self._run.read(value, inputs), timeout, keep=True)

    def _push(self, values: dict[str, Any], timeout: float | None, *, keep: bool) -> StreamFuture:
        """Hand an item to the stream's thread; `keep` its result for those who iterate."""
        self._check()
        if not self._room.acquire(timeout=timeout):
            raise TimeoutError(f"the stream is full: {self.capacity} items and none finished")
        future = StreamFuture(next(self._numbers), self._withdraw)
        try:
            packed = {id: self._wiring.pack(one) for id, one in values.items()}
            with self._changed:
                self._check()
                self._inbox.put(Pushed(future, packed))
                if keep:
                    self._unread.add(future)
        except BaseException:
            self._room.release()
            raise
        return future

    def _withdraw(self, number: int) -> None:
        self._inbox.put(Withdrawn(number))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping:
            raise GridClosed("this stream was stopped", hint="Start another stream.")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while self.wait_for_next():
            if (future := self.take_next()) is not None:
                return self.outcome(future)
        raise StopIteration

    def wait_for_next(self, timeout: float | None = None) -> bool:
        """Wait until the next pushed item has ended; return whether there is such an item.

        Raise the error of a stream that has failed, and `TimeoutError` after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_next_known, timeout):
                raise TimeoutError("no pushed item has ended")
            if not self._unread and self._failure is not None:
                raise self._failure
            return bool(self._unread)

    def take_next(self) -> StreamFuture | None:
        """Take the next pushed item if it has ended; None if another reader was quicker."""
        with self._changed:
            return self._unread.take_ended()

    def _is_next_known(self) -> bool:
        return self._unread.first_has_ended() if self._unread else self._over

    def outcome(self, future: StreamFuture) -> Any:
        """Return the result of an item or its error; raise if it was the stream that failed."""
        error = future.exception()
        if error is None:
            return future.result()
        if error is self._failure or not isinstance(error, FunctionFailed):
            raise error
        return error

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Push every item and yield the result of each, in order, within the stream's capacity.

        The results reach nobody else. If the iterator is abandoned, its items are given up.
        """
        futures: deque[StreamFuture] = deque()
        try:
            for item in items:
                if len(futures) >= self.capacity:
                    yield self.outcome(futures.popleft())
                futures.append(self.push_for_map(item))
            while futures:
                yield self.outcome(futures.popleft())
        finally:
            for future in futures:
                future.cancel()

    def push_for_map(self, item: Any, timeout: float | None = None) -> StreamFuture:
        """Push an item whose result those who iterate over the stream do not get."""
        return self._push(self._run.read((item,), {}), timeout, keep=False)

    def stop(self, *, at_once: bool = False) -> None:
        """Refuse further items, finish those in the stream, and release the resources.

        Results can still be read afterwards. With `at_once`, unfinished items are dropped.
        """
        with self._changed:  # so that what was pushed before is in the inbox before this
            self._stopping = True
            self._inbox.put(Stop(at_once))
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.stop(at_once=kind is not None)

    def __repr__(self) -> str:
        state = "stopped" if self._over else "running"
        names = ", ".join(self._stages)
        return f"<stream {state}: {names}; {self._run.open} items in the stream>"

    def _repr_html_(self) -> str:
        rows = [(id, len(stage.ports)) for id, stage in self._stages.items()]
        return table(("stage", "workers"), rows, repr(self))

    # ---- the stream's thread

    def _run_loop(self) -> None:
        try:
            while not self._finished():
                self._receive()
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            self._end()

    def _finished(self) -> bool:
        return self._failure is not None or (self._flushing and not self._run.open)

    _flushing = False

    def _receive(self) -> None:
        messages = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._inbox.get(timeout=self._patience_s()))
            while True:
                messages.append(self._inbox.get_nowait())
        for message in messages:
            self._handle(message)
        if any(type(message) is Withdrawn for message in messages):
            for stage in self._stages.values():
                stage.keep(self._run.is_open)
        now = time.monotonic()
        for number, joining in self._run.late(now):
            late = TimeoutError("the other parts of this item did not come in time")
            self._fail(number, FunctionFailed(joining, late))
        for one in self._stages.values():
            for port, items in one.to_send(now, flushing=self._flushing):
                port.send(items)
        self._publish()

    def _patience_s(self) -> float | None:
        dues = [stage.due() for stage in self._stages.values()]
        known = [due for due in (*dues, self._run.next_late()) if due is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _handle(self, message: Any) -> None:
        match message:
            case Pushed(future, values):
                self._open[future.number] = future
                self._put(self._run.push(future.number, values, time.monotonic()))
            case Answered(port, answers):
                for answer in answers:
                    self._answered(port, answer)
            case Joined(id, port):
                self._of[port] = self._stages[id]
            case Disconnected(port):
                self._lost(port)
            case WorkerEnded(id, call):
                self._worker_ended(self._stages[id], call)
            case Withdrawn(number):
                self._drop(number)
            case Stop(at_once):
                self._flushing = True
                if at_once:
                    self._failure = self._failure or GridClosed("this stream was stopped")

    def _put(self, ready: Iterable[ReadyItem]) -> None:
        now = time.monotonic()
        for one in ready:
            self._stages[one.stage].put(one, now)

    def _answered(self, port: StagePort, answer: Answer) -> None:
        stage = self._of[port]
        if answer.number == SETUP:
            self._set_up(stage, port, answer)
            return
        sent = stage.take_answered(port, answer.number, answer.seconds)
        if sent is None or not self._run.is_open(sent.item):
            return
        if answer.error is None:
            before = self._run.open
            self._put(self._run.done(stage.id, sent.item, answer.value, time.monotonic()))
            self._release_room(before)
        elif sent.tries <= (stage.function.max_retries or 0):
            stage.put_back(sent._replace(tries=sent.tries + 1), time.monotonic())
        else:
            error = error_of(answer.error, stage.id)
            self._fail(sent.item, FunctionFailed(stage.id, error, sent.tries))

    def _set_up(self, stage: Stage, port: StagePort, answer: Answer) -> None:
        if answer.error is not None:
            self._failure = FunctionFailed(stage.id, error_of(answer.error, stage.id))
            return
        stage.ports[port] = {}
        stage.losses = 0
        self._ready = all(one.complete for one in self._stages.values())

    def _fail(self, number: int, error: FunctionFailed) -> None:
        before = self._run.open
        self._run.failed(number, error)
        self._release_room(before)

    def _drop(self, number: int) -> None:
        before = self._run.open
        self._run.drop(number)
        self._open.pop(number, None)
        self._release_room(before)

    def _release_room(self, before: int) -> None:
        if before > self._run.open:
            self._room.release(before - self._run.open)

    def _publish(self) -> None:
        """Settle the futures of the items that have ended."""
        for number, outcome in self._run.take():
            if (future := self._open.pop(number, None)) is not None:
                future.settle(outcome)
        with self._changed:
            self._changed.notify_all()

    # ---- workers

    def _start_worker(self, stage: Stage) -> None:
        code, args = self._wiring.call(stage.id, stage.work)
        request = self._requests[stage.id]
        mark = f"{self._name}/{stage.id}"
        call = self._caller.submit(FunctionCall(code, request, args, name=stage.id, apart=mark))
        stage.calls.add(call)
        call.add_done_callback(lambda done: self._inbox.put(WorkerEnded(stage.id, done)))

    def _lost(self, port: StagePort) -> None:
        """Try the items of a lost worker again, one at a time: any of them may have killed it."""
        stage = self._of.pop(port, None)
        if stage is not None:
            now = time.monotonic()
            for one in reversed(stage.lost(port)):
                if self._run.is_open(one.item):
                    self._try_again(stage, one, now)

    def _try_again(self, stage: Stage, one: WaitingItem, now: float) -> None:
        if one.losses < MOST_LOSSES:
            stage.put_back(one._replace(losses=one.losses + 1), now)
        else:
            again = "its workers were lost repeatedly"
            lost: CallFailed = CallFailed(stage.id, "worker_lost", again)
            if isinstance(stage.last_loss, OutOfMemory):
                lost = stage.last_loss
            self._fail(one.item, FunctionFailed(stage.id, lost, one.tries + one.losses))

    def _worker_ended(self, stage: Stage, call: Future[Any]) -> None:
        """Replace a lost worker; end the stream if the stage can never run."""
        stage.calls.discard(call)
        try:
            error = call.exception()
        except CancelledError:
            return
        if error is None or self._failure is not None:
            return
        hopeless = stage.losses >= MOST_LOSSES * stage.function.parallelism
        if hopeless or not (isinstance(error, CallFailed) and _was_lost(error)):
            self._failure = FunctionFailed(stage.id, error)
            return
        stage.last_loss = error
        stage.losses += 1
        self._start_worker(stage)

    def _end(self) -> None:
        """Stop the workers and return when their resources are released."""
        calls = [call for stage in self._stages.values() for call in stage.calls]
        for call in calls:
            call.cancel()  # those that still wait for room
        for port in self._of:
            port.close()
        self._wiring.close()
        if self._failure is not None:
            for call in calls:
                self._caller.stop(call)
        deadline = time.monotonic() + _ENDING_S
        for call in calls:
            with contextlib.suppress(Exception, CancelledError):
                call.exception(timeout=max(0.0, deadline - time.monotonic()))
        self._caller.release(f"{self._name}/")
        self._publish()
        self._give_up()
        self._room.release(self.capacity)  # wake callers of `push`

    def _give_up(self) -> None:
        """End the items that are left with the error of the stream."""
        with self._changed:
            self._stopping = True  # nothing is put into the inbox from now on
            while not self._inbox.empty():
                if type(message := self._inbox.get()) is Pushed:
                    self._open[message.future.number] = message.future
            self._unread.keep_until(self._open)
            self._over = True
            self._changed.notify_all()
        error = self._failure or GridClosed("this stream was stopped")
        for future in self._open.values():
            future.settle(Outcome(None, error))


def _was_lost(error: CallFailed) -> bool:
    """Return whether another worker may succeed, at least with other items."""
    return error.lost or isinstance(error, OutOfMemory)
