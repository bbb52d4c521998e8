"""What a pool notes of its calls: as little as can be, since there are 20,000 in a second.

A note is made of what is there anyway. Whoever reports on the calls reads the notes in a thread of
its own, and sees by itself which of those that are open are running.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.core.errors import GridError
from gridhand.worker import here

if TYPE_CHECKING:
    from gridhand.library.shapes import Call, Worker

MOST_KEPT = 100_000
_LONGEST_NAME = 100
_LONGEST_ERROR = 200


class Said(NamedTuple):
    """What may be the same of many calls."""

    name: str
    state: str
    node: str | None = None
    job: str | None = None
    allocation: str | None = None
    error: str | None = None


class Note(NamedTuple):
    """A call as it is noted; times are those of the monotonic clock.

    Not the call itself: that would keep its value. Of one that is over the state is that of its
    future, and `said` is told by who ran it.
    """

    number: int
    said: str | Said  # its name, where the rest is not said yet
    worker: Worker | None
    submitted: float
    started: float | None
    ended: float | None
    state: str
    error: BaseException | str | None


class Notes:
    """The calls that are open, in the order of their submission, and notes of those that ended."""

    __slots__ = ("asleep", "count", "ended", "open", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.open: dict[int, Call] = {}
        # Of tuples as `Note`, which takes longer to make. Nobody may have read them for long.
        self.ended: deque[Any] = deque(maxlen=MOST_KEPT)
        self.count = 0  # of all that ended
        self.asleep = False  # whoever reads the notes wants to be woken by the next call
        self.wake = wake

    def begin(self, call: Call) -> None:
        self.open[call.number] = call
        if self.asleep:
            self.wake()

    def end(self, call: Call) -> None:
        """Its future is done by now."""
        self.open.pop(call.number, None)
        self.count += 1
        future = call.future
        ended = time.monotonic() if call.ended is None else call.ended
        self.ended.append(
            (call.number, call.name, call.worker, call.submitted, call.started, ended,
             future._state, future._exception)
        )  # fmt: skip


def alike(notes: Iterable[Any], since_1970: float) -> list[dict[str, Any]]:
    """The notes as the API takes them: those of which there is the same to say, together.

    `since_1970` is how many seconds there were before those that notes count. The times of a
    worker were measured by another clock, so they are put in order.
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
    said: str | Said,
    worker: Worker | None,
    state: str,
    error: str | None,
    never_begun: bool,
    numbers: list[int],
    submitted_ms: list[int],
    started_ms: list[int | None],
    ended_ms: list[int | None],
) -> dict[str, Any]:
    if not isinstance(said, Said):
        said = _how_ended(said, worker, state, error, never_begun)
    if said.state == "succeeded" and never_begun:
        started_ms = list(submitted_ms)
    times = {"submitted_ms": submitted_ms, "started_ms": started_ms, "ended_ms": ended_ms}
    return {**said._asdict(), "numbers": numbers, **times}


def _how_ended(
    name: str, worker: Worker | None, state: str, error: str | None, never_begun: bool
) -> Said:
    word = "cancelled" if state != "FINISHED" else "succeeded" if error is None else "failed"
    said = said_of(name, word, worker)
    if word == "failed":
        said = said._replace(error=error)
    if worker is None and not never_begun and here.slot is not None:  # in this very process
        node, allocation = here.slot["node"], here.slot["allocation"]
        said = said._replace(node=node or None, allocation=allocation or None)
    return said


def said_of(name: str, state: str, worker: Worker | None) -> Said:
    """What is to say of a call that somebody has run, or was to run."""
    if worker is None:
        return Said(named(name), state)
    return Said(
        named(name), state, worker.node or None, slot_job(worker), worker.allocation or None
    )


def slot_job(worker: Worker) -> str | None:
    """The job that the worker is, if it is one."""
    return worker.job if worker.job[:1].isdecimal() else None


def named(name: str) -> str:
    """The name of a function as it may be shown."""
    if len(name) <= _LONGEST_NAME and name.isprintable() and name.strip():
        return name
    return _printable(name)[:_LONGEST_NAME] or "function"


def short(error: BaseException) -> str:
    """What went wrong, on one line."""
    try:
        said = str(error)
    except Exception:  # a __str__ that fails
        said = ""
    kind = "" if isinstance(error, GridError) and said else type(error).__qualname__
    return _printable(f"{kind}: {said}" if kind and said else kind or said)[:_LONGEST_ERROR]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
