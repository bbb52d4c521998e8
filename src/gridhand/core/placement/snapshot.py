"""The ledger as placement sees it, with the scores of nodes that placement keeps.

Scores are kept for every class of request and computed again only for nodes that have changed
since. A class that was not seen before costs one pass over the columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.host_use import NO_HOST_USE, HostUse
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import Request
from gridhand.core.placement.features import NodeFeatures
from gridhand.core.placement.request_mix import ClusterTotals, Mix
from gridhand.core.placement.strategies import NOWHERE, Scores, Strategy, fragmentation

if TYPE_CHECKING:
    from gridhand.core.placement.column_features import ColumnFeatures
    from gridhand.core.placement.columns import Columns

SMALL_CLUSTER = 32  # nodes; up to this many, a loop is faster than arrays
_FEW_ROWS = 2  # that are scored one by one, for requests with devices and without
_FEW_PLAIN_ROWS = 6
_MOST_SCORES = 16_000_000  # over all classes
_MOST_CLASSES = 10_000
_ALL = slice(None)


class _CachedScores:
    """The cached scores of one class of request, as of the change with number `seen`."""

    __slots__ = ("scores", "seen", "version")

    def __init__(self, scores: Scores) -> None:
        self.scores, self.seen, self.version = scores, -1, -1


class Snapshot:
    """The ledger as placement sees it, with measured foreign use and the request mix.

    `foreign` is the memory that processes outside of the grid use on each device, `local` is the
    node that `first_available` prefers, and `mix` what was learned from the requests so far.
    `host_use` is the CPU and memory that such processes use on nodes where that is respected.
    New requests ask for whole steps of `memory_step_bytes`, unless it is 0.
    """

    def __init__(
        self,
        ledger: Ledger,
        foreign: Mapping[str, int] | None = None,
        *,
        local: NodeName | None = None,
        mix: Mix | None = None,
        host_use: Mapping[NodeName, HostUse] | None = None,
    ) -> None:
        self.ledger = ledger
        self.memory_step_bytes = 0
        self.foreign: dict[str, int] = dict(foreign or {})
        self.host_use: dict[NodeName, HostUse] = dict(host_use or {})
        self.local = local
        self.mix = mix or Mix()
        self._columns: Columns | None = None
        self._column_features: Callable[[Request, Columns, Any, Mix], ColumnFeatures]
        self._kept: dict[tuple[object, ...], _CachedScores] = {}
        self._shape = -1
        self._has_gpus = False
        self._row_of: dict[NodeName, int] = {}
        self._largest: dict[str, int] | None = None

    def of(self, ledger: Ledger) -> Snapshot:
        """Return a snapshot of another ledger with what was learned, measured and set."""
        other = Snapshot(ledger, self.foreign, mix=self.mix, host_use=self.host_use)
        other.memory_step_bytes = self.memory_step_bytes
        return other

    def aside(self) -> Snapshot:
        """Return a copy with its own score cache, for questions that must not fill this one."""
        self._reshape()  # bring it up to date before it is copied
        if len(self.ledger.names) > SMALL_CLUSTER:
            self.columns()
        other = copy(self)
        other._kept = {}
        return other

    # ---- learned and measured

    def learn(self, asked: Request) -> None:
        """Count a request that has arrived; once, however often it is tried."""
        self._reshape()
        self.mix.learn(asked)

    def set_foreign(self, node: NodeName, used: Mapping[str, int]) -> None:
        """Replace the measured foreign use of the devices of a node."""
        for id, device in self.ledger.node(node).devices.items():
            self.foreign.pop(id, None)
            device.version += 1
        self.foreign.update({id: amount for id, amount in used.items() if amount})
        self.ledger.touched.add(node)

    def set_host_use(self, node: NodeName, used: HostUse) -> None:
        """Replace what others use of a node; only other amounts change any decision."""
        before = self.host_use.pop(node, NO_HOST_USE)
        if used.amounts:
            self.host_use[node] = used
        if used.amounts != before.amounts:
            self.ledger.touched.add(node)

    # ---- room

    def free(self, use: NodeUsage, name: str) -> int:
        """Return how much of a resource can be promised now."""
        left = use.total.get(name, 0) - use.held.get(name, 0)
        others = self.host_use.get(use.node.name) if self.host_use else None
        return left if others is None else others.left_of(name, left)

    def amounts_fit(self, asked: Request, use: NodeUsage) -> bool:
        if not self.host_use or use.node.name not in self.host_use:
            return use.amounts_fit(asked.amounts)
        return all(amount <= self.free(use, name) for name, amount in asked.amounts.pairs)

    def room(self, asked: Request, use: NodeUsage) -> tuple[DeviceHold, ...] | None:
        """Return the device holds that `asked` would get there now, or None if it does not fit."""
        if self.host_use and not self.amounts_fit(asked, use):
            return None
        return use.room(asked, self.foreign)

    # ---- rows

    def use(self, row: int) -> NodeUsage:
        return self.ledger.nodes[self.ledger.names[row]]

    def row(self, name: NodeName) -> int | None:
        self._reshape()
        return self._row_of.get(name)

    def rows_up_to(self, name: NodeName) -> int:
        """Return how many nodes have that name or one before it."""
        return bisect_right(self.ledger.names, name)

    def rows(self, asked: Request) -> Sequence[int]:
        """Return the rows that `asked` may go to, whether or not it fits there."""
        names = self.ledger.names
        candidates: Sequence[int] = range(len(names))
        if asked.node is not None:
            self.ledger.node(asked.node)  # raises if it is unknown
            candidates = [self.rows_up_to(asked.node) - 1]
        if not asked.exclude and not asked.labels and asked.tied_to is None:
            return candidates
        return [row for row in candidates if permits(asked, self.use(row))]

    def _reshape(self) -> None:
        """Drop everything that is kept by row if nodes have come or gone."""
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
        """Return the largest capacity of any single node for each resource."""
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
        """Return the arrays, up to date."""
        if self._columns is None:
            # Imported here because numpy is slow to load and small clusters do not need it.
            from gridhand.core.placement.column_features import ColumnFeatures
            from gridhand.core.placement.columns import Columns

            self._columns, self._column_features = (
                Columns(self.ledger, self.foreign, self.host_use),
                ColumnFeatures,
            )
        self._columns.sync()
        return self._columns

    def scores(self, asked: Request, strategy: Strategy) -> Scores:
        """Return a score for every node, ignoring pins and excluded nodes."""
        ledger, version = self.ledger, self.mix.version
        if self._shape != ledger.touched.shape:
            self._reshape()
        labels = tuple(asked.labels.items()) if asked.labels else ()
        key = (strategy, asked.amounts, asked.gpu, labels, asked.tied_to is None)
        kept = self._kept.get(key)
        columns = self.columns() if len(ledger.names) > SMALL_CLUSTER else None
        end = ledger.touched.end if columns is None else columns.changed.end
        if kept is None:
            kept = self._keep(key, _CachedScores(self._score_all(asked, strategy, columns)))
        elif kept.seen != end or kept.version != version:
            outdated = kept.version != version and strategy is fragmentation
            if outdated or not self._catch_up(kept, asked, strategy, columns):
                kept.scores = self._score_all(asked, strategy, columns)
        kept.seen, kept.version = end, version
        return kept.scores

    def _keep(self, key: tuple[object, ...], kept: _CachedScores) -> _CachedScores:
        many = len(self._kept) + 1
        if many > _MOST_CLASSES or many * len(kept.scores) > _MOST_SCORES:
            for old in list(self._kept)[: len(self._kept) // 2 + 1]:
                del self._kept[old]
        self._kept[key] = kept
        return kept

    def _catch_up(
        self, kept: _CachedScores, asked: Request, strategy: Strategy, columns: Columns | None
    ) -> bool:
        """Score the nodes that have changed; return False if they are unknown or too many."""
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
            features = self._column_features(asked, columns, rows, self.mix)
            kept.scores[rows] = features.scored(strategy.score(features))
        return True

    def _score_one(self, asked: Request, strategy: Strategy, use: NodeUsage) -> float:
        devices = self.room(asked, use)
        if devices is None or not _suits(asked, use):
            return NOWHERE
        others = self.host_use.get(use.node.name, NO_HOST_USE)
        features = NodeFeatures(asked, use, devices, self.foreign, self.mix, others)
        return float(strategy.score(features))

    def _score_all(self, asked: Request, strategy: Strategy, columns: Columns | None) -> Scores:
        if columns is None:
            nodes = self.ledger.nodes
            return [self._score_one(asked, strategy, nodes[name]) for name in self.ledger.names]
        features = self._column_features(asked, columns, _ALL, self.mix)
        return features.scored(strategy.score(features))


def _cluster(ledger: Ledger) -> ClusterTotals:
    """Add up what the nodes have."""
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
    return ClusterTotals(models, cpu, memory, largest, sizes)


def permits(asked: Request, use: NodeUsage) -> bool:
    """Return whether `asked` may go to that node, ignoring pins and whether it fits there."""
    return use.node.name not in asked.exclude and _suits(asked, use)


def _suits(asked: Request, use: NodeUsage) -> bool:
    """Return whether a node has the labels, and what the request is tied to."""
    if asked.tied_to is not None and use.node.remote:
        return False
    return not asked.labels or all(
        use.node.labels.get(key) == value for key, value in asked.labels.items()
    )
