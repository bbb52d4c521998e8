"""Whether a decision was right (I9, and I3 for its devices), and always the same (I8).

A refusal is tried again on every node there is; a placement on the node and devices it names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gridhand.core.check.rows import (
    WHOLE,
    Allocation,
    Device,
    Hold,
    Node,
    Reader,
    Violation,
    read_hold,
    show,
)
from gridhand.core.check.state import Recount, read_dump, recount, twice

Variant = TypeVar("Variant")


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
            and device.model.casefold() not in ask.model.casefold().split("|"),
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
    found = twice("I3", "device", ((hold.device, hold.device, "the outcome") for hold in holds))
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
