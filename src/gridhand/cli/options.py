"""The options that describe what work needs, with the same names in every command.

Amounts are only collected here. The controller parses them and explains what is wrong with them,
so that commands start without the code that can.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import click

from gridhand.cli.help_format import option, option_group
from gridhand.cli.support.completions import complete_nodes, complete_strategies

PLACEMENT = "Placement"
_AMOUNTS = {"cpus": "cpu", "mem": "memory", "disk": "disk", "gpus": "gpu", "gpu_mem": "gpu_memory"}
_CONSTRAINTS = ("gpu_model", "gpu_capability", "node", "quality", "fallback", "strategy")


def read_pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """Read repeated `NAME=VALUE`; raise BadParameter if a name comes twice."""
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
    """Read names that are repeated or separated by commas."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


_CAPACITY = (
    option("-c", "--cpus", metavar="N", help="CPU cores; 0.5 is half a core."),
    option("--mem", metavar="SIZE", help="Memory: 4GB, 512MiB; a bare number is MB."),
    option("--disk", metavar="SIZE", help="Disk space, written like --mem."),
    option(
        "-r",
        "--resource",
        "resources",
        multiple=True,
        callback=read_pairs,
        metavar="NAME=N",
        help="Any other resource, such as licence=1. Repeatable.",
    ),
)
LABEL = option(
    "--label",
    "labels",
    multiple=True,
    callback=read_pairs,
    metavar="KEY=VALUE",
    help="A label of the node, such as zone=east. Repeatable.",
)
_NODES = partial(
    option, multiple=True, callback=read_names, shell_complete=complete_nodes, metavar="NODE"
)
_RESOURCES = option_group(
    "Resources",
    *_CAPACITY,
    option("--gpus", metavar="N", help="Whole GPUs, or a share of one, such as 0.25."),
    option("--gpu-mem", metavar="SIZE", help="Memory on each GPU, which others may share."),
    option("--gpu-model", metavar="MODEL", help="GPU model, such as A100."),
    option("--gpu-capability", metavar="X.Y", help="At least this compute capability."),
    option("--quality", metavar="LEVEL", help="draft, standard, high, ultra or auto."),
    option("--fallback", metavar="cpu", help="Run without a GPU if none is free."),
)
_PLACEMENT = option_group(
    PLACEMENT,
    option(
        "-w", "--node", shell_complete=complete_nodes, metavar="NODE", help="Use only this node."
    ),
    _NODES("--prefer", help="Use this node if the job fits there."),
    _NODES("--exclude", help="Do not use this node."),
    LABEL,
    option(
        "--strategy",
        shell_complete=complete_strategies,
        metavar="NAME",
        help="Choose among nodes with room by this strategy, such as pack or spread.",
    ),
)


def request_options(command: Callable[..., object]) -> Callable[..., Any]:
    """Add all of these options to a command, which gets their values as `request`."""

    def with_request(*args: Any, **values: Any) -> object:
        names = {*_AMOUNTS, *_CONSTRAINTS, "resources", "prefer", "exclude", "labels"}
        given = {name: values.pop(name) for name in names}
        return command(*args, request=request_of(given), **values)

    decorated: Callable[..., Any] = _RESOURCES(_PLACEMENT(update_wrapper(with_request, command)))
    return decorated


def capacity_options(*more: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds the options for the capacity of a node, and `more`."""
    return option_group("Resources", *_CAPACITY, *more)


def amounts_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return the amounts among the values of options, by resource name."""
    request: dict[str, Any] = {
        name: values[option] for option, name in _AMOUNTS.items() if values.get(option) is not None
    }
    others = values.get("resources") or {}
    for name in request.keys() & others.keys():
        raise click.UsageError(f"{name} is given twice: {request[name]} and {others[name]}")
    return request | ({"resources": others} if others else {})


def request_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return the request as the controller reads it, without options that were not given."""
    request = amounts_of(values)
    request.update((name, values[name]) for name in _CONSTRAINTS if values[name] is not None)
    request.update((name, values[name]) for name in ("prefer", "exclude", "labels") if values[name])
    return request


def seconds(text: str, field: str) -> float:
    """Read a duration; a bare number is seconds."""
    from gridhand.core.errors import InvalidInput
    from gridhand.core.model.durations import read_duration

    number = text.strip()
    bare = number.replace(".", "", 1).isdecimal() and number.isascii()
    try:
        return read_duration(f"{number}s" if bare else text, field) / 1000
    except InvalidInput as error:
        allowed = "more than 0: 30 (seconds), HH:MM:SS, or units as in 90s, 2m or 1h30m"
        raise InvalidInput(field, text, allowed) from error
