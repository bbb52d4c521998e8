"""`grid node`: which machines there are."""

from __future__ import annotations

import re
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.cluster import health, list_nodes
from gridhand.cli.options import LABELS, amounts_of, capacity_options

_GPUS = re.compile(r"(?P<model>[^:*@]*)(?::(?P<memory>[^:*@]+))?(?:@(?P<capability>[0-9.]+))?"
                   r"(?:\*(?P<count>[0-9]{1,3}))?")  # fmt: skip
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the node as JSON.")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def node(ctx: click.Context) -> None:
    """Register, drain, resume and remove nodes."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def read_gpus(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """`A100:40GB*2`, or `A100:40GB@8.0*2` with the compute capability."""
    gpus: list[dict[str, str]] = []
    for value in values:
        found = _GPUS.fullmatch(value.replace(" ", ""))
        if found is None or not (found["model"] or found["memory"]) or found["count"] == "0":
            raise click.BadParameter(
                f"{value!r} is not MODEL:MEMORY*COUNT, as in A100:40GB*2, or A100:40GB@8.0"
            )
        facts = {k: v for k, v in found.groupdict().items() if v and k != "count"}
        gpus += [facts] * int(found["count"] or 1)
    return gpus


@node.command()
@capacity_options
@click.option("--gpus", metavar="N", help="So many GPUs of which nothing else is known.")
@click.option(
    "--gpus-of",
    "devices",
    multiple=True,
    callback=read_gpus,
    metavar="MODEL:MEMORY*N",
    help="GPUs, as in A100:40GB*2 or A100:40GB@8.0; may be repeated.",
)
@LABELS
@click.option("--price", type=click.FloatRange(0), help="What an hour costs.")
@click.option("--address", metavar="HOST", help="Where it is.")
@_AS_JSON
@click.argument("name")
def register(name: str, as_json: bool, **given: Any) -> None:
    """Add a node, or say anew what it has.

    What is held on it stays held. It is a part of this machine under another name: its jobs run
    where the controller does.
    """
    capacity = amounts_of(given)
    capacity |= capacity.pop("resources", {})
    if not capacity and not given["devices"]:
        raise click.UsageError("Say what the node has, as in -c 8 --mem 16GB.")
    facts = {"name": name, "resources": capacity, "gpus": given["devices"]}
    facts |= {key: given[key] for key in ("labels", "price", "address") if given[key]}
    from gridhand.client import connect

    with connect() as client:
        [found] = client.register([facts])
    said = f"registered node {name}: {render.amounts(found['total'])}"
    _answer(found, as_json, f"{said}; its jobs run on the machine of the controller")


@node.command()
@_AS_JSON
@click.argument("name")
def drain(name: str, as_json: bool) -> None:
    """Give a node no new work; what runs there goes on."""
    from gridhand.client import connect

    with connect() as client:
        found = client.drain(name)
    _answer(found, as_json, f"node {name} is draining: it gets no new work")


@node.command()
@_AS_JSON
@click.argument("name")
def resume(name: str, as_json: bool) -> None:
    """Give a node work again."""
    from gridhand.client import connect

    with connect() as client:
        found = client.resume(name)
    _answer(found, as_json, f"node {name} gets work again: it is {health(found)}")


@node.command()
@click.option("--force", is_flag=True, help="Even if something is held there: it is then lost.")
@_AS_JSON
@click.argument("name")
def remove(name: str, force: bool, as_json: bool) -> None:
    """Forget a node.

    Refused while something is held there, unless forced.
    """
    from gridhand.client import connect

    with connect() as client:
        found = client.remove(name, force=force)
    _answer(found, as_json, f"removed node {name}")


node.add_command(list_nodes)


def _answer(found: dict[str, Any], as_json: bool, sentence: str) -> None:
    if as_json:
        render.print_json(found)
    else:
        click.echo(sentence)
