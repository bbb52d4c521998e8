"""Job arrays: many jobs from one submission, written `1-10%4` or `1,3,5-9:2`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gridhand.core.errors import InvalidInput

MOST_TASKS = 1_000_000
MOST_INDEX = 10**9
_PART = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?", re.ASCII)
_ALLOWED = "indices such as 1-10, 1,3,5-9:2 or 1-100%4 (at most 4 at once)"


class ArraySpec(NamedTuple):
    """Sorted indices without repeats, and how many may run at once; None for no limit."""

    indices: tuple[int, ...]
    at_once: int | None = None


def read_array(value: object) -> ArraySpec:
    """Read the indices of an array in Slurm's notation.

    >>> read_array("1,3,5-9:2%2")
    ArraySpec(indices=(1, 3, 5, 7, 9), at_once=2)
    """
    text = value.replace(" ", "") if isinstance(value, str) and len(value) <= 100_000 else ""
    listed, percent, limit = text.partition("%")
    if percent and (not re.fullmatch(r"[0-9]{1,9}", limit, re.ASCII) or int(limit) < 1):
        raise InvalidInput("array", value, "a whole number of at least 1 after the %")
    ranges = [_read_range(part, value) for part in listed.split(",")]
    if sum(map(len, ranges)) > MOST_TASKS:
        raise InvalidInput("array", value, f"at most {MOST_TASKS} indices")
    indices = sorted({index for span in ranges for index in span})
    return ArraySpec(tuple(indices), int(limit) if percent else None)


def tasks_text(array: str, indices: Iterable[int], longest: int = 40) -> str:
    """Format tasks of an array as Slurm lists them; cut off after `longest` characters.

    >>> tasks_text("17", [4]), tasks_text("17", [1, 2, 4, 5, 6, 9])
    ('17_4', '17_[1-2,4-6,9]')
    """
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f"{array}_{ranges[0][0]}"
    text = ""
    for first, last in ranges:
        part = f"{first}" if first == last else f"{first}-{last}"
        if len(text) + len(part) > longest:
            text += ",…"
            break
        text += f",{part}" if text else part
    return f"{array}_[{text}]"


def _read_range(part: str, value: object) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        raise InvalidInput("array", value, _ALLOWED)
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if not first <= last <= MOST_INDEX:
        raise InvalidInput("array", value, f"ranges from low to high, up to {MOST_INDEX}")
    if step < 1:
        raise InvalidInput("array", value, "steps of at least 1")
    return range(first, last + 1, step)
