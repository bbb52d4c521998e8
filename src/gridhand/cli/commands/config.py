"""`grid config`: the settings, and where each of them comes from."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import CommandGroup, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.home import Home


@click.group(cls=CommandGroup, invoke_without_command=True)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Show, check and reload the configuration."""
    if ctx.invoked_subcommand is not None:
        return
    values = settings()
    if as_json:
        render.print_json(values)
        return
    rows = [(name, _text(setting["value"]), setting["from"]) for name, setting in values.items()]
    click.echo("\n".join(render.table(("SETTING", "VALUE", "FROM"), rows)))


@config.command()
def path() -> None:
    """Print the folder in which the controller keeps its state."""
    from gridhand.home import Home

    click.echo(Home.find(make=False).folder)


@config.command()
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Show the configuration of the running controller, with the source of each value."""
    from gridhand.client import connect

    with connect() as client:
        facts = client.config()
    if as_json:
        render.print_json(facts)
        return
    unused = set(facts["not_used_yet"])
    rows = [
        (
            name,
            _text(value),
            setting["from"] + (" (not used yet)" if key.partition(".")[0] in unused else ""),
        )
        for key, setting in facts["values"].items()
        for name, value in _leaves(key, setting["value"])
    ]
    click.echo("\n".join(render.fitted_table(("SETTING", "VALUE", "FROM"), rows)))


@config.command()
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def reload(as_json: bool) -> None:
    """Have the controller read its configuration file again."""
    from gridhand.client import connect

    with connect() as client:
        facts = client.reload_config()
    if facts["file"] is None:
        from gridhand.core.errors import GridError

        raise GridError(
            "there is nothing to reload: the controller was started without a configuration file",
            hint="`grid stop --keep-jobs`, then name one: `grid serve --config FILE`.",
        )
    if as_json:
        render.print_json(facts)
        return
    changed = ", ".join(facts["changed"]) or "nothing"
    click.echo(f"read {facts['file']}: {changed} changed")
    if facts["needs_restart"]:
        click.echo(f"after the next start of the controller: {', '.join(facts['needs_restart'])}")


@config.command()
@click.argument("file", type=click.Path())
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: str, as_json: bool) -> None:
    """Check a configuration file and report all its problems."""
    from gridhand.config.cluster_config import ClusterConfig

    unused = ClusterConfig.from_yaml(file).not_used_yet()
    if as_json:
        render.print_json({"file": file, "valid": True, "not_used_yet": unused})
        return
    click.echo(f"{file} is valid")
    if unused:
        click.echo(f"not used yet: {', '.join(unused)}")


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a setting, or each of its parts: a line for all of a queue would be very long."""
    if not isinstance(value, dict) or not value:
        yield key, value
        return
    for name, part in value.items():
        yield from _leaves(f"{key}.{name}", part)


def _text(value: Any) -> str:
    """Return a value as the file has it."""
    if isinstance(value, str):
        return value
    return "-" if value is None else json.dumps(value)


def settings() -> dict[str, dict[str, Any]]:
    """Return each setting with its value and its source."""
    from gridhand.controller.jobs.start_orders import LOG_BYTES, PROCESSES
    from gridhand.home import Home

    home = Home.find(make=False)
    return {
        "home": _setting(home.folder, _home_source()),
        "address": _address(home),
        "store": _store(home),
        "log": _setting(home.log, "default"),
        "log_bytes": _setting(LOG_BYTES, "default"),
        "grace_s": _setting(_grace_s(), "default"),
        "processes": _setting(PROCESSES, "default"),
    }


def _setting(value: Any, source: str) -> dict[str, Any]:
    return {"value": value, "from": source}


def _address(home: Home) -> dict[str, Any]:
    from gridhand.client.controller_finder import usual_address

    if given := os.environ.get("GRIDHAND_ADDRESS"):
        return _setting(given, "GRIDHAND_ADDRESS")
    found = usual_address()
    shared = found.path != home.socket
    return _setting(str(found), "the controller of this machine" if shared else "default")


def _store(home: Home) -> dict[str, Any]:
    from gridhand.store.home_store import read_home_store

    remembered = os.path.exists(home.store_note)
    return _setting(read_home_store(home).url, home.store_note if remembered else "default")


def _grace_s() -> float:
    from gridhand.api.schemas.jobs import Submission

    return float(Submission.model_fields["grace_s"].default)


def _home_source() -> str:
    if os.environ.get("GRIDHAND_HOME"):
        return "GRIDHAND_HOME"
    return "XDG_STATE_HOME" if os.path.isabs(os.environ.get("XDG_STATE_HOME", "")) else "default"
