"""What a state holds, counted again the slow and obvious way.

I1 is about a node and its totals, I2 what is held, I3 devices, I5 the life of an allocation:
unique, dated, grouped; I6 about jobs, which are judged where a dump tells of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gridhand.core.check.jobs import check_jobs, read_job
from gridhand.core.check.rows import (
    LARGEST_COUNT,
    WHOLE,
    Allocation,
    Device,
    Hold,
    Node,
    Reader,
    Violation,
    read_allocation,
    read_node,
    show,
)


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
    found += _check_unique(view) + _check_groups(view.allocations)
    if isinstance(dump, Mapping) and "jobs" in dump:
        found += _check_jobs(dump, view.allocations)
    return found


def _check_jobs(dump: object, allocations: list[Allocation]) -> list[Violation]:
    read = Reader(dump, "I6", "dump")
    found: list[Violation] = []
    jobs = [
        job
        for place, row in enumerate(read.items("jobs"))
        if (job := read_job(row, f"jobs[{place}]", found))
    ]
    found += twice("I6", "id", ((job.id, job.id, job.id) for job in jobs))
    found += twice("I6", "number", ((job.id, job.number, job.id) for job in jobs))
    return read.found + found + check_jobs(jobs, allocations)


def _check_node(node: Node, row: object, live: list[Allocation]) -> list[Violation]:
    count = recount(node, live)
    found: list[Violation] = []
    excused = count.overcommitted
    if _states_totals(row):
        excused = _check_totals(node, row, count, found)
    for device in node.devices:
        found += _check_device(device, count, excused)
    devices = {device.id: device for device in node.devices}
    for allocation in live:
        found += _check_holds(allocation, devices)
    return found


def _states_totals(row: object) -> bool:
    """Whether the row says what a ledger has counted. Those of a store keep no sums."""
    return isinstance(row, Mapping) and bool({"held", "available", "overcommitted"} & set(row))


def _check_totals(node: Node, row: object, count: Recount, found: list[Violation]) -> bool:
    """Compare what the ledger says with the recount; returns whether it says overcommitted."""
    said = Reader(row, "I1", node.name)
    excused = said.flag("overcommitted")
    if excused != count.overcommitted:
        said.note(f"overcommitted is {excused}, but the recount says {count.overcommitted}")
    for name, held in sorted(count.held.items()):
        if held > count.total.get(name, 0) and not excused:
            said.note(f"{held} of {name} are held, of {count.total.get(name, 0)}")
    free = said.amounts("available", high=LARGEST_COUNT, devices=True)
    found += said.found + _differences("I1", node.name, "available", free, count.available)
    given = Reader(row, "I2", node.name)
    held_said = given.amounts("held", high=LARGEST_COUNT, devices=True)
    found += given.found + _differences("I2", node.name, "held", held_said, +count.held)
    return excused


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
    found = twice("I1", "name", ((node.name, node.name, node.name) for node in nodes))
    found += twice(
        "I3", "device", ((d.id, d.id, node.name) for node in nodes for d in node.devices)
    )
    found += twice("I5", "id", ((held.id, held.id, held.id) for held in view.allocations))
    found += twice("I5", "number", ((held.id, held.number, held.id) for held in view.allocations))
    pairs = ((held.id, (held.owner, held.holder), held.id) for held in live)
    return found + twice("I5", "owner and holder", pairs)


def twice(invariant: str, what: str, keys: Iterable[tuple[str, object, str]]) -> list[Violation]:
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
