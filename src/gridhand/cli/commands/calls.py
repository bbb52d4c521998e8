"""`grid calls`, and what `grid show` and `grid why` print for a call."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.commands.jobs import MOST_LISTED, STATES, own_name, ran_s, read_states
from gridhand.cli.help_format import command, option

if TYPE_CHECKING:
    from gridhand.client import Client

Call = dict[str, Any]

_RECENT_S = 3600
_LIMIT = 1000
_MOST_NUMBERS = 20  # of calls on one line
_HEAD = ("ID", "NAME", "OWNER", "STATE", "CALLS", "TIME", "NODE", "REASON")


@command()
@option("-a", "--all", "everything", is_flag=True, help="Include calls that ended earlier.")
@option(
    "--state",
    "states",
    multiple=True,
    callback=read_states,
    metavar="STATE",
    help="Only calls in this state, or `open`. Repeatable.",
)
@option("--name", metavar="NAME", help="Only calls of this function.")
@option("--run", metavar="RUN", help="Only calls of this program: an id up to its dot.")
@option("--owner", metavar="NAME", help="Only calls of this owner.")
@option(
    "-n",
    "--limit",
    type=click.IntRange(1, MOST_LISTED),
    default=_LIMIT,
    metavar="N",
    help="Show at most N calls, the newest.",
)
@option("-r", "--expand", is_flag=True, help="Show each call on its own line.")
@option("--json", "as_json", is_flag=True, help="Print JSON, one object for each call.")
def calls(
    everything: bool,
    states: list[str],
    name: str | None,
    run: str | None,
    owner: str | None,
    limit: int,
    expand: bool,
    as_json: bool,
) -> None:
    """List calls of Python functions.

    Shows calls that wait or run, and your calls that ended in the last hour, the newest first.
    Calls of one program and one function that are in the same state share a line, with the longest
    TIME. `grid show ID` and `grid why ID` describe one call.
    """
    from gridhand.client import connect

    filters: dict[str, Any] = {"states": states, "name": name, "run": run, "owner": owner}
    with connect() as client:
        if everything or any(filters.values()):
            listed = client.calls(**filters, limit=limit)
        else:
            listed = _current(client, limit)
    if as_json:
        render.print_json(listed)
        return
    lines = [[call] for call in listed] if expand else group_calls(listed)
    click.echo("\n".join(render.fitted_table(_HEAD, map(_row, lines), right="CALLS,TIME")))
    if len(listed) == limit:
        click.echo(f"grid: showing the newest {limit}; use --limit to see more", err=True)


def _current(client: Client, limit: int) -> list[Call]:
    """Return open calls and own calls that ended in the last hour."""
    recent = client.calls(states=["open"], limit=limit)
    since = time.time() - _RECENT_S
    ended = client.calls(states=STATES[2:], owner=own_name(client), limit=limit)
    recent += [call for call in ended if (render.moment(call["ended_at"]) or 0) >= since]
    return recent[:limit]


def is_call(id: str | None) -> bool:
    """Return whether an id is that of a call; ids of jobs have no dot."""
    return id is not None and "." in id


def group_calls(calls: Iterable[Call]) -> list[list[Call]]:
    """Group calls by run, function, state and kind of error, in the order of the first of each."""
    lines: dict[tuple[str, ...], list[Call]] = {}
    for call in calls:
        kind = (call["error"] or "").partition(":")[0]
        lines.setdefault((call["run"], call["name"], call["state"], kind), []).append(call)
    return list(lines.values())


def _row(group: list[Call]) -> tuple[object, ...]:
    first = group[0]
    nodes = {call["node"] for call in group if call["node"]}
    remarks = {_remark(call) for call in group}
    return (
        _ids(group),
        first["name"],
        first["owner"],
        first["state"],
        len(group),
        render.clock(max(map(ran_s, group))),
        f"{len(nodes)} nodes" if len(nodes) > 1 else next(iter(nodes), "-"),
        _remark(first) if len(remarks) == 1 else f"{_remark(first)}, …",
    )


def _ids(group: list[Call]) -> str:
    """Return `9f3a1c02b7de.4`, or `9f3a1c02b7de.[4-10]` for several."""
    from gridhand.core.model.job_arrays import tasks_text

    numbers = (call["number"] for call in group)
    return tasks_text(group[0]["run"], numbers, _MOST_NUMBERS).replace("_", ".", 1)


def _remark(call: Call) -> str:
    """Return what a call waits for, or how it failed."""
    if call["state"] == "queued":
        return f"waits for job {call['job']}" if call["job"] else "waits for a free slot"
    return call["error"] or "-"


def details(call: Call) -> list[str]:
    """Return the details of a call, one to a line."""
    facts = {
        "Call": call["id"],
        "Name": call["name"],
        "Owner": call["owner"],
        "State": f"{call['state']}{': ' + call['error'] if call['error'] else ''}",
        "Node": call["node"],
        "Slot": call["job"] and f"job {call['job']}",
        "Allocation": call["allocation"],
        "Submitted": render.local_time(call["submitted_at"]),
        "Started": call["started_at"] and render.local_time(call["started_at"]),
        "Ended": call["ended_at"] and render.local_time(call["ended_at"]),
        "Ran for": call["started_at"] and f"{render.number(ran_s(call), 3)} s",
    }
    shown = {f"{name}:": render.clean(value) for name, value in facts.items() if value}
    width = max(map(len, shown))
    return [f"{name:<{width}} {value}" for name, value in shown.items()]


def why(client: Client, id: str) -> tuple[dict[str, Any], str]:
    """Return a call with its slot, and the text that says why it waits or where it runs."""
    from gridhand.cli.commands.why import job_text
    from gridhand.core.errors import UnknownJob

    call = client.call(id)
    slot: dict[str, Any] | None = None
    if call["state"] == "queued" and call["job"]:
        try:
            slot = client.why(call["job"])
        except UnknownJob:  # so old that its record was deleted
            slot = None
    text = f"call {call['id']} {_describe_state(call, slot)}"
    if slot is not None and slot["state"] == "queued":
        text = f"{text}\n{job_text(slot)}"
    return {**call, "slot": slot}, text


def _describe_state(call: Call, slot: dict[str, Any] | None) -> str:
    if call["state"] == "running":
        where = f" in job {call['job']}" if call["job"] else ""
        since = render.clock(ran_s(call))
        return f"is running on {call['node'] or 'this machine'}{where}, for {since}"
    if call["state"] != "queued":
        return f"is {call['state']}{': ' + call['error'] if call['error'] else ''}"
    if slot is None:
        return "waits for a free slot: all slots of its kind are busy"
    if slot["state"] == "queued":
        return f"waits for its slot, job {slot['id']}, to start"
    return f"waits for its turn in slot {slot['id']} ({slot['state']})"
