"""`grid jobs` and `grid cancel`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.options import read_names
from gridhand.cli.support.completions import complete_jobs, complete_owners
from gridhand.cli.support.outcome import signal_name

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


def complete_states(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a state, also after a comma."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{state}" for state in (*STATES, "open") if state.startswith(last)]


@command(
    epilog="""
    grid jobs --state failed --all
    grid jobs -r --json
    """
)
@option("-a", "--all", "everything", is_flag=True, help="Include jobs that ended earlier.")
@option(
    "--state",
    "states",
    multiple=True,
    callback=read_states,
    shell_complete=complete_states,
    metavar="STATE",
    help="Only jobs in this state, or `open`. Repeatable.",
)
@option("--owner", shell_complete=complete_owners, metavar="NAME", help="Only jobs of this owner.")
@option(
    "--limit",
    type=click.IntRange(1, MOST_LISTED),
    default=_LIMIT,
    metavar="N",
    help="Show at most N jobs, the newest.",
)
@option("-r", "--expand", is_flag=True, help="Show each task of an array on its own line.")
@option("--json", "as_json", is_flag=True, help="Print JSON, one object for each task.")
def jobs(
    everything: bool, states: list[str], owner: str | None, limit: int, expand: bool, as_json: bool
) -> None:
    """List jobs.

    Shows jobs that wait or run, and your jobs that ended in the last hour. Tasks of an array that
    are in the same state for the same reason share a line, with the longest TIME.
    """
    from gridhand.cli.support.array_rows import line_row
    from gridhand.client import connect

    with connect() as client:
        ask = client.jobs if expand or as_json else client.job_lines
        if everything or states or owner:
            listed = ask(states=states, owner=owner, limit=limit)
        elif expand or as_json:
            listed = current(client, limit)
        else:
            listed = current_lines(client, limit)
    if as_json:
        render.print_json(listed)
        return
    rows = map(row if expand else line_row, reversed(listed))
    click.echo("\n".join(render.fitted_table(HEAD, rows, right="TIME")))
    if len(listed) == limit:
        click.echo(f"grid: showing the newest {limit}; use --limit to see more", err=True)


def current(client: Client, limit: int) -> list[Job]:
    """Return open jobs and own jobs that ended in the last hour, the newest first."""
    waiting = client.jobs(states=["open"], limit=limit)
    if len(waiting) == limit:  # running jobs are older than queued ones, and must be shown
        waiting = [*client.jobs(states=["running"], limit=limit), *waiting]
    by_id = {job["id"]: job for job in (*waiting, *_recently_ended(client, limit))}
    return sorted(list(by_id.values())[:limit], key=_number, reverse=True)


def current_lines(client: Client, limit: int) -> list[Job]:
    """Return lines of open jobs, and of own jobs that ended in the last hour."""
    since = time.time() - _RECENT_S
    waiting = client.job_lines(states=["open"], limit=limit)
    if len(waiting) == limit:  # running jobs are older than queued ones, and must be shown
        running = client.job_lines(states=["running"], limit=limit)
        waiting = running + [line for line in waiting if line["state"] != "running"]
    ended = client.job_lines(states=STATES[2:], owner=own_name(client), limit=limit, since=since)
    return sorted([*waiting, *ended][:limit], key=_number, reverse=True)


def _recently_ended(client: Client, limit: int) -> list[Job]:
    """Return own jobs that ended in the last hour; a small page is asked for first."""
    since = time.time() - _RECENT_S
    for count in sorted({min(_FEW, limit), limit}):
        ended = client.jobs(states=STATES[2:], owner=own_name(client), limit=count)
        lately = [job for job in ended if (render.moment(job["ended_at"]) or 0) >= since]
        if len(lately) < count:
            break
    return sorted(lately, key=_number, reverse=True)


def own_name(client: Client) -> str:
    """Return the name that the controller knows this user by; over a network, the token has it."""
    import os
    import pwd

    if client.remote and (facts := client.probe()) is not None:
        return str(facts["owner"])
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


def _number(job: Job) -> tuple[int, ...]:
    return tuple(int(part) for part in job["id"].split("_"))


def resolve_id(client: Client, id: str) -> str:
    """Return the id; @ stands for the last job, or for the array that it is part of."""
    if id != "@":
        return id
    job = client.job(id)
    return str(job["array"] or job["id"])


def tasks(client: Client, id: str) -> list[Job]:
    """Return the job with this id, or all tasks of the array with this id, in order."""
    from gridhand.core.errors import UnknownJob

    try:
        job = client.job(id)
        if id != "@" or job["array"] is None:
            return [job]
        return list(pages(client, job["array"]))[::-1]
    except UnknownJob:
        members = list(pages(client, id))[::-1] if id.isdecimal() else []
        if not members:
            raise
        return members


def pages(client: Client, array: str) -> Iterator[Job]:
    """Yield all tasks of an array, the last one first."""
    before = None
    while page := client.jobs(array=array, limit=MOST_LISTED, before=before):
        yield from sorted(page, key=_number, reverse=True)
        if len(page) < MOST_LISTED:
            return
        before = page[-1]["id"]


def lines_of(client: Client, id: str) -> list[Job]:
    """Return the job with this id, or the array with this id as lines of like tasks."""
    from gridhand.core.errors import UnknownJob

    try:
        job = client.job(id)
        if id != "@" or job["array"] is None:
            return [job]
        id = job["array"]
        return client.job_lines(array=id, limit=MOST_LISTED)[::-1]
    except UnknownJob:
        lines = client.job_lines(array=id, limit=MOST_LISTED)[::-1] if id.isdecimal() else []
        if not lines:
            raise
        return lines


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
    """Return how long the job has run, or ran in its last attempt if that is over."""
    last = (job.get("attempts") or [job])[-1]
    started = render.moment(job["started_at"])
    ended = render.moment(job["ended_at"] or last["ended_at"])
    return 0.0 if started is None else (time.time() if ended is None else ended) - started


def remark(job: Job) -> str:
    """Return why a job waits, or how it ended."""
    if job["state"] == "queued":
        return job["why"] or "-"
    if job["reason"] is None:
        return "-"
    if job["reason"] == "exit":
        return f"exit {job['exit_code']}"
    if job["reason"] == "signal" and job["signal"]:
        return signal_name(job["signal"])
    return str(job["reason"])


@command(
    epilog="""
    grid cancel 17 18
    grid cancel --name 'sweep-*' --state queued
    """
)
@option("--all", "everything", is_flag=True, help="Cancel all your open jobs.")
@option(
    "--name",
    "names",
    multiple=True,
    metavar="PATTERN",
    help="Cancel your open jobs of this name; * stands for any text. Repeatable.",
)
@option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["queued", "running"]),
    help="Cancel your jobs in this state. Repeatable.",
)
@option(
    "--user",
    shell_complete=complete_owners,
    metavar="NAME",
    help="Cancel jobs of this user; for administrators.",
)
@option("--json", "as_json", is_flag=True, help="Print the jobs as JSON.")
@option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.argument("ids", nargs=-1, metavar="[ID...]", shell_complete=complete_jobs)
@click.pass_context
def cancel(
    ctx: click.Context,
    ids: tuple[str, ...],
    everything: bool,
    names: tuple[str, ...],
    states: tuple[str, ...],
    user: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Cancel queued or running jobs.

    A running job gets SIGTERM, and SIGKILL when its grace time is over. The id of an array means
    all its tasks, and @ means your last job. Jobs that have ended are left as they are. Instead of
    ids, --name, --state and --user describe open jobs; together they narrow the choice.
    """
    from gridhand.cli.support.job_choice import JobChoice
    from gridhand.client import connect

    choice = JobChoice(everything, names, states, user)
    choice.check(ids)
    with connect() as client:
        chosen = list(ids) if ids else choice.ids(client)
        cancelled, messages, failed = _cancel_each(client, chosen)
    if as_json:
        render.print_json(cancelled)
    elif not quiet:
        click.echo("\n".join(messages) if chosen else "no open job matches")
    ctx.exit(failed)


def _cancel_each(client: Client, ids: list[str]) -> tuple[list[Job], list[str], int]:
    """Cancel jobs; return them, a sentence about each, and the exit code."""
    from gridhand.core.errors import GridError

    cancelled: list[Job] = []
    messages: list[str] = []
    failed = 0
    for id in ids:
        try:
            answer = client.cancel_all(resolve_id(client, id))
            cancelled += answer["jobs"]
            messages.append(cancel_message(answer))
        except GridError as error:
            if len(ids) == 1:
                raise
            failed = 125  # the others are still cancelled
            click.echo(f"error: {error}", err=True)
    return cancelled, messages, failed


def cancel_message(answer: dict[str, Any]) -> str:
    """Return one sentence about the job, or about all tasks of the array."""
    jobs = answer["jobs"]
    was_open = answer.get("was_open", True)  # a controller of an earlier version does not tell
    if jobs[0]["array"] is None or len(jobs) == 1:
        return _job_message(jobs[0], was_open)
    array, count, stopping = jobs[0]["array"], answer["count"], answer["stopping"]
    kind = "gang" if jobs[0].get("nodes") else "array"
    if not was_open:
        return f"{kind} {array} had already ended"
    parts = [f"cancelled {count - stopping} tasks"] if count > stopping else []
    parts += [f"stopping {stopping} that run"] if stopping else []
    return f"{kind} {array}: {', '.join(parts)}"


def _job_message(job: Job, was_open: bool) -> str:
    if job["state"] == "running":
        return f"stopping job {job['id']} on {job['node']}"
    if job["state"] == "cancelled" and was_open:
        return f"cancelled job {job['id']}"
    return f"job {job['id']} had already ended: {job['state']}"
