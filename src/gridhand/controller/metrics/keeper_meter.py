"""KeeperMeter: how long a keeper takes to decide and to commit, and how often its store fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

from gridhand.controller.metrics.histogram import Histogram
from gridhand.core.errors import GridError

_More = ParamSpec("_More")
_Decided = TypeVar("_Decided")


class KeeperMeter:
    """Two looks at the clock for each batch, however many operations it has."""

    def __init__(self) -> None:
        self.decisions = Histogram()
        self.commits = Histogram()
        self.store_errors: Counter[str] = Counter()

    def decide(self, work: Callable[[], _Decided], count: int) -> _Decided:
        """Decide a batch, and count each of its operations with its share of the time."""
        began = perf_counter()
        decided = work()
        if count:
            self.decisions.add((perf_counter() - began) / count, count)
        return decided

    def commit(
        self, work: Callable[_More, None], *given: _More.args, **named: _More.kwargs
    ) -> None:
        """Write a batch; only what was written counts."""
        began = perf_counter()
        work(*given, **named)
        self.commits.add(perf_counter() - began)

    def note_failure(self, error: Exception) -> None:
        """Count a batch that could not be written, by the code of its error."""
        self.store_errors[error.code if isinstance(error, GridError) else "internal"] += 1
