"""Devices for several asks that must share one node.

One ask takes the fullest devices that will do. Taken one after another like that, two asks may get
in each other's way although both would fit: the first takes the only device of the model that the
second must have. So they are picked together, going back where a pick was a dead end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType

from gridhand.core.gpus import DeviceHold, DeviceUse, GpuAsk
from gridhand.core.resources import UNIT

_NO_FOREIGN: Mapping[str, int] = MappingProxyType({})

# Packing is hard in general. Asks so contrived that this does not settle them count as not fitting.
_MOST_DEAD_ENDS = 2_000


def pick_together(
    asks: Sequence[GpuAsk], devices: Iterable[DeviceUse], foreign: Mapping[str, int] = _NO_FOREIGN
) -> list[tuple[DeviceHold, ...]] | None:
    """For each ask its devices, all of which may be held at once; None if there is no such pick."""
    uses = [copy(use) for use in devices]
    for use in uses:
        strangers = foreign.get(use.gpu.id, 0)
        if strangers:  # here they count like any other hold
            use.add(DeviceHold(use.gpu.id, 0, strangers))
    if sum(ask.devices * ask.share for ask in asks) > sum(use.free_share() for use in uses):
        return None
    by_memory = sum(ask.devices * (ask.memory_bytes or 0) for ask in asks)
    if by_memory > sum(use.free_memory(0) for use in uses):
        return None
    hardest = sorted(range(len(asks)), key=lambda number: _ease(asks[number], uses))
    slots = [number for number in hardest for _ in range(asks[number].devices)]
    picked = _search([asks[number] for number in slots], slots, uses)
    if picked is None:
        return None
    found: list[list[DeviceHold]] = [[] for _ in asks]
    for number, hold in zip(slots, picked, strict=True):
        found[number].append(hold)
    return [tuple(holds) for holds in found]


def _ease(ask: GpuAsk, uses: Sequence[DeviceUse]) -> tuple[int, bool, int, int, int]:
    """The fewer devices will do, and the more is asked of them, the earlier."""
    suited = sum(ask.suits(use.gpu) for use in uses)
    return suited, not ask.exclusive, -ask.devices, -ask.share, -(ask.memory_bytes or 0)


def _search(
    asks: Sequence[GpuAsk], slots: Sequence[int], uses: Sequence[DeviceUse]
) -> list[DeviceHold] | None:
    """One device for each slot; slots of the same number get distinct ones."""
    picked: list[tuple[DeviceUse, DeviceHold]] = []
    open_choices = [_choices(asks[0], [], uses)]
    dead_ends = 0
    while open_choices and dead_ends < _MOST_DEAD_ENDS:
        use = next(open_choices[-1], None)
        if use is None:
            dead_ends += 1
            open_choices.pop()
            if picked:
                last, hold = picked.pop()
                last.remove(hold)
            continue
        hold = asks[len(picked)].hold_on(use.gpu)
        use.add(hold)
        picked.append((use, hold))
        if len(picked) == len(slots):
            return [hold for _, hold in picked]
        turn = len(picked)
        own = [one for (one, _), slot in zip(picked, slots, strict=False) if slot == slots[turn]]
        open_choices.append(_choices(asks[turn], own, uses))
    return None


def _choices(
    ask: GpuAsk, taken: Sequence[DeviceUse], uses: Sequence[DeviceUse]
) -> Iterator[DeviceUse]:
    """The devices with room, the fullest first; of those that are alike only one."""
    fitting = [
        use
        for use in uses
        if use not in taken and ask.suits(use.gpu) and use.admits(ask.hold_on(use.gpu), 0)
    ]
    fitting.sort(key=lambda use: (UNIT - use.share if use.holds else UNIT + 1, use.free_memory(0)))
    alike: dict[object, DeviceUse] = {}
    for use in fitting:
        gpu = use.gpu
        kind = gpu.model, gpu.capability, gpu.memory_bytes
        alike.setdefault((kind, use.share, use.memory_bytes, bool(use.holds)), use)
    return iter(alike.values())


def merged(asks: Sequence[GpuAsk]) -> GpuAsk | None:
    """One ask for the devices of all, where they are whole and of one kind; else the first."""
    if not asks:
        return None
    whole = all(replace(ask, devices=1) == replace(asks[0], devices=1) for ask in asks)
    if whole and asks[0].exclusive:
        return replace(asks[0], devices=sum(ask.devices for ask in asks))
    return asks[0]
