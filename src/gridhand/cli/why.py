"""`grid why`: why a job waits, or where work would go and what speaks against it."""

from __future__ import annotations

from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.options import request_options


@click.command()
@request_options
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
@click.argument("id", required=False)
def why(request: dict[str, Any], id: str | None, as_json: bool) -> None:
    """Say why a job waits, or where work would go.

    Give the ID of a job, @ for your last one, or what you would ask for: `grid why --gpus 2`.
    """
    from gridhand.client import connect

    if (id is None) == (not request):
        raise click.UsageError("Give the ID of a job, or what would be asked for, as in --gpus 2.")
    with connect() as client:
        found = client.explain(request) if id is None else client.why(id)
    if as_json:
        render.print_json(found)
    else:
        click.echo(_text(found, id))


def _text(found: dict[str, Any], id: str | None) -> str:
    if id is None:
        return str(found.get("text") or found.get("explanation") or found)
    if found["why"] is None:
        said = f"job {found.get('id', id)} is {found['state']}"
        return f"{said}: {found['message']}" if found.get("message") else said
    explanation = found.get("explanation") or ""
    return "\n".join(filter(None, [found["why"], explanation]))
