"""Reads durations as users write them: in Slurm's notation, or with units."""

from __future__ import annotations

import re

from gridhand.core.errors import InvalidInput

MOST_MS = 10 * 365 * 86_400_000
UNLIMITED = frozenset({"unlimited", "infinite", "none", "0"})

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)"
_WITH_UNITS = re.compile("".join(rf"(?:{_NUMBER} ?{unit} ?)?" for unit in _UNITS), re.ASCII)
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.ASCII)
_ALLOWED = "30 (minutes), HH:MM:SS, D-HH:MM, or units as in 90s, 2h or 1h30m; at most 10 years"


def read_duration(value: object, field: str = "time") -> int:
    """Return a duration in milliseconds. A bare number counts minutes, as in Slurm.

    >>> read_duration("30"), read_duration("1-00:30"), read_duration("1h30m")
    (1800000, 88200000, 5400000)
    """
    text = value.strip().lower() if isinstance(value, str) and len(value) <= 100 else ""
    ms = _clock_ms(text)
    if ms is None:
        ms = _units_ms(text)
    if ms is None or not 0 < ms <= MOST_MS:
        raise InvalidInput(field, value, _ALLOWED)
    return ms


def read_time_limit(value: object, field: str = "time limit") -> int | None:
    """Return a time limit in milliseconds; None for `unlimited` or 0, as in Slurm."""
    if isinstance(value, str) and value.strip().lower() in UNLIMITED:
        return None
    return read_duration(value, field)


def _clock_ms(text: str) -> int | None:
    """Read M, M:S or H:M:S; with days and a dash in front, H, H:M or H:M:S."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, *fields = match.groups()
    numbers = [int(number) for number in fields if number is not None]
    if any(number > 59 for number in numbers[1:]):
        return None
    if days is not None:
        if numbers[0] > 23:
            return None
        sizes = [3_600_000, 60_000, 1_000]
    else:
        sizes = [3_600_000, 60_000, 1_000] if len(numbers) == 3 else [60_000, 1_000]
    rest = sum(number * size for number, size in zip(numbers, sizes, strict=False))
    return int(days or 0) * _UNITS["d"] + rest


def _units_ms(text: str) -> int | None:
    match = _WITH_UNITS.fullmatch(text)
    if match is None or not text:
        return None
    total = 0
    for number, size in zip(match.groups(), _UNITS.values(), strict=True):
        if number is not None:
            before, _, after = number.partition(".")
            total += int(before) * size + int(after or 0) * size // 10 ** len(after)
    return total


def duration_text(ms: int) -> str:
    """Return a duration for people: its two largest units, in whole seconds.

    >>> duration_text(5_400_000), duration_text(61_500), duration_text(300)
    ('1h 30m', '1m 2s', '1s')
    """
    seconds = max(1, -(-ms // 1000))
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _UNITS[unit] // 1000)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)
