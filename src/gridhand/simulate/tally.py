"""Counts what is free on every node and device, as arrays, for the figures of a simulation.

It is independent of the ledger and shares no code with placement. If the two disagree on whether
something fits, one of them is wrong; the tests compare them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.model.gpus import Gpu, GpuHealth, GpuRequest
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT, Resources

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

MEASURED = ("gpu", "cpu", "memory")


class Tally:
    """Nodes in the order of their names, what is free there, and the total use."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self._rows = {node.name: row for row, node in enumerate(self.nodes)}
        names = sorted({name for node in nodes for name in node.capacity})
        self._columns = {name: column for column, name in enumerate(names)}
        amounts = [[node.capacity[name] for name in names] for node in self.nodes]
        self._free = np.array(amounts, dtype=np.int64).reshape(len(nodes), len(names))
        gpus = [gpu for node in self.nodes for gpu in node.gpus]
        well = [gpu.health is GpuHealth.OK for gpu in gpus]
        self._number = {gpu.id: number for number, gpu in enumerate(gpus)}
        rows = [row for row, node in enumerate(self.nodes) for _ in node.gpus]
        self._row_of = np.array(rows, dtype=np.int64)
        self._memory = np.array([gpu.memory_bytes for gpu in gpus], dtype=np.int64)
        self._free_memory = self._memory.copy()
        self._free_share = np.array(well, dtype=np.int64) * UNIT
        self._idle = self._free_share.copy()  # held memory counts as a part of the GPU
        self._holds = np.zeros(len(gpus), dtype=np.int64)
        self._well = np.array(well, dtype=np.bool_)
        self._kinds = _Kinds(gpus)
        self.capacity: dict[str, int] = {
            "gpu": UNIT * sum(well),
            **{name: int(self._free[:, column].sum()) for name, column in self._columns.items()},
        }
        self.used = dict.fromkeys(MEASURED, 0)

    def add(
        self, node: NodeName, amounts: Resources, devices: Sequence[DeviceHold], sign: int = 1
    ) -> None:
        """Count what is held from now on or, with a sign of -1, what is released."""
        row, used = self._rows[node], self.used
        for name, amount in amounts.pairs:
            self._free[row, self._columns[name]] -= sign * amount
            if name in used:
                used[name] += sign * amount
        for hold in devices:
            number = self._number[hold.device]
            part = self.part(hold)
            self._free_share[number] -= sign * hold.share
            self._free_memory[number] -= sign * hold.memory_bytes
            self._idle[number] -= sign * part
            self._holds[number] += sign
            used["gpu"] += sign * part

    def part(self, hold: DeviceHold) -> int:
        """Return how much of the device is held: its share, or else its part of the memory."""
        memory = int(self._memory[self._number[hold.device]])
        return hold.share or (hold.memory_bytes * UNIT // memory if memory else 0)

    def allocation(self, name: str) -> float | None:
        """Return the held part of the capacity; None if there is no capacity."""
        capacity = self.capacity.get(name, 0)
        return self.used[name] / capacity if capacity else None

    def mean_memory(self, asked: GpuRequest) -> int:
        """Return the mean memory of devices of the requested kind."""
        suited = self._memory[self._kinds.suited(asked) & self._well]
        return int(suited.mean()) if suited.size else 0

    def fits(self, asked: Request) -> BoolArray:
        """Return for every row whether `asked` itself, without alternatives, fits there now."""
        fitting = self._permitted(asked)
        for name, amount in asked.amounts.pairs:
            fitting &= self._column(name) >= amount
        if asked.gpu is not None:
            fitting &= self._counted(self._admitting(asked.gpu)) >= asked.gpu.devices
        return fitting

    def cause(self, asked: Request) -> str:
        """Return what was missing where `asked` came closest to fitting.

        `node` or `gpu_model` if it would have fitted without saying where or on what kind of
        device. Otherwise the nearest miss is the permitted node on which the missing parts, each
        as a fraction of what is asked, add up to the least, and the cause is the largest of them.
        """
        anywhere = replace(asked, node=None, exclude=frozenset(), labels={})
        permitted = self._permitted(asked)
        if not permitted.any() or (not permitted.all() and self.fits(anywhere).any()):
            return "node"
        if asked.gpu is not None and (asked.gpu.model or asked.gpu.capability):
            any_kind = replace(asked, gpu=replace(asked.gpu, model=None, capability=None))
            suited = self._kinds.suited(asked.gpu) & self._well
            if not suited.any() or self.fits(any_kind).any():
                return "gpu_model"
        missing = self._missing(asked)
        total = sum(missing.values(), np.zeros(len(self.nodes)))
        nearest = int(np.argmin(np.where(permitted, total, np.inf)))
        return max(missing, key=lambda name: missing[name][nearest])

    def unusable(self, mix: Mapping[Request, int]) -> float | None:
        """Return the idle GPU that a task of the mix cannot use, averaged over tasks with GPUs.

        As a fraction of all GPUs. A task can use an idle part of a device if it fits on that node
        now and that device would do for it.
        """
        weights = {asked: count for asked, count in mix.items() if asked.gpu is not None}
        if not weights or not self.capacity["gpu"]:
            return None
        idle = int(self._idle.sum())
        lost = 0
        for asked, count in weights.items():
            assert asked.gpu is not None
            usable = self._admitting(asked.gpu) & self.fits(asked)[self._row_of]
            lost += count * (idle - int(self._idle[usable].sum()))
        return lost / sum(weights.values()) / self.capacity["gpu"]

    def _column(self, name: str) -> IntArray:
        if name not in self._columns:
            return np.zeros(len(self.nodes), dtype=np.int64)
        column: IntArray = self._free[:, self._columns[name]]
        return column

    def _permitted(self, asked: Request) -> BoolArray:
        permitted = np.ones(len(self.nodes), dtype=np.bool_)
        if asked.node is not None or asked.exclude or asked.labels:
            for row, node in enumerate(self.nodes):
                permitted[row] = (
                    asked.node in (None, node.name)
                    and node.name not in asked.exclude
                    and asked.labels.items() <= node.labels.items()
                )
        return permitted

    def _roomy(self, asked: GpuRequest) -> BoolArray:
        """Return devices of the requested kind with enough share left, whatever their memory."""
        roomy = self._kinds.suited(asked) & self._well & (self._free_share >= asked.share)
        return roomy & (self._holds == 0) if asked.exclusive else roomy

    def _admitting(self, asked: GpuRequest) -> BoolArray:
        return self._roomy(asked) & (self._free_memory >= self._needed(asked))

    def _needed(self, asked: GpuRequest) -> IntArray:
        """Return the memory that is needed on each device."""
        if asked.memory_bytes is None:
            return self._memory * asked.share // UNIT
        return np.full_like(self._memory, asked.memory_bytes)

    def _counted(self, devices: BoolArray) -> IntArray:
        return np.bincount(self._row_of[devices], minlength=len(self.nodes))

    def _missing(self, asked: Request) -> dict[str, FloatArray]:
        """Return for each requested resource the part that each node lacks."""
        missing = {
            name: np.maximum(amount - self._column(name), 0) / amount
            for name, amount in asked.amounts.pairs
        }
        if asked.gpu is None:
            return missing
        missing["gpu"], missing["gpu_memory"] = self._missing_devices(asked.gpu)
        return missing

    def _missing_devices(self, asked: GpuRequest) -> tuple[FloatArray, FloatArray]:
        """Return the missing parts of devices, and of memory where there are enough devices."""
        roomy = self._roomy(asked)
        short = np.maximum(asked.devices - self._counted(roomy), 0) / asked.devices
        memory = np.maximum(asked.devices - self._counted(self._admitting(asked)), 0)
        short_memory = memory / asked.devices
        if (
            asked.devices == 1 and not asked.exclusive
        ):  # for one device, the missing part is known exactly
            suited = self._kinds.suited(asked) & self._well
            if asked.share:
                short = self._nearest(self._free_share / asked.share, suited)
            needed = np.maximum(self._needed(asked), 1)
            short_memory = self._nearest(self._free_memory / needed, roomy)
        return short, np.where(short > 0, 0.0, short_memory)

    def _nearest(self, parts: FloatArray, devices: BoolArray) -> FloatArray:
        """Return for every row how much its best device is below 1."""
        best = np.zeros(len(self.nodes))
        np.maximum.at(best, self._row_of[devices], parts[devices])
        return np.maximum(1 - best, 0)


class _Kinds:
    """Which devices are of a requested kind, decided once for each existing kind."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        kinds = {(gpu.model, gpu.capability): gpu for gpu in gpus}
        numbers = {kind: number for number, kind in enumerate(kinds)}
        self._samples = list(kinds.values())
        self._of = np.array([numbers[gpu.model, gpu.capability] for gpu in gpus], dtype=np.int64)
        self._known: dict[GpuRequest, BoolArray] = {}

    def suited(self, asked: GpuRequest) -> BoolArray:
        if asked not in self._known:
            suits = np.array([asked.suits(gpu) for gpu in self._samples], dtype=np.bool_)
            self._known[asked] = suits[self._of]
        return self._known[asked]
