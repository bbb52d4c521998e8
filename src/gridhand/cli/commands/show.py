"""`grid show`: all that is known of one job, or of one call."""

from __future__ import annotations

from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.jobs import HEAD, Job, ran_s, remark, row, tasks


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.argument("id")
def show(id: str, as_json: bool) -> None:
    """Show all that is known of a job or of a call.

    ID is that of a job, @ for the last one you submitted, or that of a call of a function, as
    `grid calls` lists them.
    """
    from gridhand.cli import calls
    from gridhand.client import connect

    with connect() as client:
        if calls.is_call(id):
            call = client.call(id)
            render.print_json(call) if as_json else click.echo("\n".join(calls.details(call)))
            return
        found = tasks(client, id)
    if as_json:
        render.print_json(found[0] if len(found) == 1 else found)
    elif len(found) == 1:
        click.echo("\n".join(details(found[0])))
    else:
        click.echo("\n".join(render.fitted(render.table(HEAD, map(row, found), right="TIME"))))


def details(job: Job) -> list[str]:
    """A job, one fact to a line."""
    facts = {
        "Job": job["id"],
        "Name": job["name"],
        "Owner": job["owner"],
        "State": _state(job),
        "Why": job["why"] if job["state"] == "queued" else None,
        "Command": _command(job["command"]),
        "Folder": job["folder"],
        "Asked": asked(job["request"]),
        "Priority": job["priority"],
        "Type": job["task_type"],
        "Time limit": job["time_limit_s"] and render.clock(job["time_limit_s"]),
        "After": _after(job["after"]),
        "Node": job["node"],
        "Within": job.get("within"),
        "GPUs": ", ".join(map(str, job["gpus"] or ())),
        "Submitted": render.local_time(job["submitted_at"]),
        "Started": job["started_at"] and render.local_time(job["started_at"]),
        "Ended": job["ended_at"] and render.local_time(job["ended_at"]),
        "Ran for": job["started_at"] and render.clock(ran_s(job)),
        "Peak memory": _peak(job),
        "Detached": "yes" if job["detached"] else None,
        "Output": job["logs"]["stdout"],
        "Errors": job["logs"]["stderr"],
    }
    told = {f"{name}:": render.clean(value) for name, value in facts.items() if value}
    width = max(map(len, told))
    lines = [f"{name:<{width}} {value}" for name, value in told.items()]
    return lines + (_attempts(job) if len(job["attempts"]) > 1 else [])


def _state(job: Job) -> str:
    said = job["phase"] if job["phase"] and job["phase"] != job["state"] else ""
    if job["state"] not in ("queued", "running"):
        said = remark(job)
    message = f": {job['message']}" if job["message"] else ""
    return f"{job['state']}{f' ({said})' if said and said != '-' else ''}{message}"


def _command(command: list[str]) -> str:
    import shlex

    return shlex.join(command)


def asked(request: dict[str, Any]) -> str:
    """The amounts, then the wishes, in one line."""
    flat = {**request, **(request.get("resources") or {})}
    wishes = [
        f"{name} {value if isinstance(value, str) else _wish(value)}"
        for name, value in request.items()
        if name not in ("resources", "alternatives")
        and value
        and not isinstance(value, int | float)
    ]
    return ", ".join(filter(None, [render.amounts(flat), *wishes]))


def _wish(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _after(after: list[dict[str, str]] | None) -> str:
    return ", ".join(f"{one['condition']}:{one['id']}" for one in after or ())


def _peak(job: Job) -> str:
    """What it used at most, beside what it asked for."""
    peak = job["peak_memory_bytes"]
    if peak is None:
        return ""
    limit = job["request"].get("memory")
    beside = f" of {render.size(limit)} ({100 * peak / limit:.0f} %)" if limit else ""
    return f"{render.size(peak, up=True)}{beside}"


def _attempts(job: Job) -> list[str]:
    head = ("ATTEMPT", "NODE", "STARTED", "TIME", "ENDED BY", "PEAK", "MESSAGE")
    rows = [
        (
            one["number"],
            one["node"],
            render.local_time(one["started_at"]),
            render.clock(ran_s(one)),
            remark({"state": "", **one}),
            "-" if (peak := one["peak_memory_bytes"]) is None else render.size(peak, up=True),
            one["message"] or "-",
        )
        for one in job["attempts"]
    ]
    return ["", *render.table(head, rows, right="ATTEMPT,TIME,PEAK")]
