"""How far a run is: told to whoever asked, and drawn on a terminal if it takes a while.

Whoever wants to know is told again every now and then, as well as when something has ended: nobody
says when a call that waited for room begins to run.
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

PATIENCE_S = 1.0  # a run that is shorter is not worth a bar
_TICK_S = 0.2
_LINE_S = 5.0  # between two lines where there is no terminal


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment. `retried` are the attempts that were in vain."""

    run_id: str
    done: int
    total: int
    running: int
    retried: int
    seconds: float

    @property
    def waiting(self) -> int:
        """Those that are neither done nor running."""
        return self.total - self.done - self.running


class Teller(Protocol):
    """Whoever is told how far it is."""

    @property
    def due_s(self) -> float | None:
        """After how many seconds it wants to be told, even if nothing happens before; None for
        one who never does.
        """

    def tell(self, now: Progress) -> None: ...

    def end(self) -> None: ...


class Nobody:
    """Is not told."""

    due_s = None

    def tell(self, now: Progress) -> None: ...

    def end(self) -> None: ...


class Listener:
    """A function that is called whenever something has changed. What it raises ends the run."""

    def __init__(self, call: Callable[[Progress], object]) -> None:
        self.due_s = _TICK_S
        self._call = call
        self._last: Progress | None = None

    def tell(self, now: Progress) -> None:
        self.due_s = now.seconds + _TICK_S
        if self._last is None or _counts(now) != _counts(self._last):
            self._last = now
            self._call(now)

    def end(self) -> None: ...


class Bar:
    """A bar on the terminal, from when it has taken a while; it is gone when the run is over."""

    def __init__(self, after_s: float) -> None:
        self.due_s = after_s
        self._after_s = after_s
        self._bar: RichProgress | None = None
        self._task: TaskID

    def tell(self, now: Progress) -> None:
        if now.seconds < self._after_s:
            return
        self.due_s = now.seconds + _TICK_S
        bar = self._bar = self._bar or self._made(now)
        bar.update(self._task, completed=now.done, doing=_doing(now))
        bar.start()  # with what is so now; again does nothing

    def _made(self, now: Progress) -> RichProgress:
        # Rich takes a fifth of a second to import, which is nothing by now.
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


class Lines:
    """A line every now and then, and one at the end, where a bar could not move."""

    def __init__(self) -> None:
        self.due_s = 0.0
        self._last: Progress | None = None
        self._shown: Progress | None = None

    def tell(self, now: Progress) -> None:
        self._last = now
        if now.seconds >= self.due_s:
            self.due_s = now.seconds + _LINE_S
            self._show(now)

    def end(self) -> None:
        if self._last is not None and self._last is not self._shown:
            self._show(self._last)

    def _show(self, now: Progress) -> None:
        self._shown = now
        minutes, seconds = divmod(int(now.seconds), 60)
        counts = f"{now.done} of {now.total} done, {_doing(now)}"
        print(f"run {now.run_id}: {counts}, {minutes}:{seconds:02}", file=sys.stderr, flush=True)


def teller_for(progress: object) -> Teller:
    """None draws a bar on a terminal if it takes a while, False never. True does so in any case,
    and prints lines if there is no terminal.
    """
    if callable(progress):
        return Listener(progress)
    if progress is not None and not isinstance(progress, bool):
        raise InvalidInput("progress", progress, "True, False, None or a function to be told")
    if progress is False or sys.stderr is None:
        return Nobody()
    if sys.stderr.isatty():
        return Bar(0.0 if progress else PATIENCE_S)
    if progress is None:
        return Nobody()
    return Bar(0.0) if "ipykernel" in sys.modules else Lines()  # a notebook can move a bar


def _doing(now: Progress) -> str:
    retried = f", {now.retried} retried" if now.retried else ""
    return f"{now.running} running, {now.waiting} waiting{retried}"


def _counts(one: Progress) -> tuple[int, int, int]:
    return one.done, one.running, one.retried
