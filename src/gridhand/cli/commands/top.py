"""`grid top`: a live view of nodes and jobs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.commands.status import health, label, names, node_table, part
from gridhand.cli.help_format import command, option
from gridhand.cli.support.node_load import gpu_percent, share_text, used_of

if TYPE_CHECKING:
    from gridhand.client import Client

_HEAD = ("ID", "NAME", "OWNER", "STATE", "TIME", "NODE", "CPU", "MEMORY", "REASON")
_MOST_LINES = 200
_HEAD_LINES = 4  # the title, two empty lines, and the heads of the columns
_ENTER, _LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"  # alternate screen, no cursor


@command()
@option("--once", is_flag=True, help="Print the view once and exit.")
@option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    metavar="SECONDS",
    help="Time between updates; 1 by default.",
)
@option("--json", "as_json", is_flag=True, help="Print the view once as JSON.")
def top(once: bool, every: float, as_json: bool) -> None:
    """Watch nodes and jobs live.

    Press q or Ctrl-C to leave.
    """
    from gridhand.client import connect

    with connect() as client:
        if as_json:
            status, jobs = fetch_view(client)
            render.print_json({"status": status, "jobs": jobs})
        elif once or not (render.is_terminal(sys.stdin) and render.on_terminal()):
            click.echo("\n".join(frame(*fetch_view(client), width=200)))
        else:
            _watch(client, every)


def fetch_view(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the status, each running job, and lines of those that wait."""
    running = client.jobs(states=["running"], limit=_MOST_LINES)
    status = client.status(live=True)
    return status, [*running, *client.job_lines(states=["queued"], limit=_MOST_LINES)]


def frame(
    status: Mapping[str, Any], jobs: list[dict[str, Any]], width: int, height: int = 10_000
) -> list[str]:
    """Return the lines of the view: the nodes, then the jobs, running ones first."""
    counts = ", ".join(f"{count} {state}" for state, count in status["jobs"].items())
    nodes = [line for node in status["nodes"] for line in _node(node)]
    if len(nodes) + len(jobs) + _HEAD_LINES > height:
        nodes = node_table(status["nodes"], width)
    rows = [_row(job) for job in sorted(jobs, key=lambda job: job["state"] != "running")]
    listed = render.table(_HEAD, rows, "TIME,CPU,MEMORY", width)
    lines = [f"grid top  {time.strftime('%H:%M:%S')}  {counts}", "", *nodes, "", *listed]
    short = lines if len(lines) <= height else [*lines[: height - 1], "…"]
    return [render.clipped(line, width) for line in short]


def _node(node: Mapping[str, Any]) -> list[str]:
    lines = [f"{node['name']} ({health(node)})"]
    for name in names(node["total"]):
        held, total = node["allocated"].get(name, 0), node["total"][name]
        used = used_of(node, name)
        text = f"{render.amount(name, held)} of {render.amount(name, total)} allocated"
        if used is not None:
            text += f", {render.amount(name, round(used, 2))} used"
        lines.append(f"  {label(name):<10} {_bar(part(node, name))}{text}")
    if (busy := gpu_percent(node)) != "-":
        lines.append(f"  {'GPU use':<10} {busy}")
    if others := (node.get("load") or {}).get("others"):
        lines.append(f"  {'By others':<10} {share_text(others)}")
    return lines


def _bar(filled: float) -> str:
    return f"{render.bar(filled)}  " if render.on_terminal() else ""


def _row(job: Mapping[str, Any]) -> tuple[object, ...]:
    from gridhand.cli.support.array_rows import line_row

    usage = job.get("usage") or {}
    cpu, memory = usage.get("cpu"), usage.get("memory_bytes")
    *about, reason = line_row(dict(job))
    return (
        *about, "-" if cpu is None else f"{cpu:.2f}",
        "-" if memory is None else render.size(memory), reason,
    )  # fmt: skip


def _watch(client: Client, every: float) -> None:
    """Redraw on the alternate screen until the user leaves, then restore the terminal."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    click.echo(_ENTER, nl=False)
    try:
        tty.setcbreak(0)
        while True:
            size = os.get_terminal_size()
            width, height = size.columns or 80, size.lines or 24  # some terminals report 0
            lines = frame(*fetch_view(client), width, height - 1)
            click.echo("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J", nl=False)
            if _quit_pressed(every):
                return
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        click.echo(_LEAVE, nl=False)


def _quit_pressed(within: float) -> bool:
    import select

    readable, _, _ = select.select([0], [], [], within)
    return bool(readable) and os.read(0, 64)[:1] in (b"q", b"Q", b"\x03", b"")
