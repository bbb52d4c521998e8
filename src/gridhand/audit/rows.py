"""Reads untrusted rows.

An unreadable field is a `Violation`, never an exception: I1 in a node, I2 in an allocation, I3 in
a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WHOLE = 10_000
LARGEST_AMOUNT = 2**53 - 1
LARGEST_COUNT = 2**63 - 1
LIVE = ("reserved", "active")
CLOSED = ("released", "expired", "lost")
LIFETIMES = ("until_released", "lease", "session", "job")


@dataclass(frozen=True)
class Violation:
    """A broken invariant: its name, the subject, and what is wrong."""

    invariant: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.subject}: {self.message}"


@dataclass(frozen=True)
class Device:
    id: str
    index: int
    model: str
    memory: int
    capability: tuple[int, ...] | None
    health: str


@dataclass(frozen=True)
class AuditedNode:
    name: str
    capacity: dict[str, int]
    devices: tuple[Device, ...]
    labels: dict[str, str]
    health: str
    draining: bool


@dataclass(frozen=True)
class Hold:
    """The part of one device that one allocation holds."""

    device: str
    share: int
    memory: int
    exclusive: bool


@dataclass(frozen=True)
class AuditedAllocation:
    id: str
    number: int
    epoch: int
    owner: str
    holder: str
    node: str
    amounts: dict[str, int]
    holds: tuple[Hold, ...]
    state: str
    lifetime: str
    deadline: int | None
    ttl: int | None
    group: str | None

    @property
    def live(self) -> bool:
        return self.state in LIVE


def show(value: object) -> str:
    """Return a short text for any value, even one that cannot be printed."""
    try:
        text = repr(value)
    except Exception:  # a number of 5,000 digits or a list inside itself must not end the check
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def is_count(value: object, low: int = 0, high: int = LARGEST_COUNT) -> bool:
    return type(value) is int and low <= value <= high  # a bool is an int, and never an amount


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_count_or_null(value: object) -> bool:
    return value is None or is_count(value)


class Reader:
    """Reads a row field by field; notes unreadable fields and returns harmless values for them."""

    def __init__(self, row: object, invariant: str, subject: str) -> None:
        self.found: list[Violation] = []
        self.invariant, self.subject = invariant, subject
        self._row = row if isinstance(row, Mapping) else None
        if self._row is None:
            self.found.append(Violation(invariant, subject, f"must be a table, not {show(row)}"))

    def note(self, message: str) -> None:
        self.found.append(Violation(self.invariant, self.subject, message))

    def get(self, name: str, default: Any, wanted: str, fits: Callable[[Any], bool]) -> Any:
        if self._row is None:
            return default
        if name not in self._row:
            self.note(f"{name} is missing")
            return default
        value = self._row[name]
        if fits(value):
            return value
        self.note(f"{name} must be {wanted}, not {show(value)}")
        return default

    def text(self, name: str, *, empty: bool = False) -> str:
        text: str = self.get(
            name, "", "a text", lambda v: isinstance(v, str) and (empty or v != "")
        )
        return text

    def maybe_text(self, name: str) -> str | None:
        text: str | None = self.get(name, None, "a text or null", _is_text_or_null)
        return text

    def count(self, name: str, high: int = LARGEST_COUNT) -> int:
        number: int = self.get(
            name, 0, f"a whole number in 0..{high}", lambda v: is_count(v, 0, high)
        )
        return number

    def maybe_count(self, name: str) -> int | None:
        number: int | None = self.get(name, None, "a whole number or null", _is_count_or_null)
        return number

    def flag(self, name: str) -> bool:
        return self.get(name, False, "true or false", lambda v: type(v) is bool) is True

    def choice(self, name: str, *options: str) -> str:
        wanted = "one of " + ", ".join(options)
        text: str = self.get(
            name, options[0], wanted, lambda v: isinstance(v, str) and v in options
        )
        return text

    def items(self, name: str) -> list[object]:
        return list(self.get(name, [], "a list", lambda v: isinstance(v, list | tuple)))

    def capability(self, name: str) -> tuple[int, ...] | None:
        def fits(value: object) -> bool:
            pair = isinstance(value, list | tuple) and len(value) == 2 and all(map(is_count, value))
            return value is None or pair

        value = self.get(name, None, "two whole numbers or null", fits)
        return None if value is None else tuple(value)

    def texts(self, name: str) -> dict[str, str]:
        table = self.get(name, {}, "a table", lambda v: isinstance(v, Mapping))
        for key, value in table.items():
            if not isinstance(key, str) or not isinstance(value, str):
                self.note(f"{name} must be texts, not {show(key)}: {show(value)}")
        return {k: v for k, v in table.items() if isinstance(k, str) and isinstance(v, str)}

    def amounts(
        self, name: str, low: int = 0, high: int = LARGEST_AMOUNT, *, devices: bool = False
    ) -> dict[str, int]:
        """Read named amounts; `gpu` and `gpu_memory` are allowed only with `devices`."""
        good: dict[str, int] = {}
        for key, value in self.get(name, {}, "a table", lambda v: isinstance(v, Mapping)).items():
            if not isinstance(key, str):
                self.note(f"{name} has a name that is not a text: {show(key)}")
            elif key in ("gpu", "gpu_memory") and not devices:
                self.note(f"{name} has {key}, which belongs to devices")
            elif not is_count(value, low, high):
                self.note(f"{name} of {key} must be whole, in {low}..{high}, not {show(value)}")
            else:
                good[key] = value
        return good


def label(row: object, name: str, place: str) -> str:
    """Return a name for a row that may be unreadable: its own name, or its place."""
    own = row.get(name) if isinstance(row, Mapping) else None
    return own if isinstance(own, str) and own else place


def read_allocation(row: object, place: str, found: list[Violation]) -> AuditedAllocation | None:
    read = Reader(row, "I2", label(row, "id", place))
    holds = tuple(read_hold(part, read.subject, read.found) for part in read.items("devices"))
    held = AuditedAllocation(
        id=read.text("id"),
        number=read.count("number"),
        epoch=read.count("epoch"),
        owner=read.text("owner", empty=True),
        holder=read.text("holder", empty=True),
        node=read.text("node"),
        amounts=read.amounts("amounts", low=1),
        holds=holds,
        state=read.choice("state", *LIVE, *CLOSED),
        lifetime=read.choice("lifetime", *LIFETIMES),
        deadline=read.maybe_count("deadline"),
        ttl=read.maybe_count("ttl"),
        group=read.maybe_text("group"),
    )
    found += read.found
    return None if read.found else held


def read_hold(row: object, subject: str, found: list[Violation]) -> Hold:
    read = Reader(row, "I3", subject)
    hold = Hold(
        device=read.text("device"),
        share=read.count("share", high=WHOLE),
        memory=read.count("memory", high=LARGEST_AMOUNT),
        exclusive=read.flag("exclusive"),
    )
    found += read.found
    return hold


def read_node(row: object, place: str, found: list[Violation]) -> AuditedNode | None:
    read = Reader(row, "I1", label(row, "name", place))
    devices = tuple(read_device(part, read.subject, read.found) for part in read.items("devices"))
    node = AuditedNode(
        name=read.text("name"),
        capacity=read.amounts("capacity"),
        devices=devices,
        labels=read.texts("labels"),
        health=read.choice("health", "up", "suspect", "down"),
        draining=read.flag("draining"),
    )
    found += read.found
    return None if read.found else node


def read_device(row: object, node: str, found: list[Violation]) -> Device:
    read = Reader(row, "I3", label(row, "id", f"a device of {node}"))
    device = Device(
        id=read.text("id"),
        index=read.count("index"),
        model=read.text("model", empty=True),
        memory=read.count("memory", high=LARGEST_AMOUNT),
        capability=read.capability("capability"),
        health=read.choice("health", "ok", "sick", "lost"),
    )
    found += read.found
    return device
