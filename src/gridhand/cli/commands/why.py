"""`grid why`: why a job or a call waits, or where work would go and what speaks against it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.options import request_options

if TYPE_CHECKING:
    from gridhand.client import Client

ABOUT_ROOM = "no room for "  # how a refusal begins
_MOST_REASONS = 5  # of an array that are asked about


@click.command()
@request_options
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
@click.argument("id", required=False)
def why(request: dict[str, Any], id: str | None, as_json: bool) -> None:
    """Say why a job or a call waits, or where work would go.

    Give the ID of a job or of an array, @ for your last one, that of a call of a function, or what
    you would ask for, as in `grid why --gpus 2`. It says what is missing on each node, which change
    would fit now, and who holds what is waited for.
    """
    from gridhand.cli import calls
    from gridhand.cli.jobs import tasks
    from gridhand.client import connect

    if (id is None) == (not request):
        raise click.UsageError("Give the ID of a job, or what would be asked for, as in --gpus 2.")
    with connect() as client:
        if id is None:
            found = client.explain(request)
            text = str(found.get("text") or found)
        elif calls.is_call(id):
            found, text = calls.why(client, id)
        elif len(several := tasks(client, id)) > 1:
            found = of_array(client, several)
            text = _array_text(found)
        else:
            found = client.why(several[0]["id"])
            text = job_text(found)
    if as_json:
        render.print_json(found)
    else:
        click.echo(text)


def of_array(client: Client, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """An array by what its tasks wait for: one of those that wait for the same speaks for all."""
    from gridhand.cli.folding import name_of, together

    waiting = together(job for job in tasks if job["state"] == "queued")
    waiting.sort(key=len, reverse=True)
    told = [client.why(several[0]["id"]) for several in waiting[:_MOST_REASONS]]
    told += [several[0] for several in waiting[_MOST_REASONS:]]
    return {
        "array": tasks[0]["array"],
        "states": dict(Counter(job["state"] for job in tasks)),
        "waiting": [
            {
                "tasks": [job["id"] for job in several],
                "named": name_of(several),
                "why": one["why"],
                "explanation": one.get("explanation"),
                "holders": one.get("holders", []),
            }
            for several, one in zip(waiting, told, strict=True)
        ],
    }


def _array_text(found: dict[str, Any]) -> str:
    states = ", ".join(f"{count} {state}" for state, count in found["states"].items())
    parts = [f"array {found['array']}: {states}"]
    parts += [f"{one['named']}: {_reason(one)}" for one in found["waiting"]]
    return "\n".join(parts)


def job_text(found: dict[str, Any]) -> str:
    """Why a job waits, or that it does not."""
    if found["why"] is not None:
        return f"job {found['id']}: {_reason(found)}"
    said = f"job {found['id']} is {found['state']}"
    return f"{said}: {found['message']}" if found.get("message") else said


def _reason(found: dict[str, Any]) -> str:
    """The explanation has all that its summary `why` has, if that is about the same."""
    summary, explained = found["why"] or "it has just begun", found["explanation"]
    if not explained:
        return str(summary)
    same = summary.startswith(ABOUT_ROOM) or explained.startswith(summary)
    return explained if same else f"{summary}\n{explained}"
