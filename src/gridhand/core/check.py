"""Proof, from the rows alone, that a ledger keeps its promises.

A ledger that counts wrongly would check itself with the same wrong count. So the checker shares
no code with it: it reads a plain dump (from memory, from a store's rows or from a file), counts
everything again the slow and obvious way, and reports each difference as a `Violation`. It trusts
nothing it reads: what is malformed is a violation too, never an exception.

Which invariant a finding names: I1 a node and its totals, I2 what is held, I3 devices, I5 the life
of an allocation (unique, dated, grouped), I7 histories and rebuilds (in `check_history`), I8 and
I9 decisions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gridhand.core.check_history import (
    LARGEST_COUNT,
    WHOLE,
    Allocation,
    Device,
    Hold,
    Node,
    Reader,
    Violation,
    check_history,
    check_rebuild,
    read_allocation,
    read_hold,
    read_node,
    replay,
    same_state,
    show,
)

__all__ = [
    "Violation",
    "check_decision",
    "check_determinism",
    "check_history",
    "check_rebuild",
    "check_state",
    "replay",
    "same_state",
]

Variant = TypeVar("Variant")


@dataclass(frozen=True)
class View:
    """The readable part of a dump; each node comes with its row, for what the ledger says of it."""

    now: int
    nodes: list[tuple[Node, object]]
    allocations: list[Allocation]
    foreign: dict[str, int]


def read_dump(dump: object, found: list[Violation]) -> View:
    """All of `dump` that can be read; the rest is added to `found`."""
    read = Reader(dump, "I2", "dump")
    now, foreign = read.count("now"), {}
    if isinstance(dump, Mapping) and dump.get("foreign") is not None:
        foreign = read.amounts("foreign", devices=True)
    nodes = [
        (node, row)
        for place, row in enumerate(read.items("nodes"))
        if (node := read_node(row, f"nodes[{place}]", found))
    ]
    allocations = [
        held
        for place, row in enumerate(read.items("allocations"))
        if (held := read_allocation(row, f"allocations[{place}]", found))
    ]
    found += read.found
    return View(now, nodes, allocations, foreign)


@dataclass
class Recount:
    """What a node's live allocations hold of it, and what that leaves."""

    held: Counter[str] = field(default_factory=Counter)
    holds: dict[str, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    total: dict[str, int] = field(default_factory=dict)
    available: dict[str, int] = field(default_factory=dict)
    overcommitted: bool = False

    def share(self, device: str) -> int:
        return sum(hold.share for hold in self.holds.get(device, ()))

    def memory(self, device: str) -> int:
        return sum(hold.memory for hold in self.holds.get(device, ()))


def recount(node: Node, live: Iterable[Allocation]) -> Recount:
    count = Recount(total=dict(node.capacity))
    for allocation in live:
        count.held.update(allocation.amounts)
        for hold in allocation.holds:
            count.holds[hold.device].append(hold)
            count.held.update(gpu=hold.share, gpu_memory=hold.memory)
    count.overcommitted = any(count.held[name] > count.total.get(name, 0) for name in _plain(count))
    for device in node.devices:
        share, memory = count.share(device.id), count.memory(device.id)
        if device.health == "ok":
            count.overcommitted |= share > WHOLE or memory > device.memory
            share, memory = WHOLE, device.memory
        count.total["gpu"] = count.total.get("gpu", 0) + share
        count.total["gpu_memory"] = count.total.get("gpu_memory", 0) + memory
    left = {name: total - count.held[name] for name, total in count.total.items()}
    count.available = {name: amount for name, amount in left.items() if amount > 0}
    return count


def _plain(count: Recount) -> list[str]:
    return [name for name in count.held if name not in ("gpu", "gpu_memory")]


def check_state(dump: object, *, strict_time: bool = False) -> list[Violation]:
    """Every broken promise in `dump`; empty when all is well.

    A deadline that has passed is a violation only with `strict_time`: until the next sweep a
    lapsed allocation may still be there.
    """
    found: list[Violation] = []
    view = read_dump(dump, found)
    live: dict[str, list[Allocation]] = defaultdict(list)
    for held in view.allocations:
        if held.live:
            live[held.node].append(held)
            found += _check_dates(held, view.now if strict_time else None)
    for node, row in view.nodes:
        found += _check_node(node, row, live.pop(node.name, []))
    for name, stranded in live.items():
        found += [Violation("I2", held.id, f"is on {name}, which is no node") for held in stranded]
    return found + _check_unique(view) + _check_groups(view.allocations)


def _check_node(node: Node, row: object, live: list[Allocation]) -> list[Violation]:
    count = recount(node, live)
    said = Reader(row, "I1", node.name)
    excused = said.flag("overcommitted")
    if excused != count.overcommitted:
        said.note(f"overcommitted is {excused}, but the recount says {count.overcommitted}")
    for name, held in sorted(count.held.items()):
        if held > count.total.get(name, 0) and not excused:
            said.note(f"{held} of {name} are held, of {count.total.get(name, 0)}")
    free = said.amounts("available", high=LARGEST_COUNT, devices=True)
    found = said.found + _differences("I1", node.name, "available", free, count.available)
    given = Reader(row, "I2", node.name)
    held_said = given.amounts("held", high=LARGEST_COUNT, devices=True)
    found += given.found + _differences("I2", node.name, "held", held_said, +count.held)
    for device in node.devices:
        found += _check_device(device, count, excused)
    devices = {device.id: device for device in node.devices}
    for allocation in live:
        found += _check_holds(allocation, devices)
    return found


def _differences(
    invariant: str, node: str, what: str, said: Mapping[str, int], counted: Mapping[str, int]
) -> list[Violation]:
    """Amounts that are not exactly as counted; an amount of zero must be absent."""
    names = [name for name in {**said, **counted} if said.get(name) != counted.get(name)]
    return [
        Violation(
            invariant,
            node,
            f"{what} {name} is said to be {show(said.get(name))}, but counts {counted.get(name)}",
        )
        for name in names
    ]


def _check_device(device: Device, count: Recount, excused: bool) -> list[Violation]:
    found = []
    share, memory = count.share(device.id), count.memory(device.id)
    holds = count.holds.get(device.id, [])
    if share > WHOLE:  # no excuse: a device never shrinks below one
        found.append(f"its shares add up to {share} of {WHOLE}")
    if memory > device.memory and device.health == "ok" and not excused:
        found.append(f"{memory} bytes of it are held, of {device.memory}")
    if len(holds) > 1 and any(hold.exclusive for hold in holds):
        found.append(f"is held exclusively, and by {len(holds)} at once")
    return [Violation("I3", device.id, message) for message in found]


def _check_holds(allocation: Allocation, devices: Mapping[str, Device]) -> list[Violation]:
    found = []
    for name, times in Counter(hold.device for hold in allocation.holds).items():
        if times > 1:
            found.append(f"holds {name} {times} times")
        if name not in devices:
            found.append(f"holds {name}, which is no device of {allocation.node}")
    # The memory may differ: a device can be described anew, larger, while it is held.
    found += [
        f"holds {hold.device} exclusively, but not all of it"
        for hold in allocation.holds
        if hold.exclusive and hold.share != WHOLE
    ]
    return [Violation("I3", allocation.id, message) for message in found]


def _check_dates(held: Allocation, now: int | None) -> list[Violation]:
    found = []
    dated = held.state == "reserved" or held.lifetime == "lease"
    if dated and held.deadline is None:
        found.append(f"is {held.state}, {held.lifetime}, and has no deadline")
    if not dated and held.deadline is not None:
        found.append(f"is {held.state}, {held.lifetime}, and has the deadline {held.deadline}")
    if now is not None and held.deadline is not None and held.deadline <= now:
        found.append(f"is {held.state} at {now}, after its deadline {held.deadline}")
    return [Violation("I5", held.id, message) for message in found]


def _check_unique(view: View) -> list[Violation]:
    nodes = [node for node, _ in view.nodes]
    live = [held for held in view.allocations if held.live]
    found = _twice("I1", "name", ((node.name, node.name, node.name) for node in nodes))
    found += _twice(
        "I3", "device", ((d.id, d.id, node.name) for node in nodes for d in node.devices)
    )
    found += _twice("I5", "id", ((held.id, held.id, held.id) for held in view.allocations))
    found += _twice("I5", "number", ((held.id, held.number, held.id) for held in view.allocations))
    pairs = ((held.id, (held.owner, held.holder), held.id) for held in live)
    return found + _twice("I5", "owner and holder", pairs)


def _twice(invariant: str, what: str, keys: Iterable[tuple[str, object, str]]) -> list[Violation]:
    """A violation for every (subject, key, whose) whose key was there before."""
    found: list[Violation] = []
    first: dict[object, str] = {}
    for subject, key, whose in keys:
        if key in first:
            message = f"the {what} {show(key)} is that of {first[key]} and again of {whose}"
            found.append(Violation(invariant, subject, message))
        first.setdefault(key, whose)
    return found


def _check_groups(allocations: Iterable[Allocation]) -> list[Violation]:
    groups: dict[str, list[Allocation]] = defaultdict(list)
    for held in allocations:
        if held.group is not None:
            groups[held.group].append(held)
    found = []
    for group, members in groups.items():
        live = [held for held in members if held.live]
        if live and len(live) < len(members):
            found.append((group, f"{len(live)} of its {len(members)} members are live"))
        if len({held.state for held in live}) > 1:
            found.append((group, "its live members differ in state"))
        if len({held.deadline for held in live}) > 1:
            found.append((group, "its live members differ in deadline"))
    return [Violation("I5", group, message) for group, message in found]


@dataclass(frozen=True)
class Ask:
    """A request, as plain amounts and hard constraints."""

    amounts: dict[str, int]
    gpu: int
    gpu_memory: int
    model: str | None
    capability: tuple[int, ...] | None
    node: str | None
    exclude: list[object]
    labels: dict[str, str]

    @property
    def devices(self) -> int | None:
        """How many devices it takes; none for a number that means nothing, like 1.5."""
        if self.gpu < WHOLE:
            return 1 if self.gpu or self.gpu_memory else 0
        return self.gpu // WHOLE if self.gpu % WHOLE == 0 else None

    def hold(self, device: Device) -> Hold:
        """What it takes of `device`."""
        if self.gpu >= WHOLE and not self.gpu_memory:
            return Hold(device.id, WHOLE, device.memory, True)
        share = self.gpu if self.gpu < WHOLE else 0
        return Hold(device.id, share, self.gpu_memory or device.memory * share // WHOLE, False)


_NOTHING = {
    "amounts": {}, "gpu": 0, "gpu_memory": 0, "gpu_model": None, "gpu_capability": None,
    "node": None, "exclude": [], "labels": {},
}  # fmt: skip


def read_ask(asked: object, found: list[Violation]) -> Ask:
    """The request; a field that is absent asks for nothing."""
    read = Reader({**_NOTHING, **asked} if isinstance(asked, Mapping) else asked, "I9", "request")
    ask = Ask(
        amounts=read.amounts("amounts"),
        gpu=read.count("gpu"),
        gpu_memory=read.count("gpu_memory"),
        model=read.maybe_text("gpu_model"),
        capability=read.capability("gpu_capability"),
        node=read.maybe_text("node"),
        exclude=read.items("exclude"),
        labels=read.texts("labels"),
    )
    found += read.found
    return ask


@dataclass(frozen=True)
class Place:
    """A node at the time of a decision."""

    node: Node
    count: Recount
    foreign: Mapping[str, int]

    def forbids(self, ask: Ask) -> list[str]:
        """Why nothing of `ask` may be here, devices aside."""
        node, labels = self.node, self.node.labels
        free = {name: total - self.count.held[name] for name, total in node.capacity.items()}
        reasons = {
            f"is {node.health}": node.health != "up",
            "is draining": node.draining,
            "is overcommitted": self.count.overcommitted,
            f"is not {ask.node}": ask.node not in (None, node.name),
            "is excluded": node.name in ask.exclude,
        }
        reasons |= {f"has not {k}={v}": labels.get(k) != v for k, v in ask.labels.items()}
        reasons |= {f"lacks {k}": v > max(0, free.get(k, 0)) for k, v in ask.amounts.items()}
        return [reason for reason, holds in reasons.items() if holds]

    def unsuitable(self, ask: Ask, device: Device) -> list[str]:
        """Which hard constraints keep `ask` off `device`."""
        capability = device.capability or ()
        reasons = {
            f"is {device.health}": device.health != "ok",
            f"is no {ask.model}": ask.model is not None
            and ask.model.casefold() != device.model.casefold(),
            "is not capable": ask.capability is not None and capability < ask.capability,
        }
        return [reason for reason, holds in reasons.items() if holds]

    def crowded(self, ask: Ask, device: Device) -> list[str]:
        """What on `device` leaves no room for `ask`."""
        wanted, holds = ask.hold(device), self.count.holds.get(device.id, [])
        foreign = self.foreign.get(device.id, 0)
        free = device.memory - self.count.memory(device.id) - foreign
        if wanted.exclusive:
            return ["is in use"] if holds or foreign else []
        reasons = {
            "is held exclusively": any(hold.exclusive for hold in holds),
            "has not that share left": self.count.share(device.id) + wanted.share > WHOLE,
            "has not that memory left": wanted.memory > free,
        }
        return [reason for reason, holds_true in reasons.items() if holds_true]

    def fits(self, ask: Ask) -> bool:
        if ask.devices is None or self.forbids(ask):
            return False
        free = [d for d in self.node.devices if not self.unsuitable(ask, d) + self.crowded(ask, d)]
        return len(free) >= ask.devices


def check_decision(dump: object, asked: object, outcome: object) -> list[Violation]:
    """Whether `outcome` is a right answer to `asked` in the state of `dump`, just before it.

    A refusal (None) is right when no permitted node fits. A placement is right on any node and
    devices that permit and fit it: which of them is best is not judged here.
    """
    found: list[Violation] = []
    view, ask = read_dump(dump, found), read_ask(asked, found)
    if found:
        return found
    live: dict[str, list[Allocation]] = defaultdict(list)
    for held in view.allocations:
        if held.live:
            live[held.node].append(held)
    places = {
        node.name: Place(node, recount(node, live[node.name]), view.foreign)
        for node, _ in view.nodes
    }
    if outcome is not None:
        return _check_placement(places, ask, outcome)
    fitting = sorted(name for name, place in places.items() if place.fits(ask))
    message = "fits, but the request was refused"
    return [Violation("I9", fitting[0], message)] if fitting else []


def _check_placement(places: Mapping[str, Place], ask: Ask, outcome: object) -> list[Violation]:
    read = Reader(outcome, "I9", "outcome")
    name = read.text("node")
    holds = [read_hold(row, "outcome", read.found) for row in read.items("devices")]
    if read.found:
        return read.found
    if name not in places:
        return [Violation("I9", name, "was chosen, and is no node")]
    place = places[name]
    found = [Violation("I9", name, f"was chosen, but {why}") for why in place.forbids(ask)]
    if len(holds) != ask.devices:
        message = f"gives {len(holds)} devices for {ask.devices}"
        found.append(Violation("I9" if ask.devices is None else "I3", name, message))
    return found + _check_picks(place, ask, holds)


def _check_picks(place: Place, ask: Ask, holds: list[Hold]) -> list[Violation]:
    found = _twice("I3", "device", ((hold.device, hold.device, "the outcome") for hold in holds))
    devices = {device.id: device for device in place.node.devices}
    for hold in holds:
        device = devices.get(hold.device)
        if device is None:
            message = f"was chosen, and is no device of {place.node.name}"
            found.append(Violation("I3", hold.device, message))
            continue
        wrong = [("I9", why) for why in place.unsuitable(ask, device)]
        wrong += [("I3", why) for why in place.crowded(ask, device)]
        if hold != ask.hold(device):
            wrong.append(("I3", f"is given as {hold}, not {ask.hold(device)}"))
        found += [Violation(rule, device.id, f"was chosen, but {why}") for rule, why in wrong]
    return found


def check_determinism(
    decide: Callable[[Variant], object], variants: Iterable[Variant]
) -> list[Violation]:
    """Which variants of one input, alike but for their order, `decide` answers differently.

    What `decide` raises is not caught: a decision that fails is no decision.
    """
    outcomes = [decide(variant) for variant in variants]
    return [
        Violation("I8", f"variant {place}", f"gave {show(outcome)}, the first {show(outcomes[0])}")
        for place, outcome in enumerate(outcomes)
        if outcome != outcomes[0]
    ]
