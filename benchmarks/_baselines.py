"""What one would write first: a loop over nodes, and numpy over all of them, for best fit.

Both rank as `best_fit` does and take the devices it would take, so they answer alike, and both
keep their own record of what is free: an amount for each node and a share for each device. They
know no names, no labels, no owners, no deadlines, no memory of devices and no undo.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT

WIDTH = 8  # devices at most


class Held(NamedTuple):
    row: int
    cpu: int
    memory: int
    devices: list[int]
    share: int


def held_in(ledger: Ledger) -> list[Held]:
    rows = {name: row for row, name in enumerate(ledger.names)}
    return [
        Held(
            rows[one.node],
            one.amounts["cpu"],
            one.amounts["memory"],
            [int(hold.device.rpartition("/")[2]) for hold in one.devices],
            one.devices[0].share if one.devices else 0,
        )
        for one in ledger.live.values()
    ]


class Baseline:
    """Allocates and releases by its own `choose`, beginning with what a ledger has."""

    def __init__(self, ledger: Ledger) -> None:
        self.held = held_in(ledger)

    def choose(self, asked: Request) -> int | None: ...

    def take(self, row: int, asked: Request) -> Held: ...

    def give(self, held: Held) -> None: ...

    def decide(self, asked: Request, chance: random.Random) -> bool:
        """Place and hold what is asked, and let go of something else."""
        row = self.choose(asked)
        if row is None:
            return False
        self.held.append(self.take(row, asked))
        number = int(chance.random() * len(self.held))
        self.held[number], self.held[-1] = self.held[-1], self.held[number]
        self.give(self.held.pop())
        return True


class PlainNode:
    __slots__ = ("cpu", "free_cpu", "free_memory", "gpus", "idle", "memory", "model")

    def __init__(self, cpu: int, memory: int, gpus: int, model: str) -> None:
        self.cpu = self.free_cpu = cpu
        self.memory = self.free_memory = memory
        self.gpus, self.model = [UNIT] * gpus, model
        self.idle = UNIT * gpus


class PlainLoop(Baseline):
    """A Python loop over all nodes, with a list of free shares for each."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.nodes = [
            PlainNode(
                use.total["cpu"],
                use.total["memory"],
                len(use.devices),
                use.node.gpus[0].model.lower() if use.devices else "",
            )
            for use in (ledger.nodes[name] for name in ledger.names)
        ]
        for held in self.held:
            self._change(held, -1)

    def choose(self, asked: Request) -> int | None:
        cpu, memory, gpu = asked.amounts["cpu"], asked.amounts["memory"], asked.gpu
        if gpu is not None:
            devices, share, models = gpu.devices, gpu.share, gpu.models()
        best, found = float("-inf"), None
        for row, node in enumerate(self.nodes):
            if node.free_cpu < cpu or node.free_memory < memory:
                continue
            left = (node.free_cpu - cpu) / node.cpu + (node.free_memory - memory) / node.memory
            if gpu is None:
                score = -left - 3 if node.gpus else -left
            else:
                if node.idle < devices * share or (models and node.model not in models):
                    continue
                if share == UNIT:
                    if node.gpus.count(UNIT) < devices:
                        continue
                elif max(node.gpus) < share:
                    continue
                score = -(left + (node.idle - devices * share) / (len(node.gpus) * UNIT))
            if score > best:
                best, found = score, row
        return found

    def take(self, row: int, asked: Request) -> Held:
        gpu, node = asked.gpu, self.nodes[row]
        devices: list[int] = []
        if gpu is not None:
            fitting = [(free, index) for index, free in enumerate(node.gpus) if free >= gpu.share]
            devices = [index for _, index in sorted(fitting)[: gpu.devices]]
        share = gpu.share if gpu else 0
        held = Held(row, asked.amounts["cpu"], asked.amounts["memory"], devices, share)
        self._change(held, -1)
        return held

    def give(self, held: Held) -> None:
        self._change(held, 1)

    def _change(self, held: Held, sign: int) -> None:
        node = self.nodes[held.row]
        node.free_cpu += sign * held.cpu
        node.free_memory += sign * held.memory
        for index in held.devices:
            node.gpus[index] += sign * held.share
            node.idle += sign * held.share


class NaiveNumpy(Baseline):
    """Arrays over all nodes: filter, score and argmax for each decision, changed in place.

    Devices lie as one writes them down, `free[node, device]`.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        uses = [ledger.nodes[name] for name in ledger.names]
        self.cpu = np.array([use.total["cpu"] for use in uses])
        self.memory = np.array([use.total["memory"] for use in uses])
        self.gpus = np.array([len(use.devices) for use in uses])
        self.models: dict[str, int] = {}
        names = [use.node.gpus[0].model.lower() if use.devices else "" for use in uses]
        self.model = np.array([self.models.setdefault(name, len(self.models)) for name in names])
        self.free_cpu, self.free_memory = self.cpu.copy(), self.memory.copy()
        self._lay_out(np.where(np.arange(WIDTH) < self.gpus[:, None], UNIT, 0))
        self.shares = np.maximum(1, self.gpus * UNIT)
        self.penalty = 3.0 * (self.gpus > 0)
        for held in self.held:
            self._change(held, -1)

    def _lay_out(self, free: npt.NDArray[np.int64]) -> None:
        self.by_node = self.free = free
        self.idle = free.sum(axis=1)

    def choose(self, asked: Request) -> int | None:
        cpu, memory, gpu = asked.amounts["cpu"], asked.amounts["memory"], asked.gpu
        left_cpu, left_memory = self.free_cpu - cpu, self.free_memory - memory
        fits = (left_cpu >= 0) & (left_memory >= 0)
        left = left_cpu / self.cpu + left_memory / self.memory
        if gpu is None:
            left += self.penalty
        else:
            fits &= self._enough(gpu.devices, gpu.share)
            if gpu.model is not None:
                codes = [self.models[name] for name in gpu.models() if name in self.models]
                fits &= np.isin(self.model, codes)
            left += (self.idle - gpu.devices * gpu.share) / self.shares
        score = np.where(fits, -left, -np.inf)
        row = int(score.argmax())
        return row if fits[row] else None

    def _enough(self, devices: int, share: int) -> npt.NDArray[np.bool_]:
        return (self.free >= share).sum(axis=1) >= devices

    def take(self, row: int, asked: Request) -> Held:
        gpu = asked.gpu
        devices: list[int] = []
        if gpu is not None:
            free = self.by_node[row].tolist()
            fitting = [(left, index) for index, left in enumerate(free) if left >= gpu.share]
            devices = [index for _, index in sorted(fitting)[: gpu.devices]]
        share = gpu.share if gpu else 0
        held = Held(row, asked.amounts["cpu"], asked.amounts["memory"], devices, share)
        self._change(held, -1)
        return held

    def give(self, held: Held) -> None:
        self._change(held, 1)

    def _change(self, held: Held, sign: int) -> None:
        row = held.row
        self.free_cpu[row] += sign * held.cpu
        self.free_memory[row] += sign * held.memory
        for index in held.devices:
            self.by_node[row, index] += sign * held.share
            self.idle[row] += sign * held.share


class NumpyByPlanes(NaiveNumpy):
    """The same by one who knows numpy: it is fast along the last axis, so that is the nodes'."""

    def _lay_out(self, free: npt.NDArray[np.int64]) -> None:
        self.free = np.ascontiguousarray(free.T)
        self.by_node = self.free.T  # a view
        self.idle = free.sum(axis=1)

    def _enough(self, devices: int, share: int) -> npt.NDArray[np.bool_]:
        able = self.free >= share
        return able.any(axis=0) if devices == 1 else able.sum(axis=0) >= devices
