"""HostUse: the CPU and memory of a node that processes outside of the grid use.

It is measured, kept in memory, and never part of the ledger. A measurement changes all the time,
so it is rounded and follows small changes down only late: placement would otherwise start over
with every sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gridhand.core.model.resources import UNIT

STEPS: Mapping[str, int] = {"cpu": UNIT // 4, "memory": 256 << 20}
_MOST_NAMED = 3


class Stranger(NamedTuple):
    """A process outside of the grid: `cpu` in ten-thousandths of a core, `memory` in bytes."""

    pid: int
    name: str
    cpu: int
    memory: int

    def amount(self, name: str) -> int:
        return self.cpu if name == "cpu" else self.memory


@dataclass(frozen=True, slots=True)
class HostUse:
    """The use of a node by others, with the largest of them; see `Stranger` for the units."""

    cpu: int = 0
    memory: int = 0
    strangers: tuple[Stranger, ...] = ()

    def amount(self, name: str) -> int:
        return self.cpu if name == "cpu" else self.memory if name == "memory" else 0

    @property
    def amounts(self) -> dict[str, int]:
        return {name: self.amount(name) for name in STEPS if self.amount(name)}

    def left_of(self, name: str, free: int) -> int:
        """Return what is left of a free amount; others cannot use more than there is."""
        return min(free, max(0, free - self.amount(name)))

    def follow(self, measured: HostUse) -> HostUse:
        """Return the use to plan with after a measurement, which is never less than measured.

        It rises at once, and falls when a whole step has become free. CPU below one step is noise
        that every machine has, and counts as none.
        """
        cpu = measured.cpu if measured.cpu >= STEPS["cpu"] else 0
        return HostUse(
            _steady("cpu", self.cpu, cpu),
            _steady("memory", self.memory, measured.memory),
            measured.strangers,
        )

    def beyond(self, spare: Mapping[str, int]) -> HostUse:
        """Return the use that is left when others first use what is no part of the node."""
        cpu, memory = (max(0, self.amount(name) - spare.get(name, 0)) for name in STEPS)
        return HostUse(cpu, memory, self.strangers)

    def sentence(self, name: str) -> str:
        """Return who uses a resource in words, the largest first; "" if nobody does.

        >>> blender = Stranger(4711, "blender", 0, 28 * 10**9)
        >>> HostUse(memory=28 * 10**9, strangers=(blender,)).sentence("memory")
        '28 GB used by pid 4711 (blender)'
        """
        total = self.amount(name)
        if not total:
            return ""
        largest = sorted(self.strangers, key=lambda one: -one.amount(name))
        named = [one for one in largest if one.amount(name) * 10 >= total][:_MOST_NAMED]
        parts = [(one.amount(name), f"pid {one.pid} ({one.name})") for one in named]
        rest = total - sum(amount for amount, _ in parts)
        if not parts or (rest > 2 * STEPS[name] and rest * 10 >= total):
            who = "other processes" if parts else "processes outside the grid"
            parts.append((rest, who))
        first, *others = (f"{_size(name, amount)} {{}}by {who}" for amount, who in parts)
        return ", ".join([first.format("used "), *(part.format("") for part in others)])


NO_HOST_USE = HostUse()


def _steady(name: str, kept: int, measured: int) -> int:
    step = STEPS[name]
    rounded = -(-measured // step) * step
    return rounded if rounded > kept or rounded <= kept - 2 * step else kept


def _size(name: str, amount: int) -> str:
    scale, digits, unit = (UNIT, 2, "cores") if name == "cpu" else (10**9, 1, "GB")
    if name == "memory" and amount < 10**9:
        scale, digits, unit = 10**6, 0, "MB"
    text = f"{amount / scale:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {unit}"
