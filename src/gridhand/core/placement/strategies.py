"""Strategies: how fitting nodes are ranked, one small function each, by name.

A strategy scores a node from its `Features`; the highest score wins, and ties go to the first name.
It is written once for numbers and for arrays, so it only adds and multiplies, and calls methods of
the features for the rest. Scores are cached until the node changes, so they may depend on the node,
the request and the mix only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from gridhand.core.errors import InvalidInput
from gridhand.core.model.resources import UNIT, nearest_name
from gridhand.core.placement.features import Features, Number

if TYPE_CHECKING:
    from gridhand.core.model.requests import Request
    from gridhand.core.placement.snapshot import Snapshot

ENTRY_POINTS = "gridhand.strategies"
DEFAULT = "default"
NOWHERE = float("-inf")  # the score of a node that does not fit

Scores = Any  # a list or an array of a score for every node


class OwnStrategy(Protocol):
    """A user's strategy: returns scores for the nodes in `rows`, all of which fit."""

    def __call__(
        self, asked: Request, snapshot: Snapshot, rows: Sequence[int]
    ) -> Sequence[float]: ...


class Strategy:
    """A built-in strategy. `choose` returns the row that wins: by default the first of the best."""

    __slots__ = ("choose", "help", "name", "score")

    def __init__(
        self,
        score: Callable[[Features], Number],
        choose: Callable[[Snapshot, Scores], int | None] | None = None,
    ) -> None:
        self.name, self.help = score.__name__, score.__doc__ or ""
        self.score = score
        self.choose = choose or best_row

    def __call__(self, asked: Request, snapshot: Snapshot, rows: Sequence[int]) -> Sequence[float]:
        """Return the scores of the nodes in `rows`, minus infinity for those that do not fit."""
        scores = snapshot.scores(asked, self)
        return [float(scores[row]) for row in rows]

    def __repr__(self) -> str:
        return f"<strategy {self.name}>"


def best_row(snapshot: Snapshot, scores: Scores) -> int | None:
    """Return the first row with the highest score, if any fits."""
    return _best_between(scores, 0, len(scores))


def _best_between(scores: Scores, first: int, end: int) -> int | None:
    part = scores[first:end]
    if not len(part):
        return None
    if isinstance(part, list):
        row = part.index(max(part))
    else:
        row = int(part.argmax())
    return first + row if part[row] != NOWHERE else None


def _local_unless_chosen(snapshot: Snapshot, scores: Scores) -> int | None:
    best = best_row(snapshot, scores)
    local = None if snapshot.local is None else snapshot.row(snapshot.local)
    return (
        local if best is not None and local is not None and scores[best] == scores[local] else best
    )


def _next_in_turn(snapshot: Snapshot, scores: Scores) -> int | None:
    latest = snapshot.ledger.last_chosen
    after = 0 if latest is None else snapshot.rows_up_to(latest)
    found = _best_between(scores, after, len(scores))
    return found if found is not None else _best_between(scores, 0, after)


def _off_gpus(features: Features, score: Number, penalty: float) -> Number:
    """Return the score, less a penalty where work without GPUs would use a node that has some."""
    return score - penalty * (features.gpus > 0) if features.asked.gpu is None else score


def _left(features: Features) -> list[Number]:
    """Return the part of each requested resource that is left on the node afterwards."""
    left = [
        (features.free(name) - amount) / features.total(name)
        for name, amount in features.asked.amounts.pairs
    ]
    if features.asked.gpu is not None:
        left.append((features.idle - features.taken) / features.gpu_total())
    return left


def _most(features: Features, numbers: list[Number]) -> Number:
    found = numbers[0] if numbers else 0.0
    for number in numbers[1:]:
        found = -features.least(-found, -number)
    return found


def choosing(
    choose: Callable[[Snapshot, Scores], int | None],
) -> Callable[[Callable[[Features], Number]], Strategy]:
    """Make a strategy with its own way to choose among equals."""
    return lambda score: Strategy(score, choose)


@Strategy
def best_fit(features: Features) -> Number:
    """Leave the least on the node, summed over all requested resources."""
    left = _left(features)
    total = left[0] if left else 0.0
    for part in left[1:]:
        total = total + part
    return _off_gpus(features, -total, len(left) + 1)


@Strategy
def pack(features: Features) -> Number:
    """Choose the node whose most plentiful requested resource has the least left."""
    return _off_gpus(features, -_most(features, _left(features)), 2)


@Strategy
def spread(features: Features) -> Number:
    """Choose the node whose scarcest requested resource has the most left."""
    return _off_gpus(features, -_most(features, [-left for left in _left(features)]), 2)


@Strategy
def cheapest(features: Features) -> Number:
    """Choose the node with the lowest price; among equal ones the tightest fit."""
    left = _left(features)
    return -features.price - sum(left) / (len(left) + 1)


@Strategy
def balanced(features: Features) -> Number:
    """Weigh the tightness of the fit by 0.4 and the idleness of the node by 0.6."""
    fit = idle = 0.0
    for name in ("cpu", "memory"):
        free, total = features.free(name), features.total(name)
        fit = fit + features.asked.amounts[name] / (free + 2 * (free <= 0))
        idle = idle + 1 - (total - free) / total
    bonus = 0.2 if features.asked.gpu is not None else 0.0
    return _off_gpus(features, 0.4 * (fit / 2) + 0.6 * (idle / 2) + bonus, 2)


@choosing(_local_unless_chosen)
def first_available(features: Features) -> Number:
    """Choose the most recently chosen node first, then the local one, then by name."""
    return 1.0 * features.chosen


@choosing(_next_in_turn)
def round_robin(features: Features) -> Number:
    """Choose the next node by name after the one that was chosen last."""
    return 0.0 * features.gpus


@Strategy
def fragmentation(features: Features) -> Number:
    """Keep the most room for future requests.

    The cost of a node is the part of its devices that the request strands (idle, but useless to
    typical requests with the CPU, memory and shares that remain), in coarse steps; a penalty for
    breaking a whole device into shares; one for fewer whole devices on the node; and the demand for
    its model. Among equal nodes, the one with the fewest whole devices wins; for work without GPUs,
    the tightest fit.
    """
    gpu = features.asked.gpu
    before, after = features.served()
    stranded = before - after - features.taken
    cost = _STEP * features.floor(stranded / _STEP + 0.5)
    if gpu is None:
        tightest = _TIE * best_fit.score(features) * (features.gpus < 1)
        return _off_gpus(features, tightest - cost, 1)
    left = features.whole - features.opened
    if gpu.devices > 1:
        cost = cost + _TIGHT * left
    else:
        cost = cost + _LEVEL * (features.level(features.whole) - features.level(left))
        if not gpu.exclusive:
            cost = cost + _BREAK * (features.opened > 0)
    price = features.model_price()
    if not features.mix.learned.known:
        cost = cost + _TIE * features.whole
    return -(cost + _WANTED * price * price * features.taken)


_STEP = UNIT // 50  # smaller differences in stranded devices are ties
_BREAK = UNIT // 10
_TIGHT = UNIT // 25  # several devices go where the fewest whole ones remain
_LEVEL = UNIT * 4 // 25
_WANTED = 0.8
_TIE = 0.01  # smaller than any of the others


STRATEGIES: Mapping[str, Strategy] = {
    one.name: one
    for one in (
        balanced, best_fit, cheapest, first_available, fragmentation, pack, round_robin, spread,
    )
}  # fmt: skip


def strategy_named(given: str | Callable[..., Sequence[float]]) -> OwnStrategy | None:
    """Return the strategy of that name, or the user's own function unchanged.

    None stands for the default: `fragmentation` where there are GPUs, else `best_fit`.
    """
    if callable(given):
        return given
    if not isinstance(given, str):
        raise InvalidInput("strategy", given, f"{_allowed()}, or a function")
    if given == DEFAULT:
        return None
    found = STRATEGIES.get(given) or _from_entry_point(given)
    if found is None:
        raise InvalidInput("strategy", given, _allowed(given))
    return found


def _allowed(given: str = "") -> str:
    names = sorted({DEFAULT, *STRATEGIES, *_entry_points()})
    meant = nearest_name(given, names)
    return f"any of {', '.join(names)}{f' (did you mean {meant}?)' if meant else ''}"


@cache
def _entry_points() -> Mapping[str, Any]:
    from importlib.metadata import (
        entry_points,
    )  # slow, and needed only for names that are not built in

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _from_entry_point(name: str) -> OwnStrategy | None:
    """Return the strategy that another package provides under that name."""
    point = _entry_points().get(name)
    if point is None:
        return None
    if name not in _loaded:
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise InvalidInput(
                "strategy", name, f"one that can be loaded: {point.value} failed with {error!r}"
            ) from error
        if not callable(found):
            raise InvalidInput("strategy", name, f"a function: {point.value} is none")
        _loaded[name] = found
    return _loaded[name]


_loaded: dict[str, OwnStrategy] = {}  # by name, as requests name them again and again


def strategy_label(strategy: OwnStrategy) -> str:
    """Return the name of a strategy for messages: as requests name it, or that of a function."""
    for name, loaded in _loaded.items():
        if loaded is strategy:
            return name
    return str(getattr(strategy, "__name__", None) or type(strategy).__name__)
