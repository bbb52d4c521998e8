"""Streams: a graph whose functions stay warm, into which items are pushed.

Each function is a stage with workers of its own, which hold what it costs from the beginning of the
stream to its end. One thread moves items from stage to stage: it hears what workers tell, asks
`StreamRun` what follows from it, and sends that on.
"""

from __future__ import annotations

import contextlib
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
from gridhand.core.html import table
from gridhand.core.streamrun import Outcome, Ready, StreamRun
from gridhand.library.caller import Caller, FunctionCall
from gridhand.library.stageports import Gone, Joined, Told, error_of
from gridhand.library.stages import Stage, Waiting
from gridhand.worker.stage import SETUP, Answer

if TYPE_CHECKING:
    from gridhand.core.requests import Request
    from gridhand.library.stageports import Port, Wiring

MOST_LOSSES = 3  # of one item, with workers that were lost
_ENDING_S = 10.0


class Pushed(NamedTuple):
    values: dict[str, Any]


class Ended(NamedTuple):
    """The call that was a worker of this stage is over."""

    stage: str
    call: Future[Any]


class Stop(NamedTuple):
    at_once: bool = False


class Stream:
    """Push items, iterate over what comes of them, in the order they were pushed; then stop it.

    An item that fails is a `FunctionFailed` in its place, and those after it flow on. Any thread
    may push, and another one iterate.
    """

    def __init__(
        self,
        run: StreamRun,
        caller: Caller,
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
        self._of: dict[Port, Stage] = {}
        self._room = threading.Semaphore(capacity)
        self._capacity = capacity
        self._changed = threading.Condition()
        self._results: deque[Outcome] = deque()
        self._count = 0
        self._stopping = False
        self._ready = False
        self._over = False
        self._failure: BaseException | None = None
        self._name = f"s{os.urandom(5).hex()}"
        self._thread = threading.Thread(target=self._work, name="gridhand-stream", daemon=True)

    def begin(self, timeout_s: float | None) -> None:
        """Start all stages, and come back when each has its workers."""
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

    # ---- for those who use it

    def push(self, *value: Any, timeout: float | None = None, **inputs: Any) -> None:
        """Put an item in: its value, or with several inputs one by the id of each.

        Waits while as many are on their way as may be; `TimeoutError` if that lasts too long.
        """
        values = self._run.read(value, inputs)
        self._check()
        if not self._room.acquire(timeout=timeout):
            raise TimeoutError(f"{self._capacity} items are on their way, and none has come out")
        self._put_in(values)

    def push_now(self, *value: Any, **inputs: Any) -> bool:
        """The same, if that needs no waiting; whether it was so."""
        values = self._run.read(value, inputs)
        self._check()
        if not self._room.acquire(blocking=False):
            return False
        self._put_in(values)
        return True

    def _put_in(self, values: dict[str, Any]) -> None:
        try:
            self._check()
            packed = {id: self._wiring.pack(one) for id, one in values.items()}
        except BaseException:
            self._room.release()
            raise
        self._inbox.put(Pushed(packed))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping:
            raise GridClosed("this stream was stopped", hint="Begin another one.")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._over)
            if self._results:
                outcome = self._results.popleft()
            elif self._failure is not None:
                raise self._failure
            else:
                raise StopIteration
        if outcome.error is not None:
            return outcome.error
        value = outcome.value
        if isinstance(value, dict):  # of several last functions
            return {id: one.load() for id, one in value.items()}
        return value.load()

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Push all of these, and give what comes of each, in order; never more than may be."""
        waiting = 0
        for item in items:
            if waiting >= self._capacity:
                yield next(self)
                waiting -= 1
            self.push(item)
            waiting += 1
        for _ in range(waiting):
            yield next(self)

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more, let what is on its way come out, and give back what is held.

        What has come out stays there to be iterated over. With `at_once` the rest is given up.
        """
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
        return f"<stream {state}: {names}; {self._run.open} items on their way>"

    def _repr_html_(self) -> str:
        rows = [(id, len(stage.ports)) for id, stage in self._stages.items()]
        return table(("stage", "workers"), rows, repr(self))

    # ---- the thread

    def _work(self) -> None:
        try:
            while not self._finished():
                self._hear()
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            self._end()

    def _finished(self) -> bool:
        return self._failure is not None or (self._flushing and not self._run.open)

    _flushing = False

    def _hear(self) -> None:
        messages = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._inbox.get(timeout=self._patience_s()))
            while True:
                messages.append(self._inbox.get_nowait())
        for message in messages:
            self._take(message)
        now = time.monotonic()
        for number, stage in self._run.late(now):
            late = TimeoutError("the other parts of this item did not come in time")
            self._fail(number, FunctionFailed(stage, late))
        for one in self._stages.values():
            for port, items in one.to_send(now, flushing=self._flushing):
                port.send(items)
        self._tell()

    def _patience_s(self) -> float | None:
        dues = [stage.due() for stage in self._stages.values()]
        known = [due for due in (*dues, self._run.next_late()) if due is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _take(self, message: Any) -> None:
        match message:
            case Pushed(values):
                self._put(self._run.push(values, time.monotonic()))
            case Told(port, answers):
                for answer in answers:
                    self._answered(port, answer)
            case Joined(id, port):
                self._of[port] = self._stages[id]
            case Gone(port):
                self._lost(port)
            case Ended(id, call):
                self._worker_ended(self._stages[id], call)
            case Stop(at_once):
                self._flushing = True
                if at_once:
                    self._failure = self._failure or GridClosed("this stream was stopped")

    def _put(self, ready: Iterable[Ready]) -> None:
        now = time.monotonic()
        for one in ready:
            self._stages[one.stage].put(one, now)

    def _answered(self, port: Port, answer: Answer) -> None:
        stage = self._of[port]
        if answer.number == SETUP:
            self._set_up(stage, port, answer)
            return
        sent = stage.answered(port, answer.number, answer.seconds)
        if sent is None or not self._run.is_open(sent.item):
            return
        if answer.error is None:
            before = self._run.open
            self._put(self._run.done(stage.id, sent.item, answer.value, time.monotonic()))
            self._gave_room(before)
        elif sent.tries <= (stage.function.max_retries or 0):
            stage.put_back(sent._replace(tries=sent.tries + 1), time.monotonic())
        else:
            error = error_of(answer.error, stage.id)
            self._fail(sent.item, FunctionFailed(stage.id, error, sent.tries))

    def _set_up(self, stage: Stage, port: Port, answer: Answer) -> None:
        if answer.error is not None:
            self._failure = FunctionFailed(stage.id, error_of(answer.error, stage.id))
            return
        stage.ports[port] = {}
        stage.losses = 0
        self._ready = all(one.complete for one in self._stages.values())

    def _fail(self, number: int, error: FunctionFailed) -> None:
        before = self._run.open
        self._run.failed(number, error)
        self._gave_room(before)

    def _gave_room(self, before: int) -> None:
        if before > self._run.open:
            self._room.release(before - self._run.open)

    def _tell(self) -> None:
        outcomes = self._run.take()
        with self._changed:
            self._results.extend(outcomes)
            self._changed.notify_all()

    # ---- workers

    def _start_worker(self, stage: Stage) -> None:
        code, args = self._wiring.call(stage.id, stage.work)
        request = self._requests[stage.id]
        mark = f"{self._name}/{stage.id}"
        call = self._caller.submit(FunctionCall(code, request, args, name=stage.id, apart=mark))
        stage.calls.add(call)
        call.add_done_callback(lambda done: self._inbox.put(Ended(stage.id, done)))

    def _lost(self, port: Port) -> None:
        """Nobody knows at which of them it was: each is tried again, and each by itself."""
        stage = self._of.pop(port, None)
        if stage is not None:
            now = time.monotonic()
            for one in reversed(stage.lost(port)):
                self._try_again(stage, one, now)

    def _try_again(self, stage: Stage, one: Waiting, now: float) -> None:
        if one.losses < MOST_LOSSES:
            stage.put_back(one._replace(losses=one.losses + 1), now)
        else:
            again = "its workers were lost again and again"
            lost: CallFailed = CallFailed(stage.id, "worker_lost", again)
            if isinstance(stage.last_loss, OutOfMemory):
                lost = stage.last_loss
            self._fail(one.item, FunctionFailed(stage.id, lost, one.tries + one.losses))

    def _worker_ended(self, stage: Stage, call: Future[Any]) -> None:
        """One that was lost is replaced; what can never run ends the stream."""
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
        """Let the workers go, and come back when what they held is given back."""
        calls = [call for stage in self._stages.values() for call in stage.calls]
        for call in calls:
            call.cancel()  # those that have no place yet
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
        with self._changed:
            self._results.extend(self._run.take())
            self._over = True
            self._changed.notify_all()
        self._room.release(self._capacity)  # whoever waits to push is to hear of it


def _was_lost(error: CallFailed) -> bool:
    """Whether another worker may do better, with other items if not with the same."""
    return error.lost or isinstance(error, OutOfMemory)
