"""`grid history`: ended jobs, added up."""

from __future__ import annotations

import time
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support.completions import complete_nodes, complete_owners

_GROUPS = ("owner", "type", "queue", "node")
_HEAD = ("JOBS", "FAILED", "WAIT", "WAIT P95", "RUN", "RUN P95", "CORE HOURS", "MEMORY USED")


@command(
    epilog="""
    grid history --since 7d
    grid history --by node --type train --json
    """
)
@option(
    "--by",
    "group_by",
    type=click.Choice(_GROUPS),
    default="owner",
    metavar="GROUP",
    help="Group by owner, type, queue or node.",
)
@option("--owner", shell_complete=complete_owners, metavar="NAME", help="Only jobs of this owner.")
@option("--type", "task_type", metavar="TYPE", help="Only jobs of this kind.")
@option("--node", shell_complete=complete_nodes, metavar="NODE", help="Only jobs that ended there.")
@option("--since", default="1d", metavar="TIME", help="Ended at most so long ago: 90m, 7d.")
@option("--until", metavar="TIME", help="Ended at least so long ago.")
@option("--before", metavar="ID", help="Only jobs that were submitted before this one.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def history(
    group_by: str,
    owner: str | None,
    task_type: str | None,
    node: str | None,
    since: str,
    until: str | None,
    before: str | None,
    as_json: bool,
) -> None:
    """Add up ended jobs: outcomes, waits, run times.

    Without --since these are the jobs of the last day.

    FAILED counts jobs that did not succeed. WAIT is the time from submission to the first start,
    RUN the time of all attempts, each the mean and the 95th percentile. CORE HOURS are those that
    were allocated. MEMORY USED is the measured peak as a part of the memory that was asked for.
    """
    from gridhand.client import connect

    filters = {"group_by": group_by, "owner": owner, "type": task_type, "node": node}
    ago = {
        "since": _ago(since, "--since"),
        "until": None if until is None else _ago(until, "--until"),
    }
    with connect() as client:
        found = client.history(**filters, **ago, before=before)
    if as_json:
        render.print_json(found)
        return
    click.echo("\n".join(history_lines(found)))
    if found["before"] is not None:
        more = f"these are the newest {found['read']} ended jobs; use --before {found['before']}"
        click.echo(f"grid: {more} for those before", err=True)


def _ago(text: str, field: str) -> float:
    """Return the moment so long ago, in seconds since 1970."""
    from gridhand.core.model.durations import read_duration

    return max(0.0, time.time() - read_duration(text, field) / 1000)


def history_lines(found: dict[str, Any]) -> list[str]:
    if not found["total"]["jobs"]:
        return ["No jobs ended in that time."]
    name = found["group_by"]
    rows = [_row(group[name], group) for group in found["groups"]]
    if len(rows) > 1:
        rows.append(_row("all", found["total"]))
    return render.fitted_table((name.upper(), *_HEAD), rows, right=",".join(_HEAD))


def _row(name: str | None, figures: dict[str, Any]) -> tuple[object, ...]:
    wait, run, used = figures["wait_s"], figures["run_s"], figures["memory"]["used_part"]
    return (
        name or "-",
        figures["jobs"],
        figures["jobs"] - figures["outcomes"].get("succeeded", 0),
        *map(_time, (wait["mean"], wait["p95"], run["mean"], run["p95"])),
        f"{figures['cpu_allocated_s'] / 3600:.2f}",
        "-" if used is None else f"{100 * used:.0f} %",
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else render.clock(seconds)
