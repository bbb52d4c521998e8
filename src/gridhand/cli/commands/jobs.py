"""Commands on jobs: listing them, showing one, ending them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.options import read_names
from gridhand.cli.outcome import signal_name

if TYPE_CHECKING:
    from gridhand.client import Client

Job = dict[str, Any]

STATES = ("queued", "running", "succeeded", "failed", "cancelled", "lost")
_RECENT_S = 3600
_LIMIT = 1000
_FEW = 100
MOST_LISTED = 10_000
HEAD = ("ID", "NAME", "OWNER", "STATE", "TIME", "NODE", "REASON")


def read_states(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[str]:
    states = read_names(ctx, param, values)
    for state in states:
        if state not in (*STATES, "open"):
            raise click.BadParameter(f"{state!r} is not one of {', '.join(STATES)} or open")
    return states


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Those that ended long ago, too.")
@click.option(
    "--state", "states", multiple=True, callback=read_states, metavar="STATE", help="Only these."
)
@click.option("--owner", metavar="NAME", help="Only those of this owner.")
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_LISTED),
    default=_LIMIT,
    help="At most so many, the newest.",
)
@click.option("-r", "--expand", is_flag=True, help="Each task of an array on its own line.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, each task for itself.")
def jobs(
    everything: bool, states: list[str], owner: str | None, limit: int, expand: bool, as_json: bool
) -> None:
    """List jobs.

    Those that wait or run, and yours that ended in the last hour; others with --all or --state.
    Tasks of an array of which there is the same to say are one line, with the longest TIME.
    """
    from gridhand.cli.folding import folded
    from gridhand.client import connect

    with connect() as client:
        if everything or states or owner:
            found = client.jobs(states=states, owner=owner, limit=limit)
        else:
            found = current(client, limit)
    if as_json:
        render.print_json(found)
        return
    oldest_first = found[::-1]
    rows = map(row, oldest_first) if expand else folded(oldest_first)
    click.echo("\n".join(render.fitted(render.table(HEAD, rows, right="TIME"))))
    if len(found) == limit:
        click.echo(f"grid: these are the newest {limit}; --limit shows more", err=True)


def current(client: Client, limit: int) -> list[Job]:
    """What waits or runs, and what ended not long ago, the newest first."""
    waiting = client.jobs(states=["open"], limit=limit)
    if len(waiting) == limit:  # what runs is older than what waits, and not to be left out
        waiting = [*client.jobs(states=["running"], limit=limit), *waiting]
    found = {job["id"]: job for job in (*waiting, *_ended_lately(client, limit))}
    return sorted(list(found.values())[:limit], key=_number, reverse=True)


def _ended_lately(client: Client, limit: int) -> list[Job]:
    """Own jobs that ended not long ago; they are few, as a rule, and so few are asked for first."""
    since = time.time() - _RECENT_S
    for count in sorted({min(_FEW, limit), limit}):
        ended = client.jobs(states=STATES[2:], owner=own_name(), limit=count)
        lately = [job for job in ended if (render.moment(job["ended_at"]) or 0) >= since]
        if len(lately) < count:
            break
    return sorted(lately, key=_number, reverse=True)


def own_name() -> str:
    """The name that the controller knows this user by."""
    import os
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


def _number(job: Job) -> tuple[int, ...]:
    return tuple(int(part) for part in job["id"].split("_"))


def whole(client: Client, id: str) -> str:
    """The id that is meant: @ stands for the last job, or for all of the array it is part of."""
    if id != "@":
        return id
    job = client.job(id)
    return str(job["array"] or job["id"])


def tasks(client: Client, id: str) -> list[Job]:
    """The job with this id; of an array all its tasks, in order."""
    from gridhand.core.errors import UnknownJob

    try:
        job = client.job(id)
        if id != "@" or job["array"] is None:
            return [job]
        id = job["array"]
        return sorted(client.jobs(array=id, limit=MOST_LISTED), key=_number)
    except UnknownJob:
        found = client.jobs(array=id, limit=MOST_LISTED) if id.isdecimal() else []
        if not found:
            raise
        return sorted(found, key=_number)


def row(job: Job) -> tuple[object, ...]:
    return (
        job["id"],
        title(job),
        job["owner"],
        job["state"],
        render.clock(ran_s(job)),
        job["node"] or "-",
        remark(job),
    )


def title(job: Job) -> str:
    return job["name"] or (job["command"][0].rpartition("/")[2] if job["command"] else "-")


def ran_s(job: Job) -> float:
    """How long it has run, or did run."""
    started, ended = render.moment(job["started_at"]), render.moment(job["ended_at"])
    return 0.0 if started is None else (time.time() if ended is None else ended) - started


def remark(job: Job) -> str:
    """Why it waits, or how it ended."""
    if job["state"] == "queued":
        return job["why"] or "-"
    if job["reason"] is None:
        return "-"
    if job["reason"] == "exit":
        return f"exit {job['exit_code']}"
    if job["reason"] == "signal" and job["signal"]:
        return signal_name(job["signal"])
    return str(job["reason"])


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless it fails.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.pass_context
def cancel(ctx: click.Context, ids: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """End jobs, or take them out of the queue.

    A running one is warned (SIGTERM), and killed when its grace is over. The id of an array stands
    for all its tasks, and @ for your last job. Those that have ended stay as they are.
    """
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    found: list[Job] = []
    failed = 0
    with connect() as client:
        for id in ids:
            try:
                found += client.cancel(whole(client, id))
            except GridError as error:
                if len(ids) == 1:
                    raise
                failed = 125  # the others are cancelled all the same
                click.echo(f"error: {error}", err=True)
    if as_json:
        render.print_json(found)
    elif not quiet:
        click.echo("\n".join(cancelled(job) for job in found))
    ctx.exit(failed)


def cancelled(job: Job) -> str:
    if job["state"] == "running":
        return f"job {job['id']} is being stopped on {job['node']}"
    if job["state"] == "cancelled":
        return f"job {job['id']} is cancelled"
    return f"job {job['id']} had ended: it is {job['state']}"
