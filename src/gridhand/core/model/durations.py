"""Durations as people write them: as in Slurm, or with units."""

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
    """The milliseconds in a text: a bare number counts minutes, as it does in Slurm.

    >>> read_duration("30"), read_duration("1-00:30"), read_duration("1h30m")
    (1800000, 88200000, 5400000)
    """
    text = value.strip().lower() if isinstance(value, str) and len(value) <= 100 else ""
    found = _clock(text)
    if found is None:
        found = _with_units(text)
    if found is None or not 0 < found <= MOST_MS:
        raise InvalidInput(field, value, _ALLOWED)
    return found


def read_time_limit(value: object, field: str = "time limit") -> int | None:
    """The milliseconds in a text, or None for no limit: `unlimited`, or 0, as in Slurm."""
    if isinstance(value, str) and value.strip().lower() in UNLIMITED:
        return None
    return read_duration(value, field)


def duration_text(ms: int) -> str:
    """The duration with its units; `read_duration` reads it back.

    >>> duration_text(5_400_000), duration_text(90_061_001)
    ('1h30m', '1d1h1m1s1ms')
    """
    said = ""
    for unit, size in _UNITS.items():
        count, ms = divmod(ms, size)
        said += f"{count}{unit}" if count else ""
    return said or "0s"


def _clock(text: str) -> int | None:
    """M, M:S or H:M:S; after a day and a dash H, H:M or H:M:S."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    days, *fields = found.groups()
    numbers = [int(number) for number in fields if number is not None]
    if any(number > 59 for number in numbers[1:]):
        return None
    if days is not None:
        if numbers[0] > 23:
            return None
        sizes = [3_600_000, 60_000, 1_000]
    else:
        sizes = [3_600_000, 60_000, 1_000] if len(numbers) == 3 else [60_000, 1_000]
    whole = sum(number * size for number, size in zip(numbers, sizes, strict=False))
    return int(days or 0) * _UNITS["d"] + whole


def _with_units(text: str) -> int | None:
    found = _WITH_UNITS.fullmatch(text)
    if found is None or not text:
        return None
    whole = 0
    for number, size in zip(found.groups(), _UNITS.values(), strict=True):
        if number is not None:
            before, _, after = number.partition(".")
            whole += int(before) * size + int(after or 0) * size // 10 ** len(after)
    return whole
