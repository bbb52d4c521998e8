"""`grid why`: why a job or a call waits, or where a request would fit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.options import request_options
from gridhand.cli.support.completions import complete_jobs

if TYPE_CHECKING:
    from gridhand.client import Client

ABOUT_ROOM = "no room for "  # the beginning of a refusal
_MOST_REASONS = 5  # of an array that are explained in full


@command(
    epilog="""
    grid why 17                   why job 17 waits
    grid why --gpus 2 --mem 64GB  where such a request would fit
    """
)
@request_options
@option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
@click.argument("id", required=False, shell_complete=complete_jobs)
def why(request: dict[str, Any], id: str | None, as_json: bool) -> None:
    """Explain why work waits, or where it would fit.

    Give the ID of a job, an array or a call, @ for your last job, or the options of a request. The
    explanation says what each node lacks, which change would fit now, who holds the resources, who
    is ahead in the queue and why, and when the job should start as far as that is known.
    """
    from gridhand.cli.commands import calls
    from gridhand.cli.commands.jobs import lines_of
    from gridhand.client import connect

    if (id is None) == (not request):
        raise click.UsageError("Give the ID of a job or a request such as --gpus 2, but not both.")
    with connect() as client:
        if id is None:
            answer = client.explain(request)
            text = str(answer.get("text") or answer)
        elif calls.is_call(id):
            answer, text = calls.why(client, id)
        elif count_tasks(lines := lines_of(client, id)) > 1:
            answer = explain_array(client, lines)
            text = _array_text(answer)
        else:
            answer = client.why(lines[0]["id"])
            if answer["reason"] == "dependency" and not answer["message"]:
                from gridhand.cli.support.failed_dependency import dependency_message

                answer["message"] = dependency_message(client, answer)
            text = job_text(answer)
    if as_json:
        render.print_json(answer)
    else:
        click.echo(text)


def count_tasks(lines: list[dict[str, Any]]) -> int:
    return sum(line["tasks"]["count"] if "tasks" in line else 1 for line in lines)


def explain_array(client: Client, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Explain an array once for each reason that its tasks wait for."""
    states: Counter[str] = Counter()
    for line in lines:
        states[line["state"]] += line["tasks"]["count"]
    waiting = [line for line in lines if line["state"] == "queued"]
    waiting.sort(key=lambda line: -line["tasks"]["count"])
    reasons = [client.why(line["id"]) for line in waiting[:_MOST_REASONS]]
    reasons += waiting[_MOST_REASONS:]
    return {
        "array": lines[0]["array"],
        "states": dict(states),
        "waiting": [
            {
                "tasks": line["tasks"]["count"],
                "named": line["tasks"]["named"],
                "why": reason["why"],
                "explanation": reason.get("explanation"),
                "holders": reason.get("holders", []),
                "queue": reason.get("queue"),
            }
            for line, reason in zip(waiting, reasons, strict=True)
        ],
    }


def _array_text(array: dict[str, Any]) -> str:
    states = ", ".join(f"{count} {state}" for state, count in array["states"].items())
    parts = [f"array {array['array']}: {states}"]
    parts += [f"{group['named']}: {_reason(group)}" for group in array["waiting"]]
    return "\n".join(parts)


def job_text(job: dict[str, Any]) -> str:
    """Return why a job waits, or its state if it does not."""
    if job["why"] is not None:
        return f"job {job['id']}: {_reason(job)}"
    state = f"job {job['id']} is {job['state']}"
    return f"{state}: {job['message']}" if job.get("message") else state


def _reason(job: dict[str, Any]) -> str:
    """Return the explanation, with the summary `why` before it unless it says the same."""
    summary, explained = job["why"] or "not scheduled yet", job["explanation"]
    place = job.get("queue")
    more = f"\n{place['text']}" if place else ""
    if not explained:
        return f"{summary}{more}"
    same = summary.startswith(ABOUT_ROOM) or explained.startswith(summary)
    return (explained if same else f"{summary}\n{explained}") + more
