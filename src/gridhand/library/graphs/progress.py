"""Report the progress of a graph run: to a callback, as a terminal bar, or as lines.

Reporters are called at intervals as well as when a function ends, because no event says when a call
that waited for room starts to run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gridhand.core.errors import InvalidInput

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE_S = 1.0  # a shorter run gets no bar
_TICK_S = 0.2
_LINE_S = 5.0  # between two lines without a terminal


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """The state of a run at one moment. `retried` counts failed attempts that were repeated."""

    run_id: str
    done: int
    total: int
    running: int
    retried: int
    seconds: float

    @property
    def waiting(self) -> int:
        """The number of functions that are neither done nor running."""
        return self.total - self.done - self.running


class Reporter(Protocol):
    """Receives the progress of a run."""

    @property
    def due_s(self) -> float | None:
        """Return the run time at which to report even without an event; None for never."""

    def report(self, now: GraphProgress) -> None: ...

    def end(self) -> None: ...


class NoReport:
    """Shows nothing."""

    due_s = None

    def report(self, now: GraphProgress) -> None: ...

    def end(self) -> None: ...


class Listener:
    """Calls a function whenever a count changes. An exception it raises ends the run."""

    def __init__(self, call: Callable[[GraphProgress], object]) -> None:
        self.due_s = _TICK_S
        self._call = call
        self._last: GraphProgress | None = None

    def report(self, now: GraphProgress) -> None:
        self.due_s = now.seconds + _TICK_S
        if self._last is None or _counts(now) != _counts(self._last):
            self._last = now
            self._call(now)

    def end(self) -> None: ...


class Bar:
    """Draws a bar on the terminal after a delay, and removes it when the run ends."""

    def __init__(self, after_s: float) -> None:
        self.due_s = after_s
        self._after_s = after_s
        self._bar: RichProgress | None = None
        self._task: TaskID

    def report(self, now: GraphProgress) -> None:
        if now.seconds < self._after_s:
            return
        self.due_s = now.seconds + _TICK_S
        bar = self._bar = self._bar or self._make_bar(now)
        bar.update(self._task, completed=now.done, doing=_counts_text(now))
        bar.start()  # does nothing if it has started

    def _make_bar(self, now: GraphProgress) -> RichProgress:
        # Imported late: Rich takes a fifth of a second to import.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[doing]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = bar.add_task(f"run {now.run_id}", total=now.total, doing="")
        bar.tasks[0].start_time = bar.get_time() - now.seconds
        return bar

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class TerminalLines:
    """Prints a line every few seconds and one at the end, where a bar could not be redrawn."""

    def __init__(self) -> None:
        self.due_s = 0.0
        self._last: GraphProgress | None = None
        self._shown: GraphProgress | None = None

    def report(self, now: GraphProgress) -> None:
        self._last = now
        if now.seconds >= self.due_s:
            self.due_s = now.seconds + _LINE_S
            self._show(now)

    def end(self) -> None:
        if self._last is not None and self._last is not self._shown:
            self._show(self._last)

    def _show(self, now: GraphProgress) -> None:
        self._shown = now
        minutes, seconds = divmod(int(now.seconds), 60)
        counts = f"{now.done} of {now.total} done, {_counts_text(now)}"
        print(f"run {now.run_id}: {counts}, {minutes}:{seconds:02}", file=sys.stderr, flush=True)


def reporter_for(progress: object) -> Reporter:
    """Return the reporter for the `progress` argument.

    None draws a bar on a terminal when the run takes over a second; False shows nothing; True draws
    the bar at once, or prints lines without a terminal; a function is called with `GraphProgress`.
    """
    if callable(progress):
        return Listener(progress)
    if progress is not None and not isinstance(progress, bool):
        raise InvalidInput("progress", progress, "True, False, None or a function to call")
    if progress is False or sys.stderr is None:
        return NoReport()
    if sys.stderr.isatty():
        return Bar(0.0 if progress else PATIENCE_S)
    if progress is None:
        return NoReport()
    return (
        Bar(0.0) if "ipykernel" in sys.modules else TerminalLines()
    )  # a notebook can redraw a bar


def _counts_text(now: GraphProgress) -> str:
    retried = f", {now.retried} retried" if now.retried else ""
    return f"{now.running} running, {now.waiting} waiting{retried}"


def _counts(progress: GraphProgress) -> tuple[int, int, int]:
    return progress.done, progress.running, progress.retried
