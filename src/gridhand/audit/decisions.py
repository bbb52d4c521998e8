"""Checks that a decision was correct (I9; I3 for its devices) and deterministic (I8).

A refusal is checked against every node, a placement against the node and devices it names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gridhand.audit.rows import (
    WHOLE,
    AuditedAllocation,
    AuditedNode,
    Device,
    Hold,
    Reader,
    Violation,
    read_hold,
    show,
)
from gridhand.audit.state import Recount, duplicates, read_dump, recount

Variant = TypeVar("Variant")
_ENGINE = "gridhand.engine"  # the label of nodes that are served from other machines


@dataclass(frozen=True)
class PlacementRequest:
    """The amounts and hard constraints of a request."""

    amounts: dict[str, int]
    gpu: int
    gpu_memory: int
    model: str | None
    capability: tuple[int, ...] | None
    node: str | None
    exclude: list[object]
    labels: dict[str, str]
    tied_to: str | None

    @property
    def devices(self) -> int | None:
        """The number of devices it takes; None for an invalid number such as 1.5."""
        if self.gpu < WHOLE:
            return 1 if self.gpu or self.gpu_memory else 0
        return self.gpu // WHOLE if self.gpu % WHOLE == 0 else None

    def hold(self, device: Device) -> Hold:
        """Return what the request takes of `device`."""
        if self.gpu >= WHOLE and not self.gpu_memory:
            return Hold(device.id, WHOLE, device.memory, True)
        share = self.gpu if self.gpu < WHOLE else 0
        return Hold(device.id, share, self.gpu_memory or device.memory * share // WHOLE, False)


_NOTHING = {
    "amounts": {}, "gpu": 0, "gpu_memory": 0, "gpu_model": None, "gpu_capability": None,
    "node": None, "exclude": [], "labels": {}, "tied_to": None,
}  # fmt: skip


def read_request(asked: object, found: list[Violation]) -> PlacementRequest:
    """Read a request; an absent field asks for nothing."""
    read = Reader({**_NOTHING, **asked} if isinstance(asked, Mapping) else asked, "I9", "request")
    request = PlacementRequest(
        amounts=read.amounts("amounts"),
        gpu=read.count("gpu"),
        gpu_memory=read.count("gpu_memory"),
        model=read.maybe_text("gpu_model"),
        capability=read.capability("gpu_capability"),
        node=read.maybe_text("node"),
        exclude=read.items("exclude"),
        labels=read.texts("labels"),
        tied_to=read.maybe_text("tied_to"),
    )
    found += read.found
    return request


@dataclass(frozen=True)
class Place:
    """A node and its recounted use at the time of a decision."""

    node: AuditedNode
    count: Recount
    foreign: Mapping[str, int]
    others: Mapping[str, int]  # amounts of the node

    def forbids(self, asked: PlacementRequest) -> list[str]:
        """Return why the request may not go here, leaving devices aside."""
        node, labels = self.node, self.node.labels
        free = {
            name: total - self.count.held[name] - self.others.get(name, 0)
            for name, total in node.capacity.items()
        }
        reasons = {
            f"is {node.health}": node.health != "up",
            "is draining": node.draining,
            "is overcommitted": self.count.overcommitted,
            f"is not {asked.node}": asked.node not in (None, node.name),
            "is excluded": node.name in asked.exclude,
            f"does not have the {asked.tied_to}": asked.tied_to is not None and _ENGINE in labels,
        }
        reasons |= {f"does not have {k}={v}": labels.get(k) != v for k, v in asked.labels.items()}
        reasons |= {f"lacks {k}": v > max(0, free.get(k, 0)) for k, v in asked.amounts.items()}
        return [reason for reason, holds in reasons.items() if holds]

    def unsuitable(self, asked: PlacementRequest, device: Device) -> list[str]:
        """Return which hard constraints the device does not meet."""
        capability = device.capability or ()
        reasons = {
            f"is {device.health}": device.health != "ok",
            f"is not a {asked.model}": asked.model is not None
            and device.model.casefold() not in asked.model.casefold().split("|"),
            "is not capable": asked.capability is not None and capability < asked.capability,
        }
        return [reason for reason, holds in reasons.items() if holds]

    def crowded(self, asked: PlacementRequest, device: Device) -> list[str]:
        """Return why the device has no room for the request."""
        wanted, holds = asked.hold(device), self.count.holds.get(device.id, [])
        foreign = self.foreign.get(device.id, 0)
        free = device.memory - self.count.memory(device.id) - foreign
        if wanted.exclusive:
            return ["is in use"] if holds or foreign else []
        reasons = {
            "is held exclusively": any(hold.exclusive for hold in holds),
            "does not have that share left": self.count.share(device.id) + wanted.share > WHOLE,
            "does not have that memory left": wanted.memory > free,
        }
        return [reason for reason, holds_true in reasons.items() if holds_true]

    def fits(self, asked: PlacementRequest) -> bool:
        if asked.devices is None or self.forbids(asked):
            return False
        free = [
            d for d in self.node.devices if not self.unsuitable(asked, d) + self.crowded(asked, d)
        ]
        return len(free) >= asked.devices


def check_decision(dump: object, asked: object, outcome: object) -> list[Violation]:
    """Return the violations if `outcome` is a wrong decision on `asked` in the state of `dump`.

    A refusal (None) is correct if no permitted node fits. A placement is correct on any permitted
    node and devices with room: which of them is best is not checked.
    """
    found: list[Violation] = []
    view, wanted = read_dump(dump, found), read_request(asked, found)
    if found:
        return found
    live: dict[str, list[AuditedAllocation]] = defaultdict(list)
    for held in view.allocations:
        if held.live:
            live[held.node].append(held)
    places = {
        node.name: Place(
            node, recount(node, live[node.name]), view.foreign, view.host_use.get(node.name, {})
        )
        for node, _ in view.nodes
    }
    if outcome is not None:
        return _check_placement(places, wanted, outcome)
    fitting = sorted(name for name, place in places.items() if place.fits(wanted))
    message = "fits, but the request was refused"
    return [Violation("I9", fitting[0], message)] if fitting else []


def _check_placement(
    places: Mapping[str, Place], asked: PlacementRequest, outcome: object
) -> list[Violation]:
    read = Reader(outcome, "I9", "outcome")
    name = read.text("node")
    holds = [read_hold(row, "outcome", read.found) for row in read.items("devices")]
    if read.found:
        return read.found
    if name not in places:
        return [Violation("I9", name, "was chosen, but is not a node")]
    place = places[name]
    found = [Violation("I9", name, f"was chosen, but {why}") for why in place.forbids(asked)]
    if len(holds) != asked.devices:
        message = f"gives {len(holds)} devices for {asked.devices}"
        found.append(Violation("I9" if asked.devices is None else "I3", name, message))
    return found + _check_picks(place, asked, holds)


def _check_picks(place: Place, asked: PlacementRequest, holds: list[Hold]) -> list[Violation]:
    found = duplicates(
        "I3", "device", ((hold.device, hold.device, "the outcome") for hold in holds)
    )
    devices = {device.id: device for device in place.node.devices}
    for hold in holds:
        device = devices.get(hold.device)
        if device is None:
            message = f"was chosen, but is not a device of {place.node.name}"
            found.append(Violation("I3", hold.device, message))
            continue
        wrong = [("I9", why) for why in place.unsuitable(asked, device)]
        wrong += [("I3", why) for why in place.crowded(asked, device)]
        if hold != asked.hold(device):
            wrong.append(("I3", f"is given as {hold}, not {asked.hold(device)}"))
        found += [Violation(rule, device.id, f"was chosen, but {why}") for rule, why in wrong]
    return found


def check_determinism(
    decide: Callable[[Variant], object], variants: Iterable[Variant]
) -> list[Violation]:
    """Report variants of one input, differing only in order, that `decide` answers differently.

    Exceptions of `decide` are not caught.
    """
    outcomes = [decide(variant) for variant in variants]
    return [
        Violation("I8", f"variant {place}", f"gave {show(outcome)}, the first {show(outcomes[0])}")
        for place, outcome in enumerate(outcomes)
        if outcome != outcomes[0]
    ]
