"""Quality levels, which scale the amounts and the time that work needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridhand.core.errors import InvalidInput
from gridhand.core.model.resources import UNIT, read_amount

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
    """Return the multiplier of each resource at a level; overrides replace single factors."""
    if not isinstance(level, str) or level not in LEVELS:
        raise InvalidInput(
            "quality", level, f"one of {', '.join(reversed(list(LEVELS)))} or {AUTO}"
        )
    if overrides is not None and not isinstance(overrides, Mapping):
        raise InvalidInput("quality override", overrides, "a mapping such as {'cpu': 3}")
    scale = dict(LEVELS[level])
    for name, value in (overrides or {}).items():
        if name not in scale:
            raise InvalidInput("quality override", name, f"any of {', '.join(scale)}")
        scale[name] = read_amount(f"{name} factor", value)
        if not scale[name]:
            raise InvalidInput(f"{name} factor", value, "a number above 0")
    return scale


def scaled(amount: int, factor: int) -> int:
    """Multiply and round to the nearest part; a positive amount never becomes 0."""
    if not amount:
        return 0
    return max(1, (amount * factor + UNIT // 2) // UNIT)


def scaled_duration(
    seconds: float, level: str, overrides: Mapping[str, Any] | None = None
) -> float:
    """Return the duration at a level of work that takes `seconds` at standard."""
    return seconds * factors(level, overrides)["time"] / UNIT
