"""Recounts a state in the slow and obvious way and compares (I1, I2, I3, I5, I6).

Jobs are checked only if the dump contains them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gridhand.audit.jobs import check_jobs, read_job
from gridhand.audit.rows import (
    LARGEST_COUNT,
    WHOLE,
    AuditedAllocation,
    AuditedNode,
    Device,
    Hold,
    Reader,
    Violation,
    read_allocation,
    read_node,
    show,
)


@dataclass(frozen=True)
class View:
    """The readable part of a dump; each node with its row, which may state the ledger's sums."""

    now: int
    nodes: list[tuple[AuditedNode, object]]
    allocations: list[AuditedAllocation]
    foreign: dict[str, int]
    host_use: dict[str, dict[str, int]]  # amounts that others use, by node


def read_dump(dump: object, found: list[Violation]) -> View:
    """Read a dump; unreadable parts are added to `found` as violations."""
    read = Reader(dump, "I2", "dump")
    now, foreign = read.count("now"), {}
    if isinstance(dump, Mapping) and dump.get("foreign") is not None:
        foreign = read.amounts("foreign", devices=True)
    host_use = _read_host_use(dump, found)
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
    return View(now, nodes, allocations, foreign, host_use)


def _read_host_use(dump: object, found: list[Violation]) -> dict[str, dict[str, int]]:
    rows = dump.get("host_use") if isinstance(dump, Mapping) else None
    read = Reader(rows if isinstance(rows, Mapping) else {}, "I2", "host_use")
    used = {str(name): read.amounts(name) for name in rows or {}}
    found += read.found
    return used


@dataclass
class Recount:
    """The recounted sums of a node: held, total and available."""

    held: Counter[str] = field(default_factory=Counter)
    holds: dict[str, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    total: dict[str, int] = field(default_factory=dict)
    available: dict[str, int] = field(default_factory=dict)
    overcommitted: bool = False

    def share(self, device: str) -> int:
        return sum(hold.share for hold in self.holds.get(device, ()))

    def memory(self, device: str) -> int:
        return sum(hold.memory for hold in self.holds.get(device, ()))


def recount(node: AuditedNode, live: Iterable[AuditedAllocation]) -> Recount:
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
    """Return every violation in `dump`.

    A deadline that has passed is a violation only with `strict_time`: a lapsed allocation may
    remain until the next sweep.
    """
    found: list[Violation] = []
    view = read_dump(dump, found)
    live: dict[str, list[AuditedAllocation]] = defaultdict(list)
    for held in view.allocations:
        if held.live:
            live[held.node].append(held)
            found += _check_dates(held, view.now if strict_time else None)
    for node, row in view.nodes:
        found += _check_node(node, row, live.pop(node.name, []))
    for name, stranded in live.items():
        found += [
            Violation("I2", held.id, f"is on {name}, which is not a node") for held in stranded
        ]
    found += _check_unique(view) + _check_groups(view.allocations)
    if isinstance(dump, Mapping) and "jobs" in dump:
        found += _check_jobs(dump, view.allocations)
    return found


def _check_jobs(dump: object, allocations: list[AuditedAllocation]) -> list[Violation]:
    read = Reader(dump, "I6", "dump")
    found: list[Violation] = []
    jobs = [
        job
        for place, row in enumerate(read.items("jobs"))
        if (job := read_job(row, f"jobs[{place}]", found))
    ]
    found += duplicates("I6", "id", ((job.id, job.id, job.id) for job in jobs))
    found += duplicates("I6", "number", ((job.id, job.number, job.id) for job in jobs))
    return read.found + found + check_jobs(jobs, allocations)


def _check_node(node: AuditedNode, row: object, live: list[AuditedAllocation]) -> list[Violation]:
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
    """Return whether the row contains the sums of a ledger; rows of a store do not."""
    return isinstance(row, Mapping) and bool({"held", "available", "overcommitted"} & set(row))


def _check_totals(node: AuditedNode, row: object, count: Recount, found: list[Violation]) -> bool:
    """Compare the ledger's sums with the recount; return whether the ledger says overcommitted."""
    totals = Reader(row, "I1", node.name)
    excused = totals.flag("overcommitted")
    if excused != count.overcommitted:
        totals.note(f"overcommitted is {excused}, but the recount says {count.overcommitted}")
    for name, held in sorted(count.held.items()):
        if held > count.total.get(name, 0) and not excused:
            totals.note(f"{held} of {name} is held, but the total is {count.total.get(name, 0)}")
    free = totals.amounts("available", high=LARGEST_COUNT, devices=True)
    found += totals.found + _differences("I1", node.name, "available", free, count.available)
    holds = Reader(row, "I2", node.name)
    held_amounts = holds.amounts("held", high=LARGEST_COUNT, devices=True)
    found += holds.found + _differences("I2", node.name, "held", held_amounts, +count.held)
    return excused


def _differences(
    invariant: str, node: str, what: str, stated: Mapping[str, int], counted: Mapping[str, int]
) -> list[Violation]:
    """Report amounts that are not exactly as counted; an amount of zero must be absent."""
    names = [name for name in {**stated, **counted} if stated.get(name) != counted.get(name)]
    return [
        Violation(
            invariant,
            node,
            f"{what} {name} is stated as {show(stated.get(name))}, but counts {counted.get(name)}",
        )
        for name in names
    ]


def _check_device(device: Device, count: Recount, excused: bool) -> list[Violation]:
    found = []
    share, memory = count.share(device.id), count.memory(device.id)
    holds = count.holds.get(device.id, [])
    if share > WHOLE:  # never excused: the share of a device is always 1
        found.append(f"its shares add up to {share} of {WHOLE}")
    if memory > device.memory and device.health == "ok" and not excused:
        found.append(f"{memory} bytes of it are held, but it has {device.memory}")
    if len(holds) > 1 and any(hold.exclusive for hold in holds):
        found.append(f"is held exclusively, but by {len(holds)} allocations")
    return [Violation("I3", device.id, message) for message in found]


def _check_holds(allocation: AuditedAllocation, devices: Mapping[str, Device]) -> list[Violation]:
    found = []
    for name, times in Counter(hold.device for hold in allocation.holds).items():
        if times > 1:
            found.append(f"holds {name} {times} times")
        if name not in devices:
            found.append(f"holds {name}, which is not a device of {allocation.node}")
    # The memory may differ: a device can be registered again with more memory while it is held.
    found += [
        f"holds {hold.device} exclusively, but not all of it"
        for hold in allocation.holds
        if hold.exclusive and hold.share != WHOLE
    ]
    return [Violation("I3", allocation.id, message) for message in found]


def _check_dates(held: AuditedAllocation, now: int | None) -> list[Violation]:
    found = []
    dated = held.state == "reserved" or held.lifetime == "lease"
    if dated and held.deadline is None:
        found.append(f"is {held.state} ({held.lifetime}), but has no deadline")
    if not dated and held.deadline is not None:
        found.append(f"is {held.state} ({held.lifetime}), but has the deadline {held.deadline}")
    if now is not None and held.deadline is not None and held.deadline <= now:
        found.append(f"is {held.state} at {now}, after its deadline {held.deadline}")
    return [Violation("I5", held.id, message) for message in found]


def _check_unique(view: View) -> list[Violation]:
    nodes = [node for node, _ in view.nodes]
    live = [held for held in view.allocations if held.live]
    found = duplicates("I1", "name", ((node.name, node.name, node.name) for node in nodes))
    found += duplicates(
        "I3", "device", ((d.id, d.id, node.name) for node in nodes for d in node.devices)
    )
    found += duplicates("I5", "id", ((held.id, held.id, held.id) for held in view.allocations))
    found += duplicates(
        "I5", "number", ((held.id, held.number, held.id) for held in view.allocations)
    )
    pairs = ((held.id, (held.owner, held.holder), held.id) for held in live)
    return found + duplicates("I5", "owner and holder", pairs)


def duplicates(
    invariant: str, what: str, keys: Iterable[tuple[str, object, str]]
) -> list[Violation]:
    """Return a violation for every (subject, key, place) whose key occurred before."""
    found: list[Violation] = []
    first: dict[object, str] = {}
    for subject, key, place in keys:
        if key in first:
            message = f"the {what} {show(key)} occurs in {first[key]} and again in {place}"
            found.append(Violation(invariant, subject, message))
        first.setdefault(key, place)
    return found


def _check_groups(allocations: Iterable[AuditedAllocation]) -> list[Violation]:
    groups: dict[str, list[AuditedAllocation]] = defaultdict(list)
    for held in allocations:
        if held.group is not None:
            groups[held.group].append(held)
    found = []
    for group, members in groups.items():
        live = [held for held in members if held.live]
        if live and len(live) < len(members):
            found.append((group, f"{len(live)} of its {len(members)} members are live"))
        if len({held.state for held in live}) > 1:
            found.append((group, "its live members have different states"))
        if len({held.deadline for held in live}) > 1:
            found.append((group, "its live members have different deadlines"))
    return [Violation("I5", group, message) for group, message in found]
