"""Commands on calls of functions: listing them, and what is known of one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.jobs import MOST_LISTED, STATES, own_name, ran_s, read_states

if TYPE_CHECKING:
    from gridhand.client import Client

Call = dict[str, Any]

_RECENT_S = 3600
_LIMIT = 1000
_LONGEST = 20  # of the numbers of those on one line
_HEAD = ("ID", "NAME", "OWNER", "STATE", "CALLS", "TIME", "NODE", "REASON")


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Those that ended long ago, too.")
@click.option(
    "--state", "states", multiple=True, callback=read_states, metavar="STATE", help="Only these."
)
@click.option("--name", metavar="NAME", help="Only those of this function.")
@click.option("--run", metavar="RUN", help="Only those of this run: an id up to its dot.")
@click.option("--owner", metavar="NAME", help="Only those of this owner.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, MOST_LISTED),
    default=_LIMIT,
    help="At most so many, the newest.",
)
@click.option("-r", "--expand", is_flag=True, help="Each call on its own line.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, each for itself.")
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
    """List calls of functions.

    Those that wait or run, and yours that ended in the last hour, the latest first; others with
    --all or any other wish. Calls of one run and one function of which there is the same to say
    are one line, with the longest TIME. `grid show ID` and `grid why ID` tell of one.
    """
    from gridhand.client import connect

    wishes: dict[str, Any] = {"states": states, "name": name, "run": run, "owner": owner}
    with connect() as client:
        if everything or any(wishes.values()):
            found = client.calls(**wishes, limit=limit)
        else:
            found = _current(client, limit)
    if as_json:
        render.print_json(found)
        return
    lines = [[call] for call in found] if expand else together(found)
    click.echo("\n".join(render.fitted(render.table(_HEAD, map(_row, lines), right="CALLS,TIME"))))
    if len(found) == limit:
        click.echo(f"grid: these are the newest {limit}; --limit shows more", err=True)


def _current(client: Client, limit: int) -> list[Call]:
    """What waits or runs, and what of one's own ended not long ago."""
    found = client.calls(states=["open"], limit=limit)
    since = time.time() - _RECENT_S
    ended = client.calls(states=STATES[2:], owner=own_name(), limit=limit)
    found += [call for call in ended if (render.moment(call["ended_at"]) or 0) >= since]
    return found[:limit]


def is_call(id: str | None) -> bool:
    """Whether an id is that of a call: those of jobs have no dot."""
    return id is not None and "." in id


def together(calls: Iterable[Call]) -> list[list[Call]]:
    """Those of one run that are alike, in the order in which the first of each came.

    What failed with errors of one kind is alike, whatever each of them says.
    """
    lines: dict[tuple[str, ...], list[Call]] = {}
    for call in calls:
        kind = (call["error"] or "").partition(":")[0]
        lines.setdefault((call["run"], call["name"], call["state"], kind), []).append(call)
    return list(lines.values())


def _row(several: list[Call]) -> tuple[object, ...]:
    first = several[0]
    nodes = {call["node"] for call in several if call["node"]}
    remarks = {_remark(call) for call in several}
    return (
        _ids(several),
        first["name"],
        first["owner"],
        first["state"],
        len(several),
        render.clock(max(map(ran_s, several))),
        f"{len(nodes)} nodes" if len(nodes) > 1 else next(iter(nodes), "-"),
        _remark(first) if len(remarks) == 1 else f"{_remark(first)}, …",
    )


def _ids(several: list[Call]) -> str:
    """`9f3a1c02b7de.4`, or `9f3a1c02b7de.[4-10]` for several."""
    from gridhand.core.arrays import tasks_text

    numbers = (one["number"] for one in several)
    return tasks_text(several[0]["run"], numbers, _LONGEST).replace("_", ".", 1)


def _remark(call: Call) -> str:
    """What it waits for, or how it failed."""
    if call["state"] == "queued":
        return f"waits for job {call['job']}" if call["job"] else "waits for its turn"
    return call["error"] or "-"


def details(call: Call) -> list[str]:
    """A call, one fact to a line."""
    facts = {
        "Call": call["id"],
        "Name": call["name"],
        "Owner": call["owner"],
        "State": f"{call['state']}{': ' + call['error'] if call['error'] else ''}",
        "Node": call["node"],
        "Slot": call["job"] and f"job {call['job']}",
        "Holds": call["allocation"],
        "Submitted": render.local_time(call["submitted_at"]),
        "Started": call["started_at"] and render.local_time(call["started_at"]),
        "Ended": call["ended_at"] and render.local_time(call["ended_at"]),
        "Ran for": call["started_at"] and f"{render.number(ran_s(call), 3)} s",
    }
    told = {f"{name}:": render.clean(value) for name, value in facts.items() if value}
    width = max(map(len, told))
    return [f"{name:<{width}} {value}" for name, value in told.items()]


def why(client: Client, id: str) -> tuple[dict[str, Any], str]:
    """Why a call waits, or where it runs; and the same as a sentence."""
    from gridhand.cli.why import job_text
    from gridhand.core.errors import UnknownJob

    call = client.call(id)
    slot: dict[str, Any] | None = None
    if call["state"] == "queued" and call["job"]:
        try:
            slot = client.why(call["job"])
        except UnknownJob:  # so old that it was forgotten
            slot = None
    text = f"call {call['id']} {_standing(call, slot)}"
    if slot is not None and slot["state"] == "queued":
        text = f"{text}\n{job_text(slot)}"
    return {**call, "slot": slot}, text


def _standing(call: Call, slot: dict[str, Any] | None) -> str:
    if call["state"] == "running":
        where = f" in job {call['job']}" if call["job"] else ""
        return f"runs on {call['node'] or 'this machine'}{where}, for {render.clock(ran_s(call))}"
    if call["state"] != "queued":
        return f"is {call['state']}{': ' + call['error'] if call['error'] else ''}"
    if slot is None:
        return "waits for its turn: all slots of its kind are at other calls"
    if slot["state"] == "queued":
        return f"waits for a slot, which is job {slot['id']}"
    return f"waits for its turn in job {slot['id']}, which is {slot['state']}"
