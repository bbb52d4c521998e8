"""The measured load of nodes and devices, as text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from gridhand.cli import render

Facts = Mapping[str, Any]

USED_HEAD = ("USED CPU", "USED MEMORY", "GPU USE", "SEEN")


def used_of(node: Facts, name: str) -> float | None:
    """Return the measured use, or None if it is not measured."""
    value = (node.get("used") or {}).get(name)
    return None if value is None else float(value)


def is_measured(nodes: Iterable[Facts]) -> bool:
    return any(node.get("used") or node.get("last_seen_at") for node in nodes)


def used_cells(node: Facts) -> tuple[str, ...]:
    """Return the cells of a list under `USED_HEAD`."""
    cpu, memory = used_of(node, "cpu"), used_of(node, "memory")
    return (
        "-" if cpu is None else f"{cpu:.2f}",
        "-" if memory is None else render.size(memory),
        gpu_percent(node),
        seen_ago(node, brief=True) or "-",
    )


def gpu_percent(node: Facts) -> str:
    """Return how busy the devices are, each in percent."""
    loads = [gpu.get("load") for gpu in node.get("gpus") or ()]
    return " ".join(_percent(load) for load in loads) if any(loads) else "-"


def _percent(load: Facts | None) -> str:
    busy = None if load is None else load.get("utilization")
    return "-" if busy is None else f"{busy:.0f}%"


def seen_ago(node: Facts, *, brief: bool = False) -> str | None:
    """Return how long ago the node was heard of; None if it never was."""
    seen = render.moment(node.get("last_seen_at"))
    if seen is None:
        return None
    seconds = max(0, int(time.time() - seen))
    if seconds < 120:
        return f"{seconds} s ago" if brief else f"{render.plural(seconds, 'second')} ago"
    return f"{render.clock(seconds)} ago"


def share_text(share: Facts) -> str:
    return f"{share['cpu']:.2f} cores, {render.size(share['memory_bytes'])}"


def load_lines(node: Facts) -> list[str]:
    """Return lines on who uses the node, and on its traffic; none if it is not measured."""
    load = node.get("load")
    if not load:
        return []
    facts = {"By Gridhand:": share_text(load["own"])}
    if load.get("others"):
        facts["By others:"] = share_text(load["others"])
        facts["Largest others:"] = ", ".join(map(_process_text, load["others"]["processes"][:3]))
    if load.get("load"):
        facts["Load average:"] = " ".join(f"{average:.2f}" for average in load["load"])
    facts["Network:"] = _traffic(load, "network", "received", "sent")
    if "disk_bytes" in load:
        used, total = render.size(load["disk_bytes"]), render.size(load["disk_total_bytes"])
        facts["Disk:"] = f"{used} of {total}"
    facts["Disk traffic:"] = _traffic(load, "disk", "read", "written")
    return ["Use:", *(f"  {name:<16} {text}" for name, text in facts.items() if text)]


def _process_text(process: Facts) -> str:
    name = render.clean(process["name"])
    return f"{name} ({process['pid']}, {process['user']}): {share_text(process)}"


def _traffic(load: Facts, name: str, *ways: str) -> str:
    found = {way: load.get(f"{name}_{way}_per_s") for way in ways}
    return ", ".join(
        f"{render.size(rate)}/s {way}" for way, rate in found.items() if rate is not None
    )


def gpu_columns(gpus: list[Facts]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return more columns of a table of devices, and their cells; none if nothing is measured."""
    loads = [gpu.get("load") for gpu in gpus]
    if not any(loads):
        return (), [()] * len(gpus)
    return ("BUSY", "USED", "TEMP", "POWER"), [_gpu_cells(load or {}) for load in loads]


def _gpu_cells(load: Facts) -> tuple[str, ...]:
    memory, heat, power = (load.get(key) for key in ("memory_bytes", "temperature_c", "power_w"))
    return (
        _percent(load),
        "-" if memory is None else render.size(memory),
        "-" if heat is None else f"{heat:.0f} °C",
        "-" if power is None else f"{power:.0f} W",
    )


def gpu_process_lines(gpus: Iterable[Facts]) -> list[str]:
    """Return a line for each process on a device: which, whose, and how much memory."""
    return [
        f"  {render.clean(gpu['id'])}: {_gpu_process_text(process)}"
        for gpu in gpus
        for process in (gpu.get("load") or {}).get("processes", ())
    ]


def _gpu_process_text(process: Facts) -> str:
    whose = f"job {process['job']}" if process.get("job") else "others"
    used = process.get("memory_bytes")
    size = "an unknown amount" if used is None else render.size(used)
    name = render.clean(process["name"]) or "?"
    return f"{name} ({process['pid']}, {process['user'] or '?'}): {size}, {whose}"
