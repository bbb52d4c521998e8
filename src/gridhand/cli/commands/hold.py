"""`grid hold` and `grid unhold`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support.completions import complete_jobs

if TYPE_CHECKING:
    from gridhand.client import Client

_JSON = option("--json", "as_json", is_flag=True, help="Print the changed jobs as JSON.")
_IDS = click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_jobs)


@command(epilog="grid hold 17 && grid unhold 17")
@_JSON
@_IDS
@click.pass_context
def hold(ctx: click.Context, ids: tuple[str, ...], as_json: bool) -> None:
    """Keep queued jobs from starting until `grid unhold`.

    The id of an array means all its queued tasks, and @ means your last job. A job that runs
    cannot be held.
    """
    ctx.exit(_change(ids, as_json, "held", lambda client, id: client.hold(id)))


@command()
@_JSON
@_IDS
@click.pass_context
def unhold(ctx: click.Context, ids: tuple[str, ...], as_json: bool) -> None:
    """Let held jobs start.

    The id of an array means all its held tasks, and @ means your last job.
    """
    ctx.exit(_change(ids, as_json, "released", lambda client, id: client.unhold(id)))


def _change(
    ids: tuple[str, ...], as_json: bool, done: str, change: Callable[[Client, str], dict[str, Any]]
) -> int:
    """Change each of the jobs, say what was changed, and return the exit code."""
    from gridhand.cli.commands.jobs import resolve_id
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    changed: list[dict[str, Any]] = []
    failed = 0
    with connect() as client:
        for id in ids:
            try:
                found = resolve_id(client, id)
                answer = change(client, found)
            except GridError as error:
                if len(ids) == 1:
                    raise
                failed = 125  # the others are still changed
                click.echo(f"error: {error}", err=True)
                continue
            changed += answer["jobs"]
            if not as_json:
                click.echo(_message(found, done, answer))
    if as_json:
        render.print_json(changed)
    return failed


def _message(id: str, done: str, answer: dict[str, Any]) -> str:
    count = answer["count"]
    if not count:
        return f"job {id} is as it was"
    if answer["jobs"][0]["array"] == id:
        return f"array {id}: {done} {count} tasks"
    return f"{done} job {id}"
