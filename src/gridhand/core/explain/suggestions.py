"""Suggestions: the smallest change of one thing in a request that would make it fit now.

A survey says how much fits, so there is no search. The changed request is then placed like any
other, so that only changes that work are suggested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.core.explain.survey import Most, Survey
from gridhand.core.explain.tied_requests import ANYWHERE
from gridhand.core.ledger.ledger import Placement
from gridhand.core.model.amount_text import at_least, at_most
from gridhand.core.model.gpus import Capability, GpuRequest
from gridhand.core.model.requests import Request, Tie
from gridhand.core.model.resources import UNIT, Resources, amount_text

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot
    from gridhand.core.placement.strategies import OwnStrategy

MOST_CHANGES = 10
_CONSTRAINT = 0.5  # giving up a constraint ranks like giving up half of an amount
_ALL = 1.0
_SCALED = ("cpu", "memory", "gpu_memory")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change to a request, and the node where `request`, the changed request, fits now.

    `before` and `after` are exact; `text` has rounded amounts that are easy to read and type.
    `size` is the part of the amount that is given up; suggestions are ranked by it.
    """

    field: str
    before: str
    after: str
    node: str
    size: float
    text: str
    request: Request

    def __str__(self) -> str:
        return f"{self.text} (fits on {self.node})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "field": self.field,
            "from": self.before,
            "to": self.after,
            "node": self.node,
            "size": round(self.size, 6),
            "text": str(self),
        }


class _Idea(NamedTuple):
    """A change that has not been tried yet."""

    field: str
    before: str
    after: str
    size: float
    text: str
    request: Request
    row: int = -1  # where it fits, if that is known
    brief: str = ""  # the change of an amount as it is typed


def changes(
    asked: Request,
    snapshot: Snapshot,
    strategy: OwnStrategy | None,
    seen: Survey,
    lower: Sequence[Request] = (),
) -> tuple[Suggestion, ...]:
    """Return what would fit now, the smallest change first. `lower` has lower qualities."""
    trial = _Trial(snapshot, strategy)
    found = []
    for idea in (
        *_smaller_amounts(asked, seen, snapshot.memory_step_bytes),
        *_fewer_constraints(asked, trial),
        *_other_ways(asked, trial, lower),
    ):
        placed = trial.place(idea.request)
        if placed is not None:
            found.append(Suggestion(*idea[:3], placed.node, *idea[3:6]))
    found.sort(key=lambda change: change.size)
    return tuple(found[:MOST_CHANGES])


def least_change(asked: Request, snapshot: Snapshot, seen: Survey) -> str:
    """Return the smallest change of one amount in words, or empty if none would fit."""
    smaller = _smaller_amounts(asked, seen, snapshot.memory_step_bytes)
    ideas = [idea for idea in smaller if idea.after != "0"]
    if not ideas:
        return ""
    least = min(ideas, key=lambda idea: idea.size)
    pinned = replace(least.request, node=snapshot.ledger.names[least.row])
    if _Trial(snapshot, None).place(pinned) is None:
        return ""
    return least.brief


class _Trial:
    """Places hypothetical requests, without leaving their scores in the cache."""

    def __init__(self, snapshot: Snapshot, strategy: OwnStrategy | None) -> None:
        self.ledger, self._strategy = snapshot.ledger, strategy
        self._snapshot = snapshot.aside()

    def place(self, asked: Request) -> Placement | None:
        from gridhand.core.placement.place import place

        placed = place(asked, self._snapshot, self._strategy)
        return placed if isinstance(placed, Placement) else None


# ---- smaller amounts


def _smaller_amounts(asked: Request, seen: Survey, step_bytes: int) -> Iterator[_Idea]:
    for name, amount in asked.amounts.pairs:
        most = seen.most(name)
        if most is not None and name == "memory" and step_bytes:  # more would be rounded up
            most = most._replace(amount=most.amount - most.amount % step_bytes)
        rest = asked.amounts.without(name)
        if most is None or most.amount >= amount or not (most.amount or rest or asked.gpu):
            continue
        amounts = rest + Resources({name: most.amount})
        yield _less(asked, name, amount, most, replace(asked, amounts=amounts))
    if asked.gpu is not None:
        yield from _smaller_gpu(asked, asked.gpu, seen)


def _smaller_gpu(asked: Request, gpu: GpuRequest, seen: Survey) -> Iterator[_Idea]:
    whole = gpu.share in (0, UNIT)
    before = gpu.devices * UNIT if whole else gpu.share
    devices = seen.most_devices() if whole else None
    if devices is not None and 1 <= devices.amount < gpu.devices:
        fewer = replace(gpu, devices=devices.amount)
        parts = Most(devices.amount * UNIT, devices.row)
        yield _less(asked, "gpu", before, parts, replace(asked, gpu=fewer))
    elif gpu.share and (devices is None or not devices.amount):
        share = seen.most_share()
        # Without a share there is still memory to be held, if memory was asked for.
        least = 1 if gpu.memory_bytes is None else 0
        if share is not None and least <= share.amount < gpu.share:
            part = replace(gpu, devices=1, share=share.amount)
            yield _less(asked, "gpu", before, share, replace(asked, gpu=part))
    memory = seen.most_memory() if gpu.memory_bytes is not None else None
    if memory is not None and gpu.memory_bytes and 1 <= memory.amount < gpu.memory_bytes:
        scaled = replace(asked, gpu=gpu.with_memory(memory.amount))
        yield _less(asked, "gpu_memory", gpu.memory_bytes, memory, scaled)


def _less(asked: Request, field: str, before: int, most: Most, request: Request) -> _Idea:
    after = most.amount
    old, new = at_least(field, before), at_most(field, after)
    text = f"ask for {field} {new} instead of {old}" if after else f"do without {field}"
    if asked.quality is not None and field in _SCALED:
        text += f", as scaled for quality {asked.quality}"
    exact = amount_text(field, before), amount_text(field, after)
    brief = f"{field}={new} instead of {old}"
    return _Idea(field, *exact, (before - after) / before, text, request, most.row, brief)


# ---- dropped constraints


def _fewer_constraints(asked: Request, trial: _Trial) -> Iterator[_Idea]:
    if asked.node is not None:
        free = replace(asked, node=None, together_with=None)
        near = asked.together_with
        field, before = ("node", asked.node) if near is None else ("together_with", near)
        text = (
            f"do not pin it to {before}"
            if near is None
            else f"do not keep it together with {before}"
        )
        yield _Idea(field, before, "any", _CONSTRAINT, text, free)
    for key, value in asked.labels.items():
        labels = {name: wanted for name, wanted in asked.labels.items() if name != key}
        text = f"do not ask for the label {key}={value}"
        wished = replace(asked, labels=labels)
        yield _Idea(f"labels.{key}", value, "any", _CONSTRAINT, text, wished)
    if asked.exclude and not asked.apart_from:
        placed = trial.place(replace(asked, exclude=frozenset()))
        if placed is not None:
            kept_off = asked.exclude - {placed.node}
            text = f"permit {placed.node}, which is excluded"
            permitted = replace(asked, exclude=kept_off)
            yield _Idea("exclude", placed.node, "", _CONSTRAINT, text, permitted)
    if asked.tied_to is Tie.FOLDER:
        freed = replace(asked, tied_to=None)
        yield _Idea("anywhere", "no", "yes", _CONSTRAINT, ANYWHERE, freed)
    if asked.gpu is not None:
        yield from _other_devices(asked, asked.gpu, trial)


def _other_devices(asked: Request, gpu: GpuRequest, trial: _Trial) -> Iterator[_Idea]:
    if gpu.model is not None:
        placed = trial.place(replace(asked, gpu=replace(gpu, model=None)))
        if placed is not None:
            devices = trial.ledger.nodes[placed.node].devices
            picked = {devices[hold.device].gpu.model for hold in placed.devices}
            models = _joined(gpu.model, picked)
            new = " or ".join(sorted(picked - set(gpu.model.split("|")))) if models else "any model"
            wished = replace(asked, gpu=replace(gpu, model=models))
            yield _Idea(
                "gpu_model", gpu.model, models or "any", _CONSTRAINT, f"accept {new}", wished
            )
    if gpu.capability is not None:
        lower = _capability_that_fits(asked, gpu, trial)
        wished = replace(asked, gpu=replace(gpu, capability=lower))
        old, new = _version(gpu.capability), _version(lower)
        text = f"ask for gpu_capability {new} instead of {old}" if lower else "accept any device"
        yield _Idea("gpu_capability", old, new, _CONSTRAINT, text, wished)


def _joined(model: str, others: set[str]) -> str | None:
    """Return the accepted models and these others; None for any, if one has no name."""
    if "" in others:
        return None
    named = {one.lower(): one for one in (*sorted(others), *model.split("|"))}
    return "|".join(named[key] for key in sorted(named))


def _capability_that_fits(asked: Request, gpu: GpuRequest, trial: _Trial) -> Capability | None:
    """Return the highest capability below the requested one that fits; None for any."""
    wanted = gpu.capability or ()
    there = {one.capability for use in trial.ledger.nodes.values() for one in use.node.gpus}
    steps = sorted(one for one in there if one is not None and one < wanted)
    low, high = 0, len(steps)  # it fits below `low`, and not from `high` on
    while low < high:
        middle = (low + high) // 2
        with_less = replace(gpu, capability=steps[middle])
        if trial.place(replace(asked, gpu=with_less)) is not None:
            low = middle + 1
        else:
            high = middle
    return steps[low - 1] if low else None


def _version(capability: Capability | None) -> str:
    return ".".join(map(str, capability)) if capability else "any"


# ---- another way to do the work


def _other_ways(asked: Request, trial: _Trial, lower: Sequence[Request]) -> Iterator[_Idea]:
    fitting = next((one for one in lower if trial.place(one) is not None), None)
    if fitting is not None:
        old, new = asked.quality or "standard", str(fitting.quality)
        text = f"ask for quality {new} instead of {old}"
        yield _Idea("quality", old, new, _CONSTRAINT, text, fitting)
    if asked.gpu is not None and asked.amounts:
        text = 'run it without a GPU, with fallback="cpu"'
        yield _Idea("fallback", "none", "cpu", _ALL, text, asked.on_cpu())
