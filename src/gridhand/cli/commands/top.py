"""`grid top`: nodes and jobs as they change, until q or Ctrl-C."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.cluster import health, label, names, part, used_of
from gridhand.cli.jobs import ran_s, remark, title

if TYPE_CHECKING:
    from gridhand.client import Client

_HEAD = ("ID", "NAME", "OWNER", "STATE", "TIME", "NODE", "CPU", "MEMORY", "REASON")
_ENTER, _LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"  # another screen, no cursor


@click.command()
@click.option("--once", is_flag=True, help="Print one picture and leave.")
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=1.0, help="Seconds between pictures."
)
@click.option("--json", "as_json", is_flag=True, help="Print one picture as JSON.")
def top(once: bool, every: float, as_json: bool) -> None:
    """Watch nodes and jobs as they change.

    q or Ctrl-C leaves.
    """
    from gridhand.client import connect

    with connect() as client:
        if as_json:
            status, jobs = look(client)
            render.print_json({"status": status, "jobs": jobs})
        elif once or not (sys.stdin.isatty() and render.on_terminal()):
            click.echo("\n".join(frame(*look(client), width=200)))
        else:
            _watch(client, every)


def look(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return client.status(), client.jobs(states=["open"], limit=200)


def frame(
    status: Mapping[str, Any], jobs: list[dict[str, Any]], width: int, height: int = 10_000
) -> list[str]:
    """One picture: the nodes, then the jobs, those that run first."""
    counts = ", ".join(f"{count} {state}" for state, count in status["jobs"].items())
    nodes = [line for node in status["nodes"] for line in _node(node)]
    rows = [_row(job) for job in sorted(jobs, key=lambda job: job["state"] != "running")]
    listed = render.table(_HEAD, rows, right="TIME,CPU,MEMORY")
    lines = [f"grid top  {time.strftime('%H:%M:%S')}  {counts}", "", *nodes, "", *listed]
    short = lines if len(lines) <= height else [*lines[: height - 1], "…"]
    return [line if "\033" in line else line[:width] for line in short]


def _node(node: Mapping[str, Any]) -> list[str]:
    lines = [f"{node['name']} ({health(node)})"]
    for name in names(node["total"]):
        held, total = node["allocated"].get(name, 0), node["total"][name]
        used = used_of(node, name)
        said = f"{render.amount(name, held)} of {render.amount(name, total)} allocated"
        if used is not None:
            said += f", {render.amount(name, round(used, 2))} used"
        lines.append(f"  {label(name):<10} {_bar(part(node, name))}{said}")
    return lines


def _bar(filled: float) -> str:
    return f"{render.bar(filled)}  " if render.on_terminal() else ""


def _row(job: Mapping[str, Any]) -> tuple[object, ...]:
    usage = job.get("usage") or {}
    cpu, memory = usage.get("cpu"), usage.get("memory_bytes")
    facts = dict(job)
    return (
        job["id"], title(facts), job["owner"], job["state"], render.clock(ran_s(facts)),
        job["node"] or "-", "-" if cpu is None else f"{cpu:.2f}",
        "-" if memory is None else render.size(memory), remark(facts),
    )  # fmt: skip


def _watch(client: Client, every: float) -> None:
    """Draw again and again on a screen of our own; the terminal is then as it was."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    click.echo(_ENTER, nl=False)
    try:
        tty.setcbreak(0)
        while True:
            size = os.get_terminal_size()
            width, height = size.columns or 80, size.lines or 24  # not every terminal tells
            lines = frame(*look(client), width, height - 1)
            click.echo("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J", nl=False)
            if _asked_to_leave(every):
                return
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        click.echo(_LEAVE, nl=False)


def _asked_to_leave(within: float) -> bool:
    import select

    readable, _, _ = select.select([0], [], [], within)
    return bool(readable) and os.read(0, 64)[:1] in (b"q", b"Q", b"\x03", b"")
