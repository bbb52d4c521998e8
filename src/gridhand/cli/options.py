"""The options that say what work needs: the same, with the same names, in every command.

Amounts are only collected here and read by the controller, which has the words for what is wrong
with them; to read them here as well would make every command pay for the code that can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import Any

import click

_AMOUNTS = {"cpus": "cpu", "mem": "memory", "disk": "disk", "gpus": "gpu", "gpu_mem": "gpu_memory"}
_WISHES = ("gpu_model", "gpu_capability", "node", "quality", "fallback")


def read_pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """`NAME=VALUE`, as often as one likes; a name that comes twice is a mistake."""
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, amount = value.partition("=")
        if not (equals and name and amount):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE, as in {_EXAMPLES[param.name]}")
        if name in pairs:
            raise click.BadParameter(f"{name!r} is given twice: {pairs[name]!r} and {amount!r}")
        pairs[name] = amount
    return pairs


_EXAMPLES: dict[str | None, str] = {"resources": "fpga=1", "labels": "zone=east"}


def read_names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Names, one by one or with commas between them."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


_CAPACITY = (
    click.option("-c", "--cpus", metavar="N", help="Cores; a part of one, as in 0.5, is shared."),
    click.option("--mem", metavar="SIZE", help="Memory: 4GB, 512MiB; a bare number is MB."),
    click.option("--disk", metavar="SIZE", help="Disk space, written like --mem."),
    click.option(
        "-r",
        "--resource",
        "resources",
        multiple=True,
        callback=read_pairs,
        metavar="NAME=N",
        help="Any other resource; may be repeated.",
    ),
)
LABELS = click.option(
    "--label",
    "labels",
    multiple=True,
    callback=read_pairs,
    metavar="KEY=VALUE",
    help="A label of the node; may be repeated.",
)
_REQUEST = (
    *_CAPACITY,
    click.option("--gpus", metavar="N", help="GPUs: whole ones, or a part of one, as in 0.25."),
    click.option("--gpu-mem", metavar="SIZE", help="Memory on each GPU; it is then shared by it."),
    click.option("--gpu-model", metavar="MODEL", help="Only GPUs of this model, as in A100."),
    click.option("--gpu-capability", metavar="X.Y", help="Only GPUs of at least this capability."),
    click.option("-w", "--node", metavar="NODE", help="On this node and no other."),
    click.option(
        "--prefer", multiple=True, callback=read_names, metavar="NODE", help="On it, if it fits."
    ),
    click.option(
        "--exclude", multiple=True, callback=read_names, metavar="NODE", help="Not on this node."
    ),
    LABELS,
    click.option("--quality", metavar="LEVEL", help="draft, standard, high, ultra or auto."),
    click.option("--fallback", metavar="cpu", help="Without a GPU rather than not at all."),
)


def request_options(command: Callable[..., object]) -> Callable[..., Any]:
    """Give a command all of these options; it gets what was asked for as `request`."""

    def collected(*args: Any, **values: Any) -> object:
        names = {*_AMOUNTS, *_WISHES, "resources", "prefer", "exclude", "labels"}
        asked = {name: values.pop(name) for name in names}
        return command(*args, request=request_of(asked), **values)

    return _with(_REQUEST, update_wrapper(collected, command))


def capacity_options(command: Callable[..., object]) -> Callable[..., Any]:
    """Give a command the options for what a node has, as values of their own."""
    return _with(_CAPACITY, command)


def _with(
    options: Iterable[Callable[..., Any]], command: Callable[..., object]
) -> Callable[..., Any]:
    for option in reversed(tuple(options)):
        command = option(command)
    return command


def amounts_of(values: dict[str, Any]) -> dict[str, Any]:
    """The amounts among the values of options, by the names that resources have."""
    asked: dict[str, Any] = {
        name: values[option] for option, name in _AMOUNTS.items() if values.get(option) is not None
    }
    others = values.get("resources") or {}
    for name in asked.keys() & others.keys():
        raise click.UsageError(f"{name} is asked for twice: {asked[name]} and {others[name]}")
    return asked | ({"resources": others} if others else {})


def request_of(values: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, as the controller reads it; what was not given is not in it."""
    asked = amounts_of(values)
    asked.update((name, values[name]) for name in _WISHES if values[name] is not None)
    asked.update((name, values[name]) for name in ("prefer", "exclude", "labels") if values[name])
    return asked


def seconds(text: str, field: str) -> float:
    """A duration; a bare number is seconds."""
    from gridhand.core.durations import read_duration

    number = text.strip()
    bare = number.replace(".", "", 1).isdecimal() and number.isascii()
    return read_duration(f"{number}s" if bare else text, field) / 1000
