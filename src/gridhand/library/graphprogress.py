"""How far a run is: told to whoever asked, and drawn on a terminal if it takes a while."""

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


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment. `retried` are the attempts that were in vain."""

    run_id: str
    done: int
    total: int
    running: int
    retried: int
    seconds: float


class Teller(Protocol):
    """Whoever is told how far it is."""

    @property
    def due_s(self) -> float | None:
        """After how many seconds it wants to be told, even if nothing happens before."""

    def tell(self, now: Progress) -> None: ...

    def end(self) -> None: ...


class Nobody:
    """Is not told."""

    due_s = None

    def tell(self, now: Progress) -> None: ...

    def end(self) -> None: ...


class Listener:
    """A function that is called whenever something has changed. What it raises ends the run."""

    due_s = None

    def __init__(self, call: Callable[[Progress], object]) -> None:
        self._call = call
        self._last: Progress | None = None

    def tell(self, now: Progress) -> None:
        if self._last is None or _counts(now) != _counts(self._last):
            self._last = now
            self._call(now)

    def end(self) -> None: ...


class Bar:
    """A bar on the terminal, from when it has taken a while; it is gone when the run is over."""

    def __init__(self, after_s: float) -> None:
        self.due_s: float | None = after_s
        self._bar: RichProgress | None = None
        self._task: TaskID

    def tell(self, now: Progress) -> None:
        if self.due_s is not None:
            if now.seconds < self.due_s:
                return
            self.due_s = None
            self._begin(now)
        if self._bar is not None:
            retried = f", {now.retried} retried" if now.retried else ""
            self._bar.update(
                self._task, completed=now.done, doing=f"{now.running} running{retried}"
            )
            self._bar.start()  # with what is so now; again does nothing

    def _begin(self, now: Progress) -> None:
        # Rich takes a fifth of a second to import, which is nothing by now.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[doing]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(f"run {now.run_id}", total=now.total, doing="")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def teller_for(progress: object) -> Teller:
    """None draws a bar on a terminal if it takes a while, True in any case, False never."""
    if callable(progress):
        return Listener(progress)
    if progress is None:
        return Bar(PATIENCE_S) if sys.stderr is not None and sys.stderr.isatty() else Nobody()
    if progress is True:
        return Bar(0.0)
    if progress is False:
        return Nobody()
    raise InvalidInput("progress", progress, "True, False, None or a function to be told")


def _counts(one: Progress) -> tuple[int, int, int]:
    return one.done, one.running, one.retried
