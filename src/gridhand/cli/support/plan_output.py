"""`grid run --dry-run`: where a job would start, or why it would wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gridhand.client import Client

WOULD_WAIT = 1


def dry_run(client: Client, order: dict[str, Any], *, as_json: bool) -> int:
    """Print where it would start; return 0 if it would start now, 1 if it would wait."""
    plan = client.plan({name: value for name, value in order.items() if name != "environment"})
    if as_json:
        from gridhand.cli.render import print_json

        print_json(plan)
    else:
        subject = "the first task" if "array" in order else "the job"
        click.echo(_text(plan, "the gang" if "nodes" in order else subject))
    return 0 if plan["starts"] else WOULD_WAIT


def _text(plan: dict[str, Any], subject: str) -> str:
    if not plan["starts"]:
        when = _when(plan, subject)
        return f"{when}{subject} would wait: {plan['why']}"
    devices = f" (GPUs {', '.join(plan['gpus'])})" if plan["gpus"] else ""
    where = ", ".join(plan.get("nodes") or [plan["node"]])
    return f"{subject} would start now on {where}{devices}"


def _when(plan: dict[str, Any], subject: str) -> str:
    """Return a line that says when it would start, or nothing if that is not known."""
    if plan.get("starts_in_s") is None:
        return ""
    from gridhand.core.model.durations import duration_text

    wait = duration_text(round(1000 * plan["starts_in_s"]))
    return f"{subject} would start in {wait} on {plan['starts_on']}\n"
