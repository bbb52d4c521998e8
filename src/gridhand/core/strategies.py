"""How the nodes that fit are ranked: one small function each, in a map of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gridhand.core.errors import InvalidInput

if TYPE_CHECKING:
    from gridhand.core.placement import Snapshot
    from gridhand.core.requests import Request


class Strategy(Protocol):
    """How good each fitting node is for what is asked. Higher wins; ties go to the first row."""

    def __call__(
        self, asked: Request, snapshot: Snapshot, rows: Sequence[int]
    ) -> Sequence[float]: ...


def first_available(asked: Request, snapshot: Snapshot, rows: Sequence[int]) -> Sequence[float]:
    """Take nodes as they come, in the order of their names."""
    return [0.0] * len(rows)


def best_fit(asked: Request, snapshot: Snapshot, rows: Sequence[int]) -> Sequence[float]:
    """Leave the least behind, as a part of what the node has; keep off unneeded GPUs."""
    return [_tightness(asked, snapshot, row) for row in rows]


def _tightness(asked: Request, snapshot: Snapshot, row: int) -> float:
    use = snapshot.use(row)
    total, held = use.total, use.held
    left = 0.0
    for name, amount in asked.amounts.pairs:
        left += (total[name] - held.get(name, 0) - amount) / total[name]
    return -left - (len(asked.amounts) + 1 if use.devices and asked.gpu is None else 0)


STRATEGIES: Mapping[str, Strategy] = {"best_fit": best_fit, "first_available": first_available}


def strategy_named(given: str | Callable[..., Sequence[float]]) -> Strategy:
    """The built-in of that name, or the caller's own function as it is."""
    if callable(given):
        return given
    if not isinstance(given, str) or given not in STRATEGIES:
        raise InvalidInput("strategy", given, f"one of {', '.join(sorted(STRATEGIES))}")
    return STRATEGIES[given]
