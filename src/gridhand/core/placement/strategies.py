"""How the nodes that fit are ranked: one small function each, in a map of names.

A strategy scores a node from its `Facts`: the higher the better, and ties go to the first name.
It is written once for numbers and for arrays of them, so it adds and multiplies, and asks the
facts for anything else. Scores are kept, and made again only for a node that has changed; so they
may depend on the node, the request and the mix, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from gridhand.core.errors import InvalidInput
from gridhand.core.facts import Facts, Number
from gridhand.core.resources import UNIT, nearest_name

if TYPE_CHECKING:
    from gridhand.core.placement import Snapshot
    from gridhand.core.requests import Request

ENTRY_POINTS = "gridhand.strategies"
DEFAULT = "default"
NOWHERE = float("-inf")  # the score of a node that does not fit

Scores = Any  # a list or an array of a score for every node


class OwnStrategy(Protocol):
    """A strategy from elsewhere: scores for the nodes in `rows`, which all fit."""

    def __call__(
        self, asked: Request, snapshot: Snapshot, rows: Sequence[int]
    ) -> Sequence[float]: ...


class Strategy:
    """A ranking of our own. `choose` says which row wins; as a rule, the first of the best."""

    __slots__ = ("choose", "help", "name", "score")

    def __init__(
        self,
        score: Callable[[Facts], Number],
        choose: Callable[[Snapshot, Scores], int | None] | None = None,
    ) -> None:
        self.name, self.help = score.__name__, score.__doc__ or ""
        self.score = score
        self.choose = choose or best_row

    def __call__(self, asked: Request, snapshot: Snapshot, rows: Sequence[int]) -> Sequence[float]:
        """The scores of the nodes in `rows`, minus infinity for those that do not fit."""
        scores = snapshot.scores(asked, self)
        return [float(scores[row]) for row in rows]

    def __repr__(self) -> str:
        return f"<strategy {self.name}>"


def best_row(snapshot: Snapshot, scores: Scores) -> int | None:
    """The first row with the highest score, if any fits."""
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


def _off_gpus(facts: Facts, score: Number, fine: float) -> Number:
    """The score, less a fine where work without GPUs would sit on a node that has some."""
    return score - fine * (facts.gpus > 0) if facts.asked.gpu is None else score


def _left(facts: Facts) -> list[Number]:
    """Of each thing that is asked for, the part of the node's that is left afterwards."""
    left = [
        (facts.free(name) - amount) / facts.total(name)
        for name, amount in facts.asked.amounts.pairs
    ]
    if facts.asked.gpu is not None:
        left.append((facts.idle - facts.taken) / facts.gpu_total())
    return left


def _most(facts: Facts, numbers: list[Number]) -> Number:
    found = numbers[0] if numbers else 0.0
    for number in numbers[1:]:
        found = -facts.least(-found, -number)
    return found


def choosing(
    choose: Callable[[Snapshot, Scores], int | None],
) -> Callable[[Callable[[Facts], Number]], Strategy]:
    """A strategy that has its own way to choose among equals."""
    return lambda score: Strategy(score, choose)


@Strategy
def best_fit(facts: Facts) -> Number:
    """Leave the least behind on the node, all that is asked for taken together."""
    left = _left(facts)
    total = left[0] if left else 0.0
    for part in left[1:]:
        total = total + part
    return _off_gpus(facts, -total, len(left) + 1)


@Strategy
def pack(facts: Facts) -> Number:
    """Take the node where least is left of what it will have most of."""
    return _off_gpus(facts, -_most(facts, _left(facts)), 2)


@Strategy
def spread(facts: Facts) -> Number:
    """Take the node where most is left of what it will have least of."""
    return _off_gpus(facts, -_most(facts, [-left for left in _left(facts)]), 2)


@Strategy
def cheapest(facts: Facts) -> Number:
    """Take the node with the lowest price; of equal ones the tightest."""
    left = _left(facts)
    return -facts.price - sum(left) / (len(left) + 1)


@Strategy
def balanced(facts: Facts) -> Number:
    """0.4 of how tightly it fits and 0.6 of how idle the node is, by CPU and memory."""
    fit = idle = 0.0
    for name in ("cpu", "memory"):
        free, total = facts.free(name), facts.total(name)
        fit = fit + facts.asked.amounts[name] / (free + 2 * (free <= 0))
        idle = idle + 1 - (total - free) / total
    bonus = 0.2 if facts.asked.gpu is not None else 0.0
    return _off_gpus(facts, 0.4 * (fit / 2) + 0.6 * (idle / 2) + bonus, 2)


@choosing(_local_unless_chosen)
def first_available(facts: Facts) -> Number:
    """Take nodes as they were chosen, the latest first, then the local one, then by name."""
    return 1.0 * facts.chosen


@choosing(_next_in_turn)
def round_robin(facts: Facts) -> Number:
    """Take the next node by name after the one that was chosen last."""
    return 0.0 * facts.gpus


@Strategy
def fragmentation(facts: Facts) -> Number:
    """Place so that the fewest future requests become impossible.

    The cost of a node is what it strands of devices (idle, but of no use to the usual requests
    with the CPU, memory and shares that remain), in coarse steps; a fine for a share that breaks a
    whole device; one for fewer whole devices on the node; and the price of its model. Of equal
    nodes the one with the fewest whole devices is taken; for work without GPUs, the tightest.
    """
    gpu = facts.asked.gpu
    before, after = facts.served()
    stranded = before - after - facts.taken
    cost = _STEP * facts.floor(stranded / _STEP + 0.5)
    if gpu is None:
        tightest = _TIE * best_fit.score(facts) * (facts.gpus < 1)
        return _off_gpus(facts, tightest - cost, 1)
    left = facts.whole - facts.opened
    if gpu.devices > 1:
        cost = cost + _TIGHT * left
    else:
        cost = cost + _LEVEL * (facts.level(facts.whole) - facts.level(left))
        if not gpu.exclusive:
            cost = cost + _BREAK * (facts.opened > 0)
    price = facts.model_price()
    if not facts.mix.learned.known:
        cost = cost + _TIE * facts.whole
    return -(cost + _WANTED * price * price * facts.taken)


_STEP = UNIT // 50  # smaller differences of what is stranded are ties
_BREAK = UNIT // 10
_TIGHT = UNIT // 25  # several devices go where the fewest whole ones are left over
_LEVEL = UNIT * 4 // 25
_WANTED = 0.8
_TIE = 0.01  # less than any of these


STRATEGIES: Mapping[str, Strategy] = {
    one.name: one
    for one in (
        balanced, best_fit, cheapest, first_available, fragmentation, pack, round_robin, spread,
    )
}  # fmt: skip


def strategy_named(given: str | Callable[..., Sequence[float]]) -> OwnStrategy | None:
    """The strategy of that name, or the caller's own function as it is.

    None stands for the default: `fragmentation` where there are GPUs, else `best_fit`.
    """
    if callable(given):
        return given
    if not isinstance(given, str):
        raise InvalidInput("strategy", given, f"{_allowed()}, or a function")
    if given == DEFAULT:
        return None
    found = STRATEGIES.get(given) or _from_elsewhere(given)
    if found is None:
        raise InvalidInput("strategy", given, _allowed(given))
    return found


def _allowed(given: str = "") -> str:
    names = sorted({DEFAULT, *STRATEGIES, *_entry_points()})
    meant = nearest_name(given, names)
    return f"{f'{meant}, if that was meant, or ' if meant else ''}any of {', '.join(names)}"


@cache
def _entry_points() -> Mapping[str, Any]:
    from importlib.metadata import entry_points  # only for names that are not ours

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _from_elsewhere(name: str) -> OwnStrategy | None:
    """A strategy that another package offers under that name."""
    point = _entry_points().get(name)
    if point is None:
        return None
    try:
        found = point.load()
    except Exception as error:
        raise InvalidInput(
            "strategy", name, f"one that can be loaded: {point.value} failed with {error!r}"
        ) from error
    if not callable(found):
        raise InvalidInput("strategy", name, f"a function: {point.value} is none")
    strategy: OwnStrategy = found
    return strategy
