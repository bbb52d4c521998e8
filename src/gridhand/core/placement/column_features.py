"""The features of many nodes at once, and which of them fit, computed with arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.nodes import ENGINE_LABEL
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT
from gridhand.core.placement.columns import (
    CHOSEN,
    CPU,
    CPU_TOTAL,
    GPU_TOTAL,
    GPUS,
    IDLE,
    LARGEST_IDLE,
    MEMORY,
    MEMORY_TOTAL,
    PRICE,
    UNTOUCHED,
    WHOLE,
    Bools,
    Columns,
    Floats,
    Ints,
    Rows,
)
from gridhand.core.placement.features import Number

if TYPE_CHECKING:
    from gridhand.core.placement.request_mix import Mix

_NEVER = 2**62
_FREE = {"cpu": CPU, "memory": MEMORY}
_TOTAL = {"cpu": CPU_TOTAL, "memory": MEMORY_TOTAL}


class ColumnFeatures:
    """The features of the nodes in `rows`; see `Features`. Only those in `fits` are meaningful."""

    def __init__(self, asked: Request, columns: Columns, rows: Rows, mix: Mix) -> None:
        self.asked, self.mix = asked, mix
        self._columns, self._at = columns, rows
        table = columns.table
        self._table = table if isinstance(rows, slice) else table.take(rows, axis=1)
        self.price, self.chosen = self._table[PRICE], self._table[CHOSEN]
        self.gpus, self.idle, self.whole = self._table[GPUS], self._table[IDLE], self._table[WHOLE]
        self._devices = _Devices(asked.gpu, self, columns, rows) if asked.gpu is not None else None
        self.taken: Number = self._devices.taken if self._devices is not None else 0
        self.fits = self._fits()

    def _fits(self) -> Bools:
        needs = [self.free(name) >= amount for name, amount in self.asked.amounts.pairs]
        if self._devices is not None:
            needs.append(self._devices.fit(self._table))
        if not self._in_table():
            needs.append(self._columns.rows["open"][self._at])
        for key, value in self.asked.labels.items():
            needs.append(self._columns.labelled(key, value, self._at))
        if self.asked.tied_to is not None:
            needs.append(self._columns.labelled(ENGINE_LABEL, None, self._at))
        found: Bools = needs[0]
        for need in needs[1:]:
            found = found & need
        return found

    def _in_table(self) -> bool:
        """Return whether the table alone rules out closed nodes: if the request needs any of it."""
        gpu, amounts = self.asked.gpu, self.asked.amounts
        return "cpu" in amounts or "memory" in amounts or (gpu is not None and _by_sums(gpu))

    @property
    def opened(self) -> Number:
        return 0 if self._devices is None else self._devices.opened

    def free(self, name: str) -> Number:
        line = _FREE.get(name)
        return self._columns.amounts(name)[0][self._at] if line is None else self._table[line]

    def gpu_total(self) -> Number:
        return self._table[GPU_TOTAL]

    def total(self, name: str) -> Number:
        line = _TOTAL.get(name)
        if line is not None:
            return self._table[line]
        return np.maximum(1, self._columns.amounts(name)[1][self._at])

    def served(self) -> tuple[Number, Number]:
        columns, amounts = self._columns, self.asked.amounts
        columns.use(self.mix)
        left = columns.rows["usable"][self._at]
        if self._devices is not None:
            left = self._devices.usable_after(left)
        cpu, memory = self._table[CPU] - amounts["cpu"], self._table[MEMORY] - amounts["memory"]
        after = self.mix.learned.served(left, cpu, memory, np.minimum)
        return columns.rows["served"][self._at], after

    def model_price(self) -> Number:
        self._columns.use(self.mix)
        return self._columns.prices[self._columns.rows["model"][self._at]]

    def level(self, count: Number) -> Number:
        self._columns.use(self.mix)
        return self._columns.levels.take(count, mode="clip")

    def least(self, one: Number, other: Number) -> Number:
        return np.minimum(one, other)

    def floor(self, number: Number) -> Number:
        return np.floor(number)

    def scored(self, scores: Number) -> Floats:
        """Return the scores, with minus infinity for nodes that do not fit."""
        found: Floats = np.where(self.fits, scores, -np.inf)
        return found


def _by_sums(asked: GpuRequest) -> bool:
    """Return whether a node's totals are enough to decide if its devices fit."""
    return asked.model is None and asked.capability is None and asked.memory_bytes is None


class _Devices:
    """The devices of many nodes before and after a request for devices is placed there.

    The totals in the table settle most requests. Single devices are examined only for requests
    that want a certain kind or memory, and to find out which device is picked.
    """

    def __init__(
        self, asked: GpuRequest, features: ColumnFeatures, columns: Columns, rows: Rows
    ) -> None:
        self._asked, self._columns, self._at = asked, columns, rows
        self._able_ones: Bools | None = None
        self._picked: Ints | None = None
        self._opened: Number = None
        self.taken: Number = asked.devices * self._share_taken()

    def _share_taken(self) -> Number:
        asked = self._asked
        if not asked.memory_bytes:
            return asked.share
        largest = np.maximum(1, self._columns.rows["largest"][self._at])
        by_memory = np.ceil(float(asked.memory_bytes) * UNIT / largest)
        return np.maximum(asked.share, np.minimum(by_memory, UNIT)).astype(np.int64)

    def fit(self, table: Ints) -> Bools:
        """Return which nodes have enough devices that fit."""
        asked = self._asked
        if not _by_sums(asked):
            enough: Bools = self._able().sum(axis=0) >= asked.devices
        elif asked.exclusive:
            enough = table[WHOLE] >= asked.devices
        else:
            enough = table[LARGEST_IDLE] >= asked.share
        return enough

    def _able(self) -> Bools:
        """Return which devices admit what the request takes of each."""
        if self._able_ones is not None:
            return self._able_ones
        asked = self._asked
        able: Bools
        if asked.exclusive:
            able = self._plane("whole").astype(np.bool_)
        elif asked.memory_bytes is None:
            able = self._plane("idle") >= asked.share
        else:
            able = self._plane("memory") >= asked.memory_bytes
            if asked.share:
                able = able & (self._plane("share") >= asked.share)
        suited = self._columns.suited(asked, self._at)
        self._able_ones = able if suited is None else able & suited
        return self._able_ones

    @property
    def opened(self) -> Number:
        """How many whole devices the request breaks or takes."""
        asked = self._asked
        if asked.exclusive:
            return asked.devices
        if asked.devices == 1:
            self._pick()
            return self._opened
        touched = (self._able() & (self._plane("key") != UNTOUCHED)).sum(axis=0)
        return np.maximum(0, asked.devices - touched)

    def usable_after(self, usable: Ints) -> Ints:
        if self._asked.exclusive or self._asked.devices > 1:
            less: Ints = np.maximum(0, usable - self.taken)
            return less
        picked = self._pick()
        rest = np.maximum(0, picked - self.taken)
        table = self._columns.usable
        left: Ints = usable - table[picked] + table[rest]
        return left

    def _pick(self) -> Ints:
        """Return the idle share of the device that is picked: the fullest, then the smallest."""
        if self._picked is not None:
            return self._picked
        able = self._able()
        keys = np.where(able, self._plane("key"), UNTOUCHED + 1)
        fullest = keys.min(axis=0, initial=UNTOUCHED + 1)
        self._opened = fullest == UNTOUCHED
        picked: Ints = np.minimum(fullest, UNIT)
        differing = self._columns.odd()
        if differing is not None:
            odd = np.flatnonzero((fullest <= UNTOUCHED) & differing[self._at])
            alike = keys[:, odd] == fullest[odd]
            memory = np.where(alike, self._plane("memory")[:, odd], _NEVER)
            picked[odd] = self._plane("idle")[memory.argmin(axis=0), odd] if odd.size else 0
        self._picked = picked
        return picked

    def _plane(self, name: str) -> Ints:
        plane: Ints = self._columns.planes[name][:, self._at]
        return plane
