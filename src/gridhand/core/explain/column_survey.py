"""The survey of a large cluster, made with arrays; the answers are those of `NodeSurvey`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gridhand.core.explain.shortfalls import in_order
from gridhand.core.explain.survey import (
    MOST_GROUPS,
    MOST_NEAREST,
    Miss,
    Misses,
    MissGroup,
    Most,
    could_hold,
)
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.nodes import ENGINE_LABEL
from gridhand.core.model.requests import Request
from gridhand.core.placement.columns import ALL, Bools, Floats, Ints

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot

_NOTHING = -1  # for a device that does not exist, is unhealthy, or is held exclusively


class ColumnSurvey:
    """A survey of all nodes at once; see `Survey`. Not for a pinned request."""

    def __init__(self, asked: Request, snapshot: Snapshot) -> None:
        self._asked, self._snapshot = asked, snapshot
        self._columns = columns = snapshot.columns()
        self._may: Bools = np.ones(len(columns.names), np.bool_)
        for name in asked.exclude:
            if name in columns.row_of:
                self._may[columns.row_of[name]] = False
        for key, value in asked.labels.items():
            self._may &= columns.labelled(key, value, ALL)
        if asked.tied_to is not None:
            self._may &= columns.labelled(ENGINE_LABEL, None, ALL)
        self._there: Bools = self._may & columns.rows["open"]
        self._short: dict[str, Bools] = {
            name: columns.amounts(name)[0] < amount for name, amount in asked.amounts.pairs
        }

    def permitted(self) -> Sequence[int]:
        found: list[int] = np.flatnonzero(self._may).tolist()
        return found

    # ---- how close

    def misses(self) -> Misses:
        short = dict(self._short)
        parts = {name: self._missing(name, amount) for name, amount in self._asked.amounts.pairs}
        if self._asked.gpu is not None:
            by_memory, part = self._device_shortfall(self._asked.gpu)
            without = ~self._devices_fit
            short["gpu"], short["gpu_memory"] = without & ~by_memory, without & by_memory
            parts["gpu"] = parts["gpu_memory"] = part
        there = np.flatnonzero(self._there)
        lacking = np.array([column[there] for column in short.values()])
        count = lacking.sum(axis=0)
        missed, lacking, count = there[count > 0], lacking[:, count > 0], count[count > 0]
        shortfall = np.zeros(len(missed))
        for name, column in short.items():
            at = column[missed]
            shortfall[at] += parts[name][missed[at]]
        order = np.lexsort(
            (shortfall, count)
        )  # a stable sort, so equals stay in the order of names
        nearest = [
            Miss(int(count[at]), float(shortfall[at]), int(missed[at]))
            for at in order[:MOST_NEAREST]
        ]
        groups = _group(list(short), lacking[:, order], missed[order])
        ungrouped = len(missed) - sum(group.count for group in groups)
        return Misses(len(there) - len(missed), tuple(nearest), tuple(groups), ungrouped)

    def _missing(self, name: str, amount: int) -> Floats:
        free = self._columns.amounts(name)[0]
        part: Floats = (amount - np.maximum(0, free)) / amount
        return part

    def _device_shortfall(self, gpu: GpuRequest) -> tuple[Bools, Floats]:
        """Return whether `find_shortfalls` would name memory, and what part is missing."""
        count, asked = self._able.sum(axis=0), gpu.devices
        if gpu.exclusive:
            return np.zeros(len(count), np.bool_), (asked - count) / asked
        # A device that foreign use exceeds by exactly one byte is taken for an unhealthy one.
        roomy = self._plane("share") >= gpu.share if gpu.share else self._plane("memory") != -1
        by_memory: Bools = roomy.sum(axis=0) >= asked
        if gpu.memory_bytes is None:
            return by_memory, (gpu.share - self._plane("idle").max(axis=0, initial=0)) / gpu.share
        best = np.maximum(0, _largest(np.where(roomy, self._plane("memory"), _NOTHING), asked))
        if gpu.share:
            other = (gpu.share - self._plane("share").max(axis=0, initial=0)) / gpu.share
        else:
            other = (asked - roomy.sum(axis=0)) / asked
        return by_memory, np.where(by_memory, (gpu.memory_bytes - best) / gpu.memory_bytes, other)

    # ---- the most that fits

    def most(self, name: str) -> Most | None:
        fits = self._there & self._devices_fit
        for other, short in self._short.items():
            if other != name:
                fits &= ~short
        return _first_most(self._columns.amounts(name)[0], fits)

    def most_devices(self) -> Most | None:
        return _first_most(self._able.sum(axis=0), self._with_amounts())

    def most_share(self) -> Most | None:
        gpu = self._asked.gpu
        assert gpu is not None
        if gpu.memory_bytes is None:
            shares = self._plane("idle")
        else:
            roomy = self._plane("memory") >= gpu.memory_bytes
            shares = np.where(roomy, self._plane("share"), _NOTHING)
        return _first_most(shares.max(axis=0, initial=_NOTHING), self._with_amounts())

    def most_memory(self) -> Most | None:
        gpu = self._asked.gpu
        assert gpu is not None
        roomy = self._plane("share") >= gpu.share
        memory = np.where(roomy, self._plane("memory"), _NOTHING)
        return _first_most(_largest(memory, gpu.devices), self._with_amounts())

    def _with_amounts(self) -> Bools:
        fits = self._there.copy()
        for short in self._short.values():
            fits &= ~short
        return fits

    # ---- ever

    def could_hold(self) -> bool:
        """Examine the nodes that the arrays leave: usually one, unless devices of nodes differ."""
        asked, columns = self._asked, self._columns
        maybe = self._may.copy()
        for name, amount in asked.amounts.pairs:
            maybe &= columns.amounts(name)[1] >= amount
        gpu = asked.gpu
        if gpu is not None:
            suited = columns.suited(gpu, ALL)
            count = columns.rows["gpus"] if suited is None else suited.sum(axis=0)
            maybe &= count >= gpu.devices
            if gpu.memory_bytes is not None:
                maybe &= columns.rows["largest"] >= gpu.memory_bytes
        use = self._snapshot.use
        return any(could_hold(asked, use(row).node) for row in np.flatnonzero(maybe).tolist())

    # ---- devices

    @cached_property
    def _suited(self) -> Bools | None:
        assert self._asked.gpu is not None
        return self._columns.suited(self._asked.gpu, ALL)

    @cached_property
    def _able(self) -> Bools:
        """Which devices admit what the request takes of each."""
        gpu = self._asked.gpu
        assert gpu is not None
        if gpu.exclusive:
            return self._plane("whole") > 0
        if gpu.memory_bytes is None:
            return self._plane("idle") >= gpu.share
        return (self._plane("memory") >= gpu.memory_bytes) & (self._plane("share") >= gpu.share)

    @cached_property
    def _devices_fit(self) -> Bools:
        gpu = self._asked.gpu
        if gpu is None:
            return np.ones(len(self._there), np.bool_)
        fits: Bools = self._able.sum(axis=0) >= gpu.devices
        return fits

    def _plane(self, name: str) -> Ints:
        """Return a plane in which devices of other kinds than requested count as absent."""
        plane: Ints = self._columns.planes[name]
        if self._suited is None:
            return plane
        return np.where(self._suited, plane, _NOTHING if name == "memory" else 0)


def _largest(plane: Ints, nth: int) -> Ints:
    """Return the nth largest value of each node's devices."""
    found: Ints
    if nth > len(plane):
        found = np.full(plane.shape[1], _NOTHING, np.int64)
    elif nth == 1:
        found = plane.max(axis=0)
    else:
        found = np.partition(plane, len(plane) - nth, axis=0)[len(plane) - nth]
    return found


def _first_most(amounts: Ints, rows: Bools) -> Most | None:
    at = np.flatnonzero(rows)
    if not at.size:
        return None
    row = int(at[amounts[at].argmax()])
    return Most(int(amounts[row]), row)


def _group(names: list[str], lacking: Bools, rows: Ints) -> list[MissGroup]:
    """Group rows that lack the same, in the order of their first rows, up to `MOST_GROUPS`."""
    if not rows.size:
        return []
    packed = np.ascontiguousarray(np.packbits(lacking, axis=0).T)
    keys = packed.view(f"S{packed.shape[1]}").ravel()
    _, first, which, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    found = []
    for kind in np.argsort(first)[:MOST_GROUPS].tolist():
        at = first[kind]
        few = np.flatnonzero(which == kind)[:MOST_NEAREST] if counts[kind] > 1 else [at]
        short = in_order(name for name, lacks in zip(names, lacking[:, at], strict=True) if lacks)
        found.append(MissGroup(short, int(counts[kind]), tuple(int(rows[one]) for one in few)))
    return found
