"""`grid queue`: what waits, in the order in which it would be tried now."""

from __future__ import annotations

import time
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support.completions import complete_owners

MOST_LISTED = 1000
_LIMIT = 100
_HEAD = (
    "#", "ID", "NAME", "OWNER", "PRIORITY", "SHARE", "PAST", "REQUEST", "WAITED", "START", "WHY",
)  # fmt: skip


@command(
    epilog="""
    grid queue --limit 10
    grid queue --json
    """
)
@option("--owner", shell_complete=complete_owners, metavar="NAME", help="Only what NAME waits for.")
@option(
    "--limit",
    type=click.IntRange(1, MOST_LISTED),
    default=_LIMIT,
    metavar="N",
    help="Show at most N entries, the first.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def queue(owner: str | None, limit: int, as_json: bool) -> None:
    """Show what waits, in the order in which it would be tried now.

    SHARE is the part of the cluster that the owner has now, PAST the average of the past weeks: the
    owner with less of both comes first. START is when room is expected. `grid why ID` tells more.
    """
    from gridhand.client import connect

    with connect() as client:
        found = client.queue(limit, owner)
    if as_json:
        render.print_json(found)
        return
    click.echo("\n".join(queue_lines(found)))


def queue_lines(found: dict[str, Any]) -> list[str]:
    entries = found["entries"]
    later = found["later"]
    lines = render.fitted_table(_HEAD, map(_row, entries), right="#,SHARE,PAST,WAITED")
    if not entries:
        lines = ["Nothing waits for room."]
    if later:
        waits = "job waits" if later == 1 else "jobs wait"
        lines.append(f"{later} {waits} for other jobs, for a time or for `grid unhold`.")
    return lines


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    return (
        entry["position"],
        _id(entry),
        entry["name"] or "-",
        entry["owner"],
        entry["priority"],
        percent(entry["share"]),
        percent(entry["past_share"]),
        render.amounts({**entry["request"], **(entry["request"].get("resources") or {})}),
        render.clock(max(0.0, time.time() - (render.moment(entry["waiting_since"]) or 0))),
        _start(entry),
        entry["why"],
    )


def _id(entry: dict[str, Any]) -> str:
    if entry["kind"] == "allocation":
        return "(reserve)"
    if entry["tasks"] == 1:
        return str(entry["id"])
    more = "" if entry["complete"] else "…"
    return f"{entry['array']}_[{entry['first_task']}-{entry['last_task']}{more}]"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _start(entry: dict[str, Any]) -> str:
    """Return in which time it should start; `-` if that is not known."""
    at = render.moment(entry["expected_start_at"])
    if at is None:
        return "-"
    return f"in {render.clock(max(0.0, at - time.time()))} on {entry['expected_node']}"
