"""Picks devices for several GPU requests that must share one node.

A single request takes the fullest devices that fit. Picked like that one after another, two
requests may fail although both would fit: the first takes the only device of the model that the
second needs. So the devices are picked together, with backtracking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType

from gridhand.core.ledger.devices import DeviceHold, DeviceUsage
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.resources import UNIT

_NO_FOREIGN: Mapping[str, int] = MappingProxyType({})

# Packing is NP-hard in general. Requests that are not settled by then count as not fitting.
_MOST_DEAD_ENDS = 2_000


def pick_together(
    asks: Sequence[GpuRequest],
    devices: Iterable[DeviceUsage],
    foreign: Mapping[str, int] = _NO_FOREIGN,
) -> list[tuple[DeviceHold, ...]] | None:
    """Return devices for each request that can all be held at once; None if there are none."""
    uses = [copy(use) for use in devices]
    for use in uses:
        strangers = foreign.get(use.gpu.id, 0)
        if strangers:  # counts like any other hold here
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


def _ease(ask: GpuRequest, uses: Sequence[DeviceUsage]) -> tuple[int, bool, int, int, int]:
    """Return a sort key: requests that few devices suit, and larger ones, come first."""
    suited = sum(ask.suits(use.gpu) for use in uses)
    return suited, not ask.exclusive, -ask.devices, -ask.share, -(ask.memory_bytes or 0)


def _search(
    asks: Sequence[GpuRequest], slots: Sequence[int], uses: Sequence[DeviceUsage]
) -> list[DeviceHold] | None:
    """Return a device for each slot; slots with the same number get distinct devices."""
    picked: list[tuple[DeviceUsage, DeviceHold]] = []
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
        hold = DeviceHold.of(asks[len(picked)], use.gpu)
        use.add(hold)
        picked.append((use, hold))
        if len(picked) == len(slots):
            return [hold for _, hold in picked]
        turn = len(picked)
        own = [one for (one, _), slot in zip(picked, slots, strict=False) if slot == slots[turn]]
        open_choices.append(_choices(asks[turn], own, uses))
    return None


def _choices(
    ask: GpuRequest, taken: Sequence[DeviceUsage], uses: Sequence[DeviceUsage]
) -> Iterator[DeviceUsage]:
    """Return the devices with room, the fullest first, and only one of several that are equal."""
    fitting = [
        use
        for use in uses
        if use not in taken and ask.suits(use.gpu) and use.admits(DeviceHold.of(ask, use.gpu), 0)
    ]
    fitting.sort(key=lambda use: (UNIT - use.share if use.holds else UNIT + 1, use.free_memory(0)))
    alike: dict[object, DeviceUsage] = {}
    for use in fitting:
        gpu = use.gpu
        kind = gpu.model, gpu.capability, gpu.memory_bytes
        alike.setdefault((kind, use.share, use.memory_bytes, bool(use.holds)), use)
    return iter(alike.values())


def merged(asks: Sequence[GpuRequest]) -> GpuRequest | None:
    """Return one request for all devices if they are whole and of one kind; else the first."""
    if not asks:
        return None
    whole = all(replace(ask, devices=1) == replace(asks[0], devices=1) for ask in asks)
    if whole and asks[0].exclusive:
        return replace(asks[0], devices=sum(ask.devices for ask in asks))
    return asks[0]
