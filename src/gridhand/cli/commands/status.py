"""The cluster as it is: all of it, each node, or one node in detail."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from gridhand.cli import render

Facts = Mapping[str, Any]

_LABELS = {"cpu": "CPU", "memory": "Memory", "disk": "Storage", "gpu": "GPU"}
_FIRST = (*_LABELS, "gpu_memory")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(as_json: bool) -> None:
    """Show the cluster and its controller."""
    from gridhand.client import connect

    with connect() as client:
        found = client.status()
    if as_json:
        render.print_json(found)
    else:
        click.echo("\n".join(status_lines(found)))


def status_lines(found: Facts) -> list[str]:
    controller, nodes = found["controller"], found["nodes"]
    jobs = ", ".join(f"{count} {state}" for state, count in found["jobs"].items())
    up = render.clock(controller["uptime_s"])
    lines = [
        f"Controller: {controller['version']}, pid {controller['pid']}, up {up}",
        f"Home:       {controller['home']}",
        f"Store:      {controller['store']}",
        f"Nodes:      {len(nodes)}{_healths(nodes)}",
        f"Jobs:       {jobs}",
    ]
    if found["total"]:
        lines += ["", *amount_table(found)]
    problems = [f"  {text}" for one in found.get("problems") or () for text in problem_lines(one)]
    return [*lines, "", "Problems:", *problems] if problems else lines


def problem_lines(problem: Any) -> list[str]:
    """What is wrong and what to do, however it was told."""
    if not isinstance(problem, Mapping):
        return [render.clean(problem)]
    where = f"{problem['node']}: " if problem.get("node") else ""
    said = [render.clean(f"{where}{problem.get('message', '')}")]
    return [*said, f"  {render.clean(problem['hint'])}"] if problem.get("hint") else said


def _healths(nodes: Iterable[Facts]) -> str:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[health(node)] = counts.get(health(node), 0) + 1
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f" ({told})" if told else ""


def amount_table(found: Facts) -> list[str]:
    """Each resource on a line: total, allocated, available, and how much of it is allocated."""
    rows = [
        (label(name), *(render.amount(name, found[kind].get(name, 0)) for kind in _KINDS),
         f"{100 * part(found, name):.0f} %")
        for name in names(found["total"])
    ]  # fmt: skip
    head = ("RESOURCE", "TOTAL", "ALLOCATED", "AVAILABLE", "SHARE")
    return render.table(head, rows, right="TOTAL,ALLOCATED,AVAILABLE,SHARE")


_KINDS = ("total", "allocated", "available")


def names(total: Facts) -> list[str]:
    """The resources there are: those that everybody knows first."""
    return [*(n for n in _FIRST if n in total), *sorted(n for n in total if n not in _FIRST)]


def label(name: str) -> str:
    return _LABELS.get(name) or ("GPU memory" if name == "gpu_memory" else name)


def part(node: Facts, name: str) -> float:
    total = node["total"].get(name, 0)
    return float(node["allocated"].get(name, 0) / total) if total else 0.0


def health(node: Facts) -> str:
    """One word, or two, for how a node is."""
    if node["health"] == "up" and node.get("draining"):
        return "draining"
    return f"{node['health']}, overcommitted" if node.get("overcommitted") else str(node["health"])


def _status_text(node: Facts) -> str:
    mark = "● " if render.on_terminal() else ""
    word = health(node)
    return render.coloured(f"{mark}{word}", word.partition(",")[0])


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def list_nodes(as_json: bool) -> None:
    """List the nodes and what is free on them."""
    from gridhand.client import connect

    with connect() as client:
        found = client.nodes()
    if as_json:
        render.print_json(found)
    else:
        click.echo("\n".join(list_lines(found)))


def list_lines(nodes: Iterable[Facts]) -> list[str]:
    lines = [line for node in nodes for line in _node_lines(node)]
    if not lines:
        return ["There are no nodes. `grid node register` adds one."]
    if not render.on_terminal():
        return lines
    return ["╔═══ Registered Nodes ═══", *(f"║ {line}" for line in lines), f"╚{'═' * 24}"]


def _node_lines(node: Facts) -> list[str]:
    found = names(node["total"])
    width = max(map(len, map(label, found)), default=0) + 1
    return [
        node["name"],
        f"  Status: {_status_text(node)}",
        *([f"  Address: {node['address']}"] if node.get("address") else []),
        "  Resources:",
        *(f"    {label(name) + ':':<{width}} {_in_words(node, name)}" for name in found),
        f"  Running Jobs: {jobs_on(node)}",
    ]


def _in_words(node: Facts, name: str) -> str:
    by, unit = (render.GB, " GB") if name in render.BYTES else (1, "")
    told = [
        f"{render.rounded_down(node[kind].get(name, 0), by, 1)}{unit} {kind}" for kind in _KINDS
    ]
    used = used_of(node, name)
    return ", ".join([*told, *([] if used is None else [f"{used / by:.1f}{unit} used"])])


def jobs_on(node: Facts) -> int:
    """How many jobs run there; where that is not told, how many hold something there."""
    jobs = node.get("jobs", node.get("allocations", 0))
    return len(jobs) if isinstance(jobs, list) else int(jobs)


def used_of(node: Facts, name: str) -> float | None:
    """What is really used, as far as it is measured."""
    used = node.get("used") or {}
    value = used.get(name, used.get(f"{name}_bytes"))
    return None if value is None else float(value)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.argument("node")
def stats(node: str, as_json: bool) -> None:
    """Show one node in detail."""
    from gridhand.client import connect

    with connect() as client:
        found = client.node(node)
    if as_json:
        render.print_json(found)
    else:
        click.echo("\n".join(stats_lines(found)))


def stats_lines(node: Facts) -> list[str]:
    """The blocks of it; framed on a terminal, and apart from each other elsewhere."""
    title, *blocks = _blocks(node)
    inside: list[str] = []
    for block in blocks:
        inside += ["", *block] if inside else block
    if not render.on_terminal():
        return [*title, *inside]
    rule = "═" * 51
    framed = [f"║ {line}".rstrip() for line in inside]
    return [f"╔{rule}", f"║ {title[0]}", f"╠{rule}", *framed, f"╚{rule}"]


def _blocks(node: Facts) -> list[list[str]]:
    found = names(node["total"])
    width = max([14, *(len(label(name)) + 2 for name in found)])
    wide = max([16, *(len(_allocated(name)) for name in found)])
    return [
        [f"Node: {node['name']}"],
        _heading(node),
        [
            "Resources (Total / Allocated / Available):",
            *(f"  {label(name) + ':':<{width}} {_beside(node, name)}" for name in found),
        ],
        [
            "Resource Utilization:",
            *(f"  {_allocated(name):<{wide}} {100 * part(node, name):.1f}%" for name in found),
        ],
        *([_gpus(node)] if node.get("gpus") else []),
        [f"{'Running Jobs:':<16} {jobs_on(node)}"],
    ]


def _allocated(name: str) -> str:
    return f"{'Mem' if name == 'memory' else label(name)} Allocated:"


def _heading(node: Facts) -> list[str]:
    labels = " ".join(f"{key}={value}" for key, value in (node.get("labels") or {}).items())
    facts = {
        "Status:": _status_text(node),
        "Address:": node.get("address"),
        "Last Seen:": _ago(node.get("last_seen_at")),
        "Labels:": labels,
    }
    return [f"{name:<16} {value}" for name, value in facts.items() if value]


def _ago(text: str | None) -> str | None:
    seen = render.moment(text)
    if seen is None:
        return None
    seconds = max(0, int(time.time() - seen))
    return (
        f"{render.plural(seconds, 'second')} ago"
        if seconds < 120
        else f"{render.clock(seconds)} ago"
    )


def _beside(node: Facts, name: str) -> str:
    unit = "GB" if name in render.BYTES else "cores" if name == "cpu" else ""
    by = render.GB if name in render.BYTES else 1
    told = " / ".join(render.rounded_down(node[kind].get(name, 0), by, 2) for kind in _KINDS)
    used, total = used_of(node, name), node["total"].get(name, 0)
    percent = f"({100 * used / total:.1f}% used)" if used is not None and total else ""
    return " ".join(filter(None, [told, unit, percent]))


def _gpus(node: Facts) -> list[str]:
    head = ("GPU", "MODEL", "HEALTH", "MEMORY", "ALLOCATED", "BY OTHERS", "FREE")
    rows = [
        (
            gpu["id"],
            gpu.get("model") or "-",
            gpu.get("health", "-"),
            _gpu_size(gpu, "memory"),
            "all of it" if gpu.get("exclusive") else _gpu_size(gpu, "allocated_memory"),
            _gpu_size(gpu, "foreign_memory"),
            _gpu_size(gpu, "free_memory"),
        )
        for gpu in node["gpus"]
    ]
    return [
        f"  {line}" for line in render.table(head, rows, right="MEMORY,ALLOCATED,BY OTHERS,FREE")
    ]


def _gpu_size(gpu: Facts, name: str) -> str:
    value = gpu.get(f"{name}_bytes")
    return "-" if value is None else render.size(value)
