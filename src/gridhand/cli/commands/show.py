"""`grid show`: the details of one job or one function call."""

from __future__ import annotations

from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.commands.jobs import HEAD, Job, ran_s, remark, row, tasks
from gridhand.cli.help_format import command, option
from gridhand.cli.support.completions import complete_jobs

_NOTABLE_S = 1.0  # a shorter wait is not told


@command()
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("id", shell_complete=complete_jobs)
def show(id: str, as_json: bool) -> None:
    """Show the details of a job or a function call.

    ID is the id of a job or of an array, @ for the last job that you submitted, or the id of a call
    as `grid calls` lists it.
    """
    from gridhand.cli.commands import calls
    from gridhand.client import connect

    with connect() as client:
        if calls.is_call(id):
            call = client.call(id)
            render.print_json(call) if as_json else click.echo("\n".join(calls.details(call)))
            return
        jobs = tasks(client, id)
        if not as_json and jobs[0]["reason"] == "dependency" and not jobs[0]["message"]:
            from gridhand.cli.support.failed_dependency import dependency_message

            jobs[0]["message"] = dependency_message(client, jobs[0])
    if as_json:
        render.print_json(jobs[0] if len(jobs) == 1 else jobs)
    elif len(jobs) == 1:
        click.echo("\n".join(details(jobs[0])))
    else:
        click.echo("\n".join(render.fitted_table(HEAD, map(row, jobs), right="TIME")))


def details(job: Job) -> list[str]:
    """Return the details of a job, one to a line."""
    facts = {
        "Job": job["id"],
        "Name": job["name"],
        "Owner": job["owner"],
        "State": _state(job),
        "Waiting": job["why"] if job["state"] == "queued" else None,
        "Command": _command(job["command"]),
        "Folder": job["folder"],
        "Request": describe_request(job["request"]),
        "Priority": job["priority"],
        "Type": job["task_type"],
        "Time limit": job["time_limit_s"] and render.clock(job["time_limit_s"]),
        "Expected": job["expect_s"] and render.clock(job["expect_s"]),
        "Queue": job["queue"],
        "Deadline": job["deadline_at"] and render.local_time(job["deadline_at"]),
        "After": _after(job["after"]),
        "Rank": _rank(job),
        "Node": job["node"],
        "Reservation": job.get("within"),
        "GPUs": ", ".join(map(str, job["gpus"] or ())),
        "Submitted": render.local_time(job["submitted_at"]),
        "Waited": waited_text(job["waited"]),
        "Started": job["started_at"] and render.local_time(job["started_at"]),
        "Ended": job["ended_at"] and render.local_time(job["ended_at"]),
        "Ran for": job["started_at"] and render.clock(ran_s(job)),
        "Peak memory": _peak(job),
        "Detached": "yes" if job["detached"] else None,
        "Output": job["logs"]["stdout"],
        "Errors": job["logs"]["stderr"],
    }
    shown = {f"{name}:": render.clean(value) for name, value in facts.items() if value}
    width = max(map(len, shown))
    lines = [f"{name:<{width}} {value}" for name, value in shown.items()]
    return lines + (_attempts(job) if len(job["attempts"]) > 1 else [])


def _state(job: Job) -> str:
    detail = job["phase"] if job["phase"] and job["phase"] != job["state"] else ""
    if job["state"] not in ("queued", "running"):
        detail = remark(job)
    message = f": {job['message']}" if job["message"] else ""
    return f"{job['state']}{f' ({detail})' if detail and detail != '-' else ''}{message}"


def waited_text(waited: dict[str, Any] | None) -> str:
    """Return how long a job has waited and for what; nothing if it started at once.

    >>> waited_text({"seconds": 75.0, "causes": [{"text": "held", "seconds": 75.0}]})
    '1m 15s: held 1m 15s'
    """
    if not waited or waited["seconds"] < _NOTABLE_S:
        return ""
    from gridhand.core.model.durations import duration_text

    causes = [
        f"{one['text']} {duration_text(1000 * round(one['seconds']))}"
        for one in waited["causes"]
        if one["seconds"] >= _NOTABLE_S
    ]
    total = duration_text(1000 * round(waited["seconds"]))
    return f"{total}: {'; '.join(causes)}" if causes else total


def _command(command: list[str]) -> str:
    import shlex

    return shlex.join(command)


def describe_request(request: dict[str, Any]) -> str:
    """Return the amounts and then the constraints of a request, on one line."""
    flat = {**request, **(request.get("resources") or {})}
    constraints = [
        f"{name} {value if isinstance(value, str) else _constraint(value)}"
        for name, value in request.items()
        if name not in ("resources", "alternatives")
        and value
        and not isinstance(value, int | float)
    ]
    return ", ".join(filter(None, [render.amounts(flat), *constraints]))


def _constraint(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={text}" for key, text in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _after(after: list[dict[str, str]] | None) -> str:
    return ", ".join(f"{job['condition']}:{job['id']}" for job in after or ())


def _rank(job: Job) -> str:
    """Return which member of a gang it is, and where the members meet."""
    if job.get("nodes") is None:
        return ""
    master = job["attempts"][-1].get("master") if job["attempts"] else None
    return f"{job['array_index']} of {job['nodes']}{f', master {master}' if master else ''}"


def _peak(job: Job) -> str:
    """Return the peak memory, with the limit if there is one."""
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
            attempt["number"],
            attempt["node"],
            render.local_time(attempt["started_at"]),
            render.clock(ran_s(attempt)),
            remark({"state": "", **attempt}),
            "-" if (peak := attempt["peak_memory_bytes"]) is None else render.size(peak, up=True),
            attempt["message"] or "-",
        )
        for attempt in job["attempts"]
    ]
    return ["", *render.table(head, rows, right="ATTEMPT,TIME,PEAK")]
