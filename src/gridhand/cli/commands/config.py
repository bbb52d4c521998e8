"""`grid config`: the settings that count here, and where each of them comes from."""

from __future__ import annotations

import os
from typing import Any

import click

from gridhand.cli import render


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Show the settings and where they come from."""
    if ctx.invoked_subcommand is not None:
        return
    found = settings()
    if as_json:
        render.print_json(found)
        return
    rows = [(name, _text(one["value"]), one["from"]) for name, one in found.items()]
    click.echo("\n".join(render.table(("SETTING", "VALUE", "FROM"), rows)))


@config.command()
def path() -> None:
    """Print the folder in which the controller keeps what it knows."""
    from gridhand.home import Home

    click.echo(Home.find(make=False).folder)


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def settings() -> dict[str, dict[str, Any]]:
    """Each setting with its value and what set it."""
    from gridhand.controller.orders import LOG_BYTES, PROCESSES
    from gridhand.home import Home

    home = Home.find(make=False)
    given = os.environ.get("GRIDHAND_ADDRESS")
    return {
        "home": _one(home.folder, _home_from()),
        "address": _one(given or f"unix:{home.socket}", "GRIDHAND_ADDRESS" if given else "default"),
        "store": _one(f"sqlite:///{home.store}", "default"),
        "log": _one(home.log, "default"),
        "log_bytes": _one(LOG_BYTES, "default"),
        "grace_s": _one(_grace_s(), "default"),
        "processes": _one(PROCESSES, "default"),
    }


def _one(value: Any, source: str) -> dict[str, Any]:
    return {"value": value, "from": source}


def _grace_s() -> float:
    from gridhand.api.submissions import Submission

    return float(Submission.model_fields["grace_s"].default)


def _home_from() -> str:
    if os.environ.get("GRIDHAND_HOME"):
        return "GRIDHAND_HOME"
    return "XDG_STATE_HOME" if os.path.isabs(os.environ.get("XDG_STATE_HOME", "")) else "default"
