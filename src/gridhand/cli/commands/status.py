"""`grid status`, `grid list` and `grid stats`: the cluster, its nodes, and one node in detail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support.completions import complete_nodes
from gridhand.cli.support.node_load import (
    USED_HEAD,
    gpu_columns,
    gpu_percent,
    gpu_process_lines,
    is_measured,
    load_lines,
    seen_ago,
    share_text,
    used_cells,
    used_of,
)

Facts = Mapping[str, Any]

_LABELS = {"cpu": "CPU", "memory": "Memory", "disk": "Storage", "gpu": "GPU"}
_MOST_OWNERS = 20
_FIRST = (*_LABELS, "gpu_memory")


@command()
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """Show a summary of the cluster."""
    from gridhand.client import connect

    with connect() as client:
        summary = client.status()
    if as_json:
        render.print_json(summary)
    else:
        click.echo("\n".join(status_lines(summary)))


def status_lines(summary: Facts) -> list[str]:
    controller, nodes = summary["controller"], summary["nodes"]
    jobs = ", ".join(f"{count} {state}" for state, count in summary["jobs"].items())
    up = render.clock(controller["uptime_s"])
    lines = [
        f"Controller: {controller['version']}, pid {controller['pid']}, up {up}",
        f"Home:       {controller['home']}",
        f"Store:      {controller['store']}",
        f"Nodes:      {len(nodes)}{_healths(nodes)}",
        f"Jobs:       {jobs}",
    ]
    if summary["total"]:
        lines += ["", *amount_table(summary)]
    if len(summary.get("shares") or ()) > 1:
        lines += ["", *share_table(summary["shares"])]
    problems = [
        f"  {text}" for problem in summary.get("problems") or () for text in problem_lines(problem)
    ]
    return [*lines, "", "Problems:", *problems] if problems else lines


def problem_lines(problem: Any) -> list[str]:
    """Return the lines of a problem and its hint."""
    if not isinstance(problem, Mapping):
        return [render.clean(problem)]
    where = f"{problem['node']}: " if problem.get("node") else ""
    lines = [render.clean(f"{where}{problem.get('message', '')}")]
    return [*lines, f"  {render.clean(problem['hint'])}"] if problem.get("hint") else lines


def _healths(nodes: Iterable[Facts]) -> str:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[health(node)] = counts.get(health(node), 0) + 1
    parts = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f" ({parts})" if parts else ""


def share_table(shares: Sequence[Facts]) -> list[str]:
    """Return a line for each owner: the part of the cluster that they have and had."""
    rows = [
        (one["owner"], f"{100 * one['share']:.0f} %", f"{100 * one['past_share']:.0f} %")
        for one in shares[:_MOST_OWNERS]
    ]
    more = len(shares) - len(rows)
    lines = render.table(("OWNER", "SHARE", "PAST"), rows, right="SHARE,PAST")
    return [*lines, f"and {more} more"] if more else lines


def amount_table(facts: Facts) -> list[str]:
    """Return a table of resources: total, allocated, available, and the share allocated."""
    rows = [
        (label(name), *(render.amount(name, facts[kind].get(name, 0)) for kind in _KINDS),
         f"{100 * part(facts, name):.0f} %")
        for name in names(facts["total"])
    ]  # fmt: skip
    head = ("RESOURCE", "TOTAL", "ALLOCATED", "AVAILABLE", "SHARE")
    return render.table(head, rows, right="TOTAL,ALLOCATED,AVAILABLE,SHARE")


_KINDS = ("total", "allocated", "available")


def names(total: Facts) -> list[str]:
    """Return the names of the resources, well-known ones first."""
    return [*(n for n in _FIRST if n in total), *sorted(n for n in total if n not in _FIRST)]


def label(name: str) -> str:
    return _LABELS.get(name) or ("GPU memory" if name == "gpu_memory" else name)


def part(node: Facts, name: str) -> float:
    total = node["total"].get(name, 0)
    return float(node["allocated"].get(name, 0) / total) if total else 0.0


def health(node: Facts) -> str:
    """Return the health of a node in one or two words."""
    if node["health"] == "up" and node.get("draining"):
        return "draining"
    return f"{node['health']}, overcommitted" if node.get("overcommitted") else str(node["health"])


def _status_text(node: Facts) -> str:
    mark = "● " if render.on_terminal() else ""
    word = health(node)
    return render.coloured(f"{mark}{word}", word.partition(",")[0])


@command("list")
@option("-l", "--long", "in_full", is_flag=True, help="Show each node in full.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_nodes(in_full: bool, as_json: bool) -> None:
    """List the nodes and their resources.

    One line for each node says what is free; --long and `grid stats NODE` show more.
    """
    from gridhand.client import connect

    with connect() as client:
        nodes = client.nodes()
    if as_json:
        render.print_json(nodes)
    elif not nodes:
        click.echo("There are no nodes. Add one with `grid node register`.")
    else:
        lines = (
            list_lines(nodes)
            if in_full
            else render.fitted(node_table(nodes, render.terminal_width()))
        )
        click.echo("\n".join(lines))


def node_table(nodes: Iterable[Facts], width: int | None = None) -> list[str]:
    """Return a line for each node: what is free, of how much, and what is used if measured."""
    listed = list(nodes)
    measured = is_measured(listed)
    head = ("NODE", "STATUS", "FREE CPU", "FREE MEMORY", "FREE GPU", "OTHERS", "JOBS")
    rows = [
        (
            node["name"],
            health(node),
            *(_free(node, name) for name in ("cpu", "memory", "gpu")),
            ", ".join(f"{_free(node, name)} {name}" for name in _others(node)) or "-",
            jobs_on(node),
            *(used_cells(node) if measured else ()),
        )
        for node in listed
    ]
    right = "FREE CPU,FREE MEMORY,FREE GPU,JOBS,USED CPU,USED MEMORY"
    return render.table((*head, *(USED_HEAD if measured else ())), rows, right, width)


def _free(node: Facts, name: str) -> str:
    if name not in node["total"]:
        return "-"
    free, total = (node[kind].get(name, 0) for kind in ("available", "total"))
    if name not in render.BYTES:
        return f"{render.number(free)}/{render.number(total)}"
    return f"{render.size(free)}/{render.size(total)}"


def _others(node: Facts) -> list[str]:
    return [name for name in names(node["total"]) if name not in _FIRST]


def list_lines(nodes: Iterable[Facts]) -> list[str]:
    """Return each node in full, with a frame on a terminal."""
    lines = [line for node in nodes for line in _node_lines(node)]
    if not render.on_terminal():
        return lines
    return ["╔═══ Registered Nodes ═══", *(f"║ {line}" for line in lines), f"╚{'═' * 24}"]


def _node_lines(node: Facts) -> list[str]:
    resources = names(node["total"])
    width = max(map(len, map(label, resources)), default=0) + 1
    return [
        node["name"],
        f"  Status: {_status_text(node)}",
        *([f"  Address: {address}"] if (address := _address(node)) else []),
        *([f"  Last Seen: {seen}"] if (seen := seen_ago(node)) else []),
        "  Resources:",
        *(f"    {label(name) + ':':<{width}} {_in_words(node, name)}" for name in resources),
        *([f"  GPU Use: {busy}"] if (busy := gpu_percent(node)) != "-" else []),
        *([f"  Used By Others: {share_text(others)}"] if (others := _used_by_others(node)) else []),
        f"  Running Jobs: {jobs_on(node)}",
    ]


def _used_by_others(node: Facts) -> Facts | None:
    load = node.get("load") or {}
    return load.get("others") or None


def _address(node: Facts) -> str:
    """Return where the node is: a declared address, which nothing connects to, or here."""
    if node.get("address"):
        return f"{node['address']} (declared only)"
    elsewhere = "gridhand.engine" in node["labels"]  # it is heard by its heartbeats
    return "this machine" if node.get("last_seen_at") and not elsewhere else ""


def _in_words(node: Facts, name: str) -> str:
    by, unit = (render.GB, " GB") if name in render.BYTES else (1, "")
    parts = [
        f"{render.rounded_down(node[kind].get(name, 0), by, 1)}{unit} {kind}" for kind in _KINDS
    ]
    used = used_of(node, name)
    return ", ".join([*parts, *([] if used is None else [f"{used / by:.1f}{unit} used"])])


def jobs_on(node: Facts) -> int:
    """Return how many jobs run on the node; reservations are not counted."""
    return int(node["jobs"])


@command()
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("node", shell_complete=complete_nodes)
def stats(node: str, as_json: bool) -> None:
    """Show one node in detail."""
    from gridhand.client import connect

    with connect() as client:
        facts = client.node(node)
    if as_json:
        render.print_json(facts)
    else:
        click.echo("\n".join(stats_lines(facts)))


def stats_lines(node: Facts) -> list[str]:
    """Return the lines about a node, with a frame on a terminal."""
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
    resources = names(node["total"])
    width = max([14, *(len(label(name)) + 2 for name in resources)])
    wide = max([16, *(len(_allocated(name)) for name in resources)])
    return [
        [f"Node: {node['name']}"],
        _heading(node),
        [
            "Resources (Total / Allocated / Available):",
            *(f"  {label(name) + ':':<{width}} {_beside(node, name)}" for name in resources),
        ],
        [
            "Resource Utilization:",
            *(f"  {_allocated(name):<{wide}} {100 * part(node, name):.1f}%" for name in resources),
        ],
        *([_gpus(node)] if node.get("gpus") else []),
        *([processes] if (processes := gpu_process_lines(node.get("gpus") or ())) else []),
        *([lines] if (lines := load_lines(node)) else []),
        [f"{'Running Jobs:':<16} {jobs_on(node)}"],
    ]


def _allocated(name: str) -> str:
    return f"{'Mem' if name == 'memory' else label(name)} Allocated:"


def _heading(node: Facts) -> list[str]:
    labels = " ".join(f"{key}={value}" for key, value in (node.get("labels") or {}).items())
    facts = {
        "Status:": _status_text(node),
        "Address:": _address(node),
        "Last Seen:": seen_ago(node),
        "Labels:": labels,
    }
    return [f"{name:<16} {value}" for name, value in facts.items() if value]


def _beside(node: Facts, name: str) -> str:
    unit = "GB" if name in render.BYTES else "cores" if name == "cpu" else ""
    by = render.GB if name in render.BYTES else 1
    parts = " / ".join(render.rounded_down(node[kind].get(name, 0), by, 2) for kind in _KINDS)
    used, total = used_of(node, name), node["total"].get(name, 0)
    percent = f"({100 * used / total:.1f}% used)" if used is not None and total else ""
    return " ".join(filter(None, [parts, unit, percent]))


def _gpus(node: Facts) -> list[str]:
    head = ("GPU", "MODEL", "HEALTH", "MEMORY", "ALLOCATED", "BY OTHERS", "FREE")
    more, loads = gpu_columns(list(node["gpus"]))
    rows = [
        (
            gpu["id"],
            gpu.get("model") or "-",
            gpu.get("health", "-"),
            _gpu_size(gpu, "memory"),
            "whole" if gpu.get("exclusive") else _gpu_size(gpu, "allocated_memory"),
            _gpu_size(gpu, "foreign_memory"),
            _gpu_size(gpu, "free_memory"),
            *load,
        )
        for gpu, load in zip(node["gpus"], loads, strict=True)
    ]
    right = ",".join(("MEMORY,ALLOCATED,BY OTHERS,FREE", *more))
    return [f"  {line}" for line in render.table((*head, *more), rows, right=right)]


def _gpu_size(gpu: Facts, name: str) -> str:
    value = gpu.get(f"{name}_bytes")
    return "-" if value is None else render.size(value)
