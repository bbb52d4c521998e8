"""Quality levels: the same work, done more or less finely, needs more or less of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridhand.core.errors import InvalidInput
from gridhand.core.resources import UNIT, read_amount

Factors = Mapping[str, int]

AUTO = "auto"

# In parts of UNIT, so that scaling stays exact. From the highest level down.
LEVELS: Mapping[str, Factors] = {
    "ultra": {"cpu": 20_000, "memory": 15_000, "gpu_memory": 14_000, "time": 40_000},
    "high": {"cpu": 15_000, "memory": 13_000, "gpu_memory": 12_000, "time": 20_000},
    "standard": {"cpu": 10_000, "memory": 10_000, "gpu_memory": 10_000, "time": 10_000},
    "draft": {"cpu": 5_000, "memory": 7_000, "gpu_memory": 8_000, "time": 5_000},
}


def factors(level: str, overrides: Mapping[str, Any] | None = None) -> Factors:
    """By how much each thing is multiplied at a level; overrides replace single factors."""
    if not isinstance(level, str) or level not in LEVELS:
        raise InvalidInput(
            "quality", level, f"one of {', '.join(reversed(list(LEVELS)))} or {AUTO}"
        )
    if overrides is not None and not isinstance(overrides, Mapping):
        raise InvalidInput("quality override", overrides, "a mapping such as {'cpu': 3}")
    found = dict(LEVELS[level])
    for name, value in (overrides or {}).items():
        if name not in found:
            raise InvalidInput("quality override", name, f"any of {', '.join(found)}")
        found[name] = read_amount(f"{name} factor", value)
        if not found[name]:
            raise InvalidInput(f"{name} factor", value, "a number above 0")
    return found


def scaled(amount: int, factor: int) -> int:
    """The amount times the factor, to the nearest part; something never becomes nothing."""
    if not amount:
        return 0
    return max(1, (amount * factor + UNIT // 2) // UNIT)


def scaled_duration(
    seconds: float, level: str, overrides: Mapping[str, Any] | None = None
) -> float:
    """How long the work will take at a level, if it takes `seconds` at standard."""
    return seconds * factors(level, overrides)["time"] / UNIT
