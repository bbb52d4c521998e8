"""The cluster as integer arrays with one element for each node, in the order of their names.

The arrays follow the ledger: only nodes that have changed are read again, from the totals that the
ledger keeps, and no decision rebuilds them. Everything that each decision reads is in one table.
Devices are in planes, the first of which has the first device of every node. The planes, and what
depends on the request mix, are updated when they are read. A column for a resource or a label is
made when a request first mentions it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gridhand.core.ledger.devices import DeviceUsage
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.gpus import GpuHealth, GpuRequest
from gridhand.core.model.host_use import NO_HOST_USE, HostUse
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Node
from gridhand.core.model.resources import UNIT
from gridhand.core.placement.request_mix import Learned, Mix
from gridhand.core.placement.row_log import RowLog

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = Ints | slice
Column = npt.NDArray[Any]

ALL = slice(None)
MOST_COLUMNS = 64
UNTOUCHED = UNIT + 1
_FEW_NEW_NODES = 16
_NO_DEVICE = -1

# The table's lines. The first six change with allocations, the others with the node itself.
# A closed node has -1 in the first five, so that nothing fits there.
CPU, MEMORY, IDLE, LARGEST_IDLE, WHOLE, CHOSEN, GPUS, PRICE, CPU_TOTAL, MEMORY_TOTAL = range(10)
GPU_TOTAL = 10
_CHANGING = 6
_CLOSED = (-1,) * 5
_LINES = {
    "idle": IDLE, "largest_idle": LARGEST_IDLE, "whole": WHOLE, "chosen": CHOSEN, "gpus": GPUS,
    "price": PRICE,
}  # fmt: skip
_PLANES: Mapping[str, tuple[type, int]] = {
    "idle": (np.int32, 0),
    "share": (np.int32, 0),
    "key": (np.int32, 0),
    "memory": (np.int64, _NO_DEVICE),
    "whole": (np.bool_, 0),
    "model": (np.int32, _NO_DEVICE),
    "capability": (np.int64, _NO_DEVICE),
}


class _Line:
    """The last reading of a node, so that only changes have to be read."""

    __slots__ = ("described", "devices", "drawn", "idles", "node", "versions", "whole")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.described: Mapping[str, DeviceUsage] | None = (
            None  # a new object whenever the node is described again
        )
        self.devices: list[DeviceUsage] = []
        self.versions: list[int] = []  # of the devices, as read into the table
        self.drawn: list[int] = []  # of the devices, as read into the planes
        self.idles: list[int] = []
        self.whole: list[bool] = []


class Columns:
    """The arrays of one ledger, as of the last `sync`."""

    def __init__(
        self, ledger: Ledger, foreign: Mapping[str, int], host_use: Mapping[NodeName, HostUse]
    ) -> None:
        self._ledger, self._foreign, self._host_use = ledger, foreign, host_use
        self._models: dict[str, int] = {}
        self._values: dict[str, int] = {}
        self.changed = RowLog()
        self._build()

    def _build(self) -> None:
        """Read every node: at the beginning, and when very many have come or gone at once."""
        ledger = self._ledger
        self._shape, self._seen = ledger.touched.shape, ledger.touched.end
        self.names = list(ledger.names)
        self.row_of = {name: row for row, name in enumerate(self.names)}
        count = len(self.names)
        width = max((len(use.devices) for use in ledger.nodes.values()), default=0)
        self._lines = [_Line() for _ in self.names]
        self._undrawn: set[NodeName] = set()
        self._some_odd = False
        self._table = np.zeros((11, count), np.int64)
        self._rows: dict[str, Column] = {
            "open": np.zeros(count, np.bool_),
            "odd": np.zeros(count, np.bool_),
            "model": np.full(count, _NO_DEVICE, np.int32),
            "largest": np.zeros(count, np.int64),
            "usable": np.zeros(count, np.int64),
            "served": np.zeros(count),
        }
        self._planes: dict[str, Column] = {
            key: np.full((width, count), absent, kind) for key, (kind, absent) in _PLANES.items()
        }
        self._mix: tuple[object, ...] = ()
        self._learned: Learned | None = None
        self._free: dict[str, Ints] = {}
        self._totals: dict[str, Ints] = {}
        self._labels: dict[str, Ints] = {}
        self._view()
        self.changed.forget()
        for row, name in enumerate(self.names):
            self._read(row, ledger.nodes[name])

    def _view(self) -> None:
        """Make the lines of the table available by name."""
        self.table = self._table
        self.rows = self._rows | {name: self._table[line] for name, line in _LINES.items()}

    # ---- following the ledger

    def sync(self) -> None:
        """Apply all changes of the ledger since the last call."""
        touched = self._ledger.touched
        if touched.end == self._seen:
            return
        names = touched.since(self._seen)
        if names is None or touched.shape - self._shape > _FEW_NEW_NODES:
            self._build()
            return
        unique = dict.fromkeys(names)
        if touched.shape != self._shape:
            self._reshape(unique)
        nodes, row_of, changed = self._ledger.nodes, self.row_of, self.changed
        for name in unique:
            row = row_of.get(name)
            if row is not None:
                self._read(row, nodes[name])
                changed.add(row)
        self._shape, self._seen = touched.shape, touched.end

    def _reshape(self, names: Iterable[NodeName]) -> None:
        """Insert rows for nodes that came, and remove those of nodes that went."""
        for name in names:
            known, there = name in self.row_of, name in self._ledger.nodes
            if known == there:
                continue
            row = bisect_left(self.names, name)
            for tables in (self._rows, self._free, self._totals, self._labels, self._planes):
                for key, column in tables.items():
                    tables[key] = _moved(column, row, gone=known)
            self._table = _moved(self._table, row, gone=known)
            self.names[row : row + known] = [] if known else [name]
            self._lines[row : row + known] = [] if known else [_Line()]
            self.row_of = {name: row for row, name in enumerate(self.names)}
        self._view()
        self.changed.forget()

    def _read(self, row: int, use: NodeUsage) -> None:
        line = self._lines[row]
        if line.described is not use.devices or line.node is not use.node:
            self._read_node(row, line, use)
        total, held = use.total, use.held
        others = self._host_use.get(use.node.name, NO_HOST_USE)
        for name, column in self._free.items():
            column[row] = total.get(name, 0) - held.get(name, 0)
        idle = largest = whole = 0
        if line.devices:
            self._read_devices(line)
            self._undrawn.add(use.node.name)
            idle, largest, whole = sum(line.idles), max(line.idles), sum(line.whole)
        self._table[:_CHANGING, row] = (
            (
                others.left_of("cpu", total.get("cpu", 0) - held.get("cpu", 0)),
                others.left_of("memory", total.get("memory", 0) - held.get("memory", 0)),
                idle,
                largest,
                whole,
                use.chosen,
            )
            if use.open
            else (*_CLOSED, use.chosen)
        )
        self._rows["open"][row] = use.open

    def _read_devices(self, line: _Line) -> None:
        versions = line.versions
        for place, device in enumerate(line.devices):
            if versions[place] != device.version:
                used = self._foreign.get(device.gpu.id, 0)
                versions[place] = device.version
                line.idles[place] = device.largest_share(used)
                line.whole[place] = device.whole(used)

    def _read_node(self, row: int, line: _Line, use: NodeUsage) -> None:
        """Read what stays the same until the node is described again."""
        devices = list(use.devices.values())
        line.node, line.described, line.devices = use.node, use.devices, devices
        line.versions, line.drawn = [-1] * len(devices), [-1] * len(devices)
        line.idles, line.whole = [0] * len(devices), [False] * len(devices)
        node, rows = use.node, self._rows
        self._table[_CHANGING:, row] = (
            len(devices),
            node.price,
            use.total.get("cpu", 0) or 1,
            use.total.get("memory", 0) or 1,
            len(devices) * UNIT or 1,
        )
        rows["model"][row] = self._model(devices[0].gpu.model) if devices else _NO_DEVICE
        rows["largest"][row] = max((device.gpu.memory_bytes for device in devices), default=0)
        for key in ("usable", "served", "odd"):
            rows[key][row] = 0
        for name, column in self._totals.items():
            column[row] = use.total.get(name, 0)
        for key, codes in self._labels.items():
            codes[row] = self._value(node.labels.get(key))
        self._widen(len(devices))
        there = slice(len(devices))
        for key, plane in self._planes.items():
            plane[:, row] = _PLANES[key][1]
        self._planes["model"][there, row] = [self._model(device.gpu.model) for device in devices]
        self._planes["capability"][there, row] = [_version(one.gpu.capability) for one in devices]

    def _widen(self, devices: int) -> None:
        for key, plane in self._planes.items():
            missing = devices - len(plane)
            if missing <= 0:
                return
            more = np.full((missing, plane.shape[1]), _PLANES[key][1], plane.dtype)
            self._planes[key] = np.concatenate([plane, more])

    # ---- devices

    @property
    def planes(self) -> Mapping[str, Column]:
        """The free amounts of each device; see `_PLANES`."""
        self._draw()
        return self._planes

    def odd(self) -> Bools | None:
        """Return the nodes where equally full devices may differ, as memory is held separately.

        None if there has never been such a node.
        """
        self._draw()
        return self._rows["odd"] if self._some_odd else None

    def _draw(self) -> None:
        """Update the planes, and what depends on them, from the table."""
        if not self._undrawn:
            return
        for name in self._undrawn:
            row = self.row_of.get(name)
            if row is not None:
                self._draw_row(row, self._lines[row])
        self._undrawn.clear()

    def _draw_row(self, row: int, line: _Line) -> None:
        for place, version in enumerate(line.versions):
            if line.drawn[place] != version:
                line.drawn[place] = version
                self._draw_device(row, place, line)
        keys = self._planes["key"][: len(line.devices), row].tolist()
        odd = [0 < idle != min(key, UNIT) for idle, key in zip(line.idles, keys, strict=True)]
        self._rows["odd"][row] = any(odd)
        self._some_odd |= any(odd)
        if self._learned is not None:
            usable = sum([self._learned.usable(idle) for idle in line.idles])
            self._rows["usable"][row] = usable
            self._rows["served"][row] = self._learned.served(
                usable, int(self._table[CPU, row]), int(self._table[MEMORY, row]), min
            )

    def _draw_device(self, row: int, place: int, line: _Line) -> None:
        device = line.devices[place]
        planes, used = self._planes, self._foreign.get(device.gpu.id, 0)
        planes["idle"][place, row] = line.idles[place]
        planes["whole"][place, row] = line.whole[place]
        planes["share"][place, row] = device.free_share()
        touched = device.holds or used
        planes["key"][place, row] = UNIT - device.share if touched else UNTOUCHED
        planes["memory"][place, row] = _memory_left(device, used)

    def suited(self, asked: GpuRequest, rows: Rows) -> Bools | None:
        """Return which devices are of the requested kind; None if all are."""
        found: Bools | None = None
        if asked.model is not None:
            codes = self._planes["model"][:, rows]
            found = np.zeros(codes.shape, np.bool_)
            for model in asked.models():
                found |= codes == self._model(model)
        if asked.capability is not None:
            able: Bools = self._planes["capability"][:, rows] >= _version(asked.capability)
            found = able if found is None else found & able
        return found

    # ---- the mix

    def use(self, mix: Mix) -> None:
        """Update what depends on the mix."""
        self._draw()
        if self._mix == (mix, mix.version, len(self._models)):
            return
        self._mix, self._learned = (mix, mix.version, len(self._models)), mix.learned
        prices = [mix.learned.prices.get(model, 0.0) for model in self._models]
        self.prices = np.array([*prices, 0.0])  # by code; the last is for a node without devices
        self.levels = np.array(mix.learned.levels)
        # For every possible idle share, how much of it typical requests can use.
        self.usable = np.array([mix.learned.usable(idle) for idle in range(UNIT + 1)])
        usable = self.usable[self._planes["idle"]].sum(axis=0)
        served = mix.learned.served(usable, self._table[CPU], self._table[MEMORY], np.minimum)
        served = np.where(
            self._table[GPUS] > 0, served, 0.0
        )  # without this, a closed node would keep its -1
        self._rows["usable"][:] = usable
        self._rows["served"][:] = served

    # ---- columns that are made on demand

    def amounts(self, name: str) -> tuple[Ints, Ints]:
        """Return how much of a resource is free on each node, and its capacity."""
        if name == "cpu":
            return self._table[CPU], self._table[CPU_TOTAL]
        if name == "memory":
            return self._table[MEMORY], self._table[MEMORY_TOTAL]
        if name not in self._free:
            uses = [self._ledger.nodes[node] for node in self.names]
            _make_room(self._free, self._totals)
            self._totals[name] = np.array([use.total.get(name, 0) for use in uses], np.int64)
            held = np.array([use.held.get(name, 0) for use in uses], np.int64)
            self._free[name] = self._totals[name] - held
        return self._free[name], self._totals[name]

    def labelled(self, key: str, value: str | None, rows: Rows) -> Bools:
        """Return which nodes have this label; with None, which have none of that name."""
        if key not in self._labels:
            nodes = [self._ledger.nodes[node].node for node in self.names]
            _make_room(self._labels)
            self._labels[key] = np.array([self._value(node.labels.get(key)) for node in nodes])
        found: Bools = self._labels[key][rows] == self._value(value)
        return found

    def _value(self, value: str | None) -> int:
        return -1 if value is None else self._values.setdefault(value, len(self._values))

    def _model(self, model: str) -> int:
        return self._models.setdefault(model.lower(), len(self._models))


def _moved(column: Column, row: int, *, gone: bool) -> Column:
    axis = column.ndim - 1
    return np.delete(column, row, axis) if gone else np.insert(column, row, 0, axis)


def _make_room(*tables: dict[str, Ints]) -> None:
    """Drop the oldest column; it is cheap to make again."""
    for table in tables:
        if len(table) >= MOST_COLUMNS:
            del table[next(iter(table))]


def _version(capability: tuple[int, ...] | None) -> int:
    if capability is None:
        return 0
    major, minor = (*capability, 0, 0)[:2]
    return major * 100_000 + minor


def _memory_left(device: DeviceUsage, foreign_bytes: int) -> int:
    """Return how much memory can still be held; -1 for a device that admits nothing."""
    if device.exclusive or device.gpu.health is not GpuHealth.OK:
        return _NO_DEVICE
    return device.gpu.memory_bytes - device.memory_bytes - foreign_bytes
