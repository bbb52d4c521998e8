"""The log of a pool's calls: as little as possible, since there are 20,000 in a second.

An entry is made of what is there anyway. The reporter reads the log in a thread of its own, and
finds out itself which of the open calls are running.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.core.errors import GridError
from gridhand.worker import current_slot

if TYPE_CHECKING:
    from gridhand.library.pool.shape import PendingCall, WorkerHandle

MOST_KEPT = 100_000
_LONGEST_NAME = 100
_LONGEST_ERROR = 200


class CallSummary(NamedTuple):
    """The facts that many calls may have in common."""

    name: str
    state: str
    node: str | None = None
    job: str | None = None
    allocation: str | None = None
    error: str | None = None


class CallLogEntry(NamedTuple):
    """A call as it is logged; times are those of the monotonic clock.

    Not the call itself: that would keep its value alive. The `state` of a call that is over is that
    of its future.
    """

    number: int
    said: str | CallSummary  # its name, where the rest is not said yet
    worker: WorkerHandle | None
    submitted: float
    started: float | None
    ended: float | None
    state: str
    error: BaseException | str | None


class Notes:
    """The open calls, in the order of their submission, and entries of those that ended."""

    __slots__ = ("asleep", "count", "ended", "open", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.open: dict[int, PendingCall] = {}
        # Plain tuples in the order of `CallLogEntry`: a NamedTuple takes longer to make.
        self.ended: deque[Any] = deque(maxlen=MOST_KEPT)
        self.count = 0  # of all that ended
        self.asleep = False  # the reporter is to be woken by the next call
        self.wake = wake

    def begin(self, call: PendingCall) -> None:
        self.open[call.number] = call
        if self.asleep:
            self.wake()

    def end(self, call: PendingCall) -> None:
        """Log the end of a call, whose future is done."""
        self.open.pop(call.number, None)
        self.count += 1
        future = call.future
        ended = time.monotonic() if call.ended is None else call.ended
        self.ended.append(
            (call.number, call.name, call.worker, call.submitted, call.started, ended,
             future._state, future._exception)
        )  # fmt: skip


def alike(notes: Iterable[Any], since_1970: float) -> list[dict[str, Any]]:
    """Return the entries as the API takes them: calls with the same facts together.

    `since_1970` is the wall time at which the monotonic clock was zero. The times of a worker were
    measured by another clock, so they are put in order.
    """
    found: dict[tuple[Any, ...], tuple[list[Any], ...]] = {}
    for number, said, worker, submitted, started, ended, state, error in notes:
        key = said, worker, state, error, started is None
        columns = found.get(key)
        if columns is None:
            columns = found[key] = [], [], [], []
        numbers, submitted_ms, started_ms, ended_ms = columns
        last = int((since_1970 + submitted) * 1000)
        numbers.append(number)
        submitted_ms.append(last)
        if started is not None:
            last = max(last, int((since_1970 + started) * 1000))
        started_ms.append(None if started is None else last)
        ended_ms.append(None if ended is None else max(last, int((since_1970 + ended) * 1000)))
    return [_entry(*key, *columns) for key, columns in found.items()]


def _entry(
    said: str | CallSummary,
    worker: WorkerHandle | None,
    state: str,
    error: str | None,
    never_begun: bool,
    numbers: list[int],
    submitted_ms: list[int],
    started_ms: list[int | None],
    ended_ms: list[int | None],
) -> dict[str, Any]:
    if not isinstance(said, CallSummary):
        said = _how_ended(said, worker, state, error, never_begun)
    if said.state == "succeeded" and never_begun:
        started_ms = list(submitted_ms)
    times = {"submitted_ms": submitted_ms, "started_ms": started_ms, "ended_ms": ended_ms}
    return {**said._asdict(), "numbers": numbers, **times}


def _how_ended(
    name: str, worker: WorkerHandle | None, state: str, error: str | None, never_begun: bool
) -> CallSummary:
    word = "cancelled" if state != "FINISHED" else "succeeded" if error is None else "failed"
    said = said_of(name, word, worker)
    if word == "failed":
        said = said._replace(error=error)
    if worker is None and not never_begun and current_slot.slot is not None:  # in this very process
        node, allocation = current_slot.slot["node"], current_slot.slot["allocation"]
        said = said._replace(node=node or None, allocation=allocation or None)
    return said


def said_of(name: str, state: str, worker: WorkerHandle | None) -> CallSummary:
    """Return the facts of a call, with those of the worker that it was given to."""
    if worker is None:
        return CallSummary(named(name), state)
    return CallSummary(
        named(name), state, worker.node or None, slot_job(worker), worker.allocation or None
    )


def slot_job(worker: WorkerHandle) -> str | None:
    """Return the job of the worker, if it has one."""
    return worker.job if worker.job[:1].isdecimal() else None


def named(name: str) -> str:
    """Return the name of a function in a form that can be shown."""
    if len(name) <= _LONGEST_NAME and name.isprintable() and name.strip():
        return name
    return _printable(name)[:_LONGEST_NAME] or "function"


def short(error: BaseException) -> str:
    """Return what went wrong, on one line."""
    try:
        said = str(error)
    except Exception:  # a __str__ that fails
        said = ""
    kind = "" if isinstance(error, GridError) and said else type(error).__qualname__
    return _printable(f"{kind}: {said}" if kind and said else kind or said)[:_LONGEST_ERROR]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
