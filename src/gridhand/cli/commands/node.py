"""`grid node`: register, drain, resume and remove nodes."""

from __future__ import annotations

import re
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.commands.status import health, list_nodes
from gridhand.cli.help_format import CommandGroup, option
from gridhand.cli.options import LABEL, amounts_of, capacity_options
from gridhand.cli.support.completions import complete_nodes

_GPUS = re.compile(r"(?P<model>[^:*@]*)(?::(?P<memory>[^:*@]+))?(?:@(?P<capability>[0-9.]+))?"
                   r"(?:\*(?P<count>[0-9]{1,3}))?")  # fmt: skip
_AS_JSON = option("--json", "as_json", is_flag=True, help="Print the node as JSON.")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def node(ctx: click.Context) -> None:
    """Register, drain, resume or remove nodes."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def read_gpus(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """Read `A100:40GB*2`, or `A100:40GB@8.0*2` with the compute capability."""
    gpus: list[dict[str, str]] = []
    for value in values:
        match = _GPUS.fullmatch(value.replace(" ", ""))
        if match is None or not (match["model"] or match["memory"]) or match["count"] == "0":
            raise click.BadParameter(
                f"{value!r} is not MODEL:MEMORY*COUNT, as in A100:40GB*2, or A100:40GB@8.0"
            )
        facts = {k: v for k, v in match.groupdict().items() if v and k != "count"}
        gpus += [facts] * int(match["count"] or 1)
    return gpus


@node.command(
    epilog="""
    grid node register gpu1 -c 32 --mem 128GB --gpus-of A100:40GB*2
    """
)
@capacity_options(
    option("--gpus", metavar="N", help="GPUs of unknown model."),
    option(
        "--gpus-of",
        "devices",
        multiple=True,
        callback=read_gpus,
        metavar="MODEL:MEMORY*N",
        help="GPUs, such as A100:40GB*2 or A100:40GB@8.0. Repeatable.",
    ),
)
@LABEL
@option(
    "--price",
    type=click.FloatRange(0),
    metavar="N",
    help="Price of an hour, for the strategy `cheapest`.",
)
@option("--address", metavar="HOST", help="Address to show in lists; nothing connects to it.")
@_AS_JSON
@click.argument("name", shell_complete=complete_nodes)
def register(name: str, as_json: bool, **given: Any) -> None:
    """Register a node, or describe it anew.

    Allocations on the node are kept. For a node that reports itself, such as this machine, amounts
    cap what is found and other resources are added, now and after every restart. Any other node is
    a part of this machine under another name: its jobs run on the machine of the controller.
    """
    capacity = amounts_of(given)
    capacity |= capacity.pop("resources", {})
    if not capacity and not given["devices"]:
        raise click.UsageError("Give the node's resources, for example -c 8 --mem 16GB.")
    described = {"name": name, "resources": capacity, "gpus": given["devices"]}
    described |= {key: given[key] for key in ("labels", "price", "address") if given[key]}
    from gridhand.client import connect

    with connect() as client:
        [facts] = client.register([described])
    text = f"registered node {name}: {render.amounts(facts['total'])}"
    _answer(facts, as_json, f"{text}; its jobs run on the machine of the controller")
    if given["address"] and not as_json:
        click.echo(
            f"grid: {given['address']} is declared only: nothing connects to it or runs there",
            err=True,
        )


@node.command()
@_AS_JSON
@click.argument("name", shell_complete=complete_nodes)
def drain(name: str, as_json: bool) -> None:
    """Stop new work on a node; running jobs continue."""
    from gridhand.client import connect

    with connect() as client:
        facts = client.drain(name)
    _answer(
        facts, as_json, f"node {name} is draining: running jobs continue, new work goes elsewhere"
    )


@node.command()
@_AS_JSON
@click.argument("name", shell_complete=complete_nodes)
def resume(name: str, as_json: bool) -> None:
    """Let a drained node take new work again."""
    from gridhand.client import connect

    with connect() as client:
        facts = client.resume(name)
    _answer(facts, as_json, f"node {name} takes new work again ({health(facts)})")


@node.command()
@option("--force", is_flag=True, help="Remove it even if it is in use; its allocations are lost.")
@_AS_JSON
@click.argument("name", shell_complete=complete_nodes)
def remove(name: str, force: bool, as_json: bool) -> None:
    """Remove a node.

    Refused while the node is in use, unless --force is given.
    """
    from gridhand.client import connect

    with connect() as client:
        facts = client.remove(name, force=force)
    _answer(facts, as_json, f"removed node {name}")


node.add_command(list_nodes)


def _answer(facts: dict[str, Any], as_json: bool, sentence: str) -> None:
    if as_json:
        render.print_json(facts)
    else:
        click.echo(sentence)
