"""Placement: which node and which devices a request gets, or why it gets none.

Filter, rank, pick devices. The answer depends on the arguments alone. Rows are in the order of
names, so ties are, too. Scores are kept for every class of request, and made again only for the
nodes that have changed since; a class that was not seen before costs one pass over the columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from gridhand.core.facts import Facts, NodeFacts, Number
from gridhand.core.ledger import Ledger, Placement
from gridhand.core.mix import Cluster, Mix
from gridhand.core.refusals import Refusal
from gridhand.core.requests import Request
from gridhand.core.strategies import (
    NOWHERE,
    OwnStrategy,
    Scores,
    Strategy,
    best_fit,
    fragmentation,
)
from gridhand.core.usage import NodeUse

if TYPE_CHECKING:
    from gridhand.core.columns import Columns
    from gridhand.core.rowfacts import RowFacts

SMALL_CLUSTER = 32  # nodes; up to so many a loop is faster than arrays
_FEW_ROWS = 2  # to score one by one, with devices and without
_FEW_PLAIN_ROWS = 6
_KEPT_SCORES = 16_000_000  # over all classes
_KEPT_CLASSES = 10_000
_ALL = slice(None)


class _Kept:
    """The scores of one class of request, as of the change with number `seen`."""

    __slots__ = ("scores", "seen", "version")

    def __init__(self, scores: Scores) -> None:
        self.scores, self.seen, self.version = scores, -1, -1


class Snapshot:
    """The ledger as placement sees it: as arrays, with what strangers use and what is usual.

    `foreign` is what strangers were measured to use on each device, `local` the node that
    `first_available` tries first, `mix` what was learned from the requests so far.
    """

    def __init__(
        self,
        ledger: Ledger,
        foreign: Mapping[str, int] | None = None,
        *,
        local: str | None = None,
        mix: Mix | None = None,
    ) -> None:
        self.ledger = ledger
        self.foreign: dict[str, int] = dict(foreign or {})
        self.local = local
        self.mix = mix or Mix()
        self._columns: Columns | None = None
        self._row_facts: Callable[[Request, Columns, Any, Mix], RowFacts]
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._shape = -1
        self._has_gpus = False
        self._row_of: dict[str, int] = {}
        self._largest: dict[str, int] | None = None

    def aside(self) -> Snapshot:
        """The same with scores of its own, so that questions leave none behind in this one."""
        self._reshape()  # up to date before it is copied
        if len(self.ledger.names) > SMALL_CLUSTER:
            self.columns()
        other = copy(self)
        other._kept = {}
        return other

    # ---- what is learned and measured

    def learn(self, asked: Request) -> None:
        """Take note of a request that has arrived. Once, however often it is tried."""
        self._reshape()
        self.mix.learn(asked)

    def set_foreign(self, node: str, used: Mapping[str, int]) -> None:
        """Take on what strangers use of the devices of a node, in place of what was known."""
        for id, device in self.ledger.node(node).devices.items():
            self.foreign.pop(id, None)
            device.version += 1
        self.foreign.update({id: amount for id, amount in used.items() if amount})
        self.ledger.touched.add(node)

    # ---- rows

    def use(self, row: int) -> NodeUse:
        return self.ledger.nodes[self.ledger.names[row]]

    def row(self, name: str) -> int | None:
        self._reshape()
        return self._row_of.get(name)

    def rows_up_to(self, name: str) -> int:
        """How many nodes come before that name or have it."""
        return bisect_right(self.ledger.names, name)

    def rows(self, asked: Request) -> Sequence[int]:
        """The rows that `asked` may go to, whether or not it fits there."""
        names = self.ledger.names
        candidates: Sequence[int] = range(len(names))
        if asked.node is not None:
            self.ledger.node(asked.node)  # it must be known
            candidates = [self.rows_up_to(asked.node) - 1]
        if not asked.exclude and not asked.labels:
            return candidates
        return [row for row in candidates if permits(asked, self.use(row))]

    def _reshape(self) -> None:
        """Nodes have come or gone: rows are others, and what was kept by row is void."""
        ledger = self.ledger
        if self._shape == ledger.touched.shape:
            return
        self._shape = ledger.touched.shape
        self._row_of = {name: row for row, name in enumerate(ledger.names)}
        self._kept.clear()
        self._largest = None
        cluster = _cluster(ledger)
        self._has_gpus = bool(cluster.models)
        self.mix.describe(cluster)

    def largest(self) -> Mapping[str, int]:
        """The most that any one node has of each resource."""
        self._reshape()
        if self._largest is None:
            self._largest = {}
            for use in self.ledger.nodes.values():
                for name, amount in use.total.items():
                    self._largest[name] = max(amount, self._largest.get(name, 0))
        return self._largest

    @property
    def has_gpus(self) -> bool:
        self._reshape()
        return self._has_gpus

    # ---- scores

    def columns(self) -> Columns:
        """The arrays, up to date."""
        if self._columns is None:
            # Only here: numpy takes its time to load, and small clusters do without it.
            from gridhand.core.columns import Columns
            from gridhand.core.rowfacts import RowFacts

            self._columns, self._row_facts = Columns(self.ledger, self.foreign), RowFacts
        self._columns.sync()
        return self._columns

    def scores(self, asked: Request, strategy: Strategy) -> Scores:
        """A score for every node that `asked` fits, pins and excluded nodes aside."""
        ledger, version = self.ledger, self.mix.version
        if self._shape != ledger.touched.shape:
            self._reshape()
        labels = tuple(asked.labels.items()) if asked.labels else ()
        key = (strategy, asked.amounts, asked.gpu, labels)
        kept = self._kept.get(key)
        columns = self.columns() if len(ledger.names) > SMALL_CLUSTER else None
        end = ledger.touched.end if columns is None else columns.changed.end
        if kept is None:
            kept = self._keep(key, _Kept(self._score_all(asked, strategy, columns)))
        elif kept.seen != end or kept.version != version:
            outdated = kept.version != version and strategy is fragmentation
            if outdated or not self._catch_up(kept, asked, strategy, columns):
                kept.scores = self._score_all(asked, strategy, columns)
        kept.seen, kept.version = end, version
        return kept.scores

    def _keep(self, key: tuple[object, ...], kept: _Kept) -> _Kept:
        many = len(self._kept) + 1
        if many > _KEPT_CLASSES or many * len(kept.scores) > _KEPT_SCORES:
            for old in list(self._kept)[: len(self._kept) // 2 + 1]:
                del self._kept[old]
        self._kept[key] = kept
        return kept

    def _catch_up(
        self, kept: _Kept, asked: Request, strategy: Strategy, columns: Columns | None
    ) -> bool:
        """Score the nodes that have changed. False if these are not known, or too many."""
        if columns is None:
            names = self.ledger.touched.since(kept.seen)
            for name in dict.fromkeys(names or ()):
                use = self.ledger.nodes[name]
                kept.scores[self._row_of[name]] = self._score_one(asked, strategy, use)
            return names is not None
        rows = columns.changed.since(kept.seen)
        if rows is None or len(rows) > 2 * len(kept.scores):
            return False
        if len(rows) <= (_FEW_ROWS if asked.gpu is not None else _FEW_PLAIN_ROWS):
            for row in set(rows.tolist()):
                kept.scores[row] = self._score_one(asked, strategy, self.use(row))
        else:
            facts = self._row_facts(asked, columns, rows, self.mix)
            kept.scores[rows] = facts.scored(strategy.score(facts))
        return True

    def _score_one(self, asked: Request, strategy: Strategy, use: NodeUse) -> float:
        devices = use.room(asked, self.foreign)
        if devices is None or (asked.labels and not _has_labels(asked, use)):
            return NOWHERE
        return float(strategy.score(NodeFacts(asked, use, devices, self.foreign, self.mix)))

    def _score_all(self, asked: Request, strategy: Strategy, columns: Columns | None) -> Scores:
        if columns is None:
            nodes = self.ledger.nodes
            return [self._score_one(asked, strategy, nodes[name]) for name in self.ledger.names]
        facts = self._row_facts(asked, columns, _ALL, self.mix)
        return facts.scored(strategy.score(facts))


def _cluster(ledger: Ledger) -> Cluster:
    """What the nodes have in all."""
    models: dict[str, int] = {}
    cpu = memory = largest = 0
    with_gpus = [use for use in ledger.nodes.values() if use.node.gpus]
    for use in with_gpus:
        cpu += use.total.get("cpu", 0)
        memory += use.total.get("memory", 0)
        for gpu in use.node.gpus:
            model = gpu.model.lower()
            models[model] = models.get(model, 0) + 1
            largest = max(largest, gpu.memory_bytes)
    sizes = frozenset(len(use.node.gpus) for use in with_gpus)
    return Cluster(models, cpu, memory, largest, sizes)


def permits(asked: Request, use: NodeUse) -> bool:
    """Whether `asked` may go to that node, pins aside and whether or not it fits there."""
    return use.node.name not in asked.exclude and _has_labels(asked, use)


def _has_labels(asked: Request, use: NodeUse) -> bool:
    return all(use.node.labels.get(key) == value for key, value in asked.labels.items())


def place(
    asked: Request, snapshot: Snapshot, strategy: OwnStrategy | None = None
) -> Placement | Refusal:
    """Choose a node for `asked` or the first of its alternatives that fits, or tell why not.

    Without a strategy it is `fragmentation` where there are GPUs, else `best_fit`.
    """
    placed = _place_one(asked, snapshot, strategy)
    if placed is not None:
        return placed
    for other in asked.alternatives:
        placed = _place_one(other, snapshot, strategy)
        if placed is not None:
            return placed._replace(whole=asked)
    return Refusal(asked, snapshot)


def ranked(asked: Request, snapshot: Snapshot, strategy: OwnStrategy | None) -> list[str]:
    """The names of the nodes that `asked` fits, alternatives aside, the best first."""
    names = snapshot.ledger.names
    if asked.node is not None:
        return [asked.node] if _place_pinned(asked, snapshot) is not None else []
    rows = _fitting(asked, snapshot)
    if strategy is None:
        strategy = fragmentation if snapshot.has_gpus else best_fit
    scores = strategy(asked, snapshot, rows) if rows else ()
    wished = [names[row] in asked.prefer for row in rows]
    order = sorted(zip(wished, scores, rows, strict=True), key=lambda one: (not one[0], -one[1]))
    return [names[row] for _, _, row in order]


def count_fitting(asked: Request, snapshot: Snapshot) -> int:
    """How many nodes `asked` fits and may go to, its alternatives aside."""
    if asked.node is not None:
        return int(_place_pinned(asked, snapshot) is not None)
    return len(_fitting(asked, snapshot))


def _place_one(
    asked: Request, snapshot: Snapshot, strategy: OwnStrategy | None
) -> Placement | None:
    ledger = snapshot.ledger
    if asked.node is not None:
        return _place_pinned(asked, snapshot)
    if not ledger.names:
        return None
    if isinstance(strategy, Strategy):
        row = _choose(asked, snapshot, strategy)
    elif strategy is None:
        row = _choose(asked, snapshot, fragmentation if snapshot.has_gpus else best_fit)
    else:
        row = _choose_by(asked, snapshot, strategy)
    if row is None:
        return None
    name = ledger.names[row]
    devices = ledger.nodes[name].room(asked, snapshot.foreign)
    assert devices is not None, f"{asked.resources} was to fit on {name}"
    return Placement(asked, name, devices)


def _place_pinned(asked: Request, snapshot: Snapshot) -> Placement | None:
    assert asked.node is not None
    use = snapshot.ledger.node(asked.node)  # it must be known
    if not permits(asked, use):
        return None
    devices = use.room(asked, snapshot.foreign)
    return None if devices is None else Placement(asked, asked.node, devices)


def _choose(asked: Request, snapshot: Snapshot, strategy: Strategy) -> int | None:
    scores = snapshot.scores(asked, strategy)
    if not asked.exclude and not asked.prefer:
        return strategy.choose(snapshot, scores)
    scores = scores.copy()
    for name in asked.exclude:
        row = snapshot.row(name)
        if row is not None:
            scores[row] = NOWHERE
    wished = {row for name in asked.prefer if (row := snapshot.row(name)) is not None}
    best = [row for row in sorted(wished) if scores[row] != NOWHERE]
    if best:
        only = [NOWHERE] * len(scores)
        for row in best:
            only[row] = float(scores[row])
        return strategy.choose(snapshot, only)
    return strategy.choose(snapshot, scores)


def _choose_by(asked: Request, snapshot: Snapshot, strategy: OwnStrategy) -> int | None:
    """By the caller's own function, which is only asked where there is a choice."""
    rows = _fitting(asked, snapshot)
    names = snapshot.ledger.names
    if asked.prefer:
        rows = [row for row in rows if names[row] in asked.prefer] or rows
    if len(rows) < 2:
        return rows[0] if rows else None
    scores = strategy(asked, snapshot, rows)
    return max(zip(scores, (-row for row in rows), rows, strict=True))[2]


def _fitting(asked: Request, snapshot: Snapshot) -> list[int]:
    """The rows that `asked` fits and may go to."""
    names = snapshot.ledger.names
    scores = snapshot.scores(asked, _fits) if names else ()
    return [
        row
        for row, score in enumerate(scores)
        if score != NOWHERE and names[row] not in asked.exclude
    ]


@Strategy
def _fits(facts: Facts) -> Number:
    """All nodes alike: only whether they fit."""
    return 0.0 * facts.gpus
