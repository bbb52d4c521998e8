"""`grid reserve` and `grid release`: resources held by hand."""

from __future__ import annotations

from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.options import request_options


@click.command()
@request_options
@click.option("--ttl", metavar="TIME", help="Give it back after: seconds, or 2h. Else: never.")
@click.option("--json", "as_json", is_flag=True, help="Print the allocation as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the id and nothing else.")
@click.argument("holder", required=False)
def reserve(
    request: dict[str, Any], ttl: str | None, holder: str | None, as_json: bool, quiet: bool
) -> None:
    """Hold resources by hand.

    They stay held, for HOLDER, until `grid release ID`, or until the time given by --ttl is over.
    """
    from gridhand.client import connect

    if not request:
        raise click.UsageError("Say what is to be held, as in -c 2 --mem 4GB.")
    order: dict[str, Any] = {"request": request, "state": "active"}
    order["lifetime"] = "until_released" if ttl is None else "lease"
    if holder is not None:
        order["holder"] = holder
    if ttl is not None:
        from gridhand.cli.options import seconds

        order["ttl_s"] = seconds(ttl, "--ttl")
    with connect() as client:
        held = client.allocate(order)
    if as_json:
        render.print_json(held)
        return
    click.echo(held["id"])
    if not quiet:
        until = f" until {render.local_time(held['expires_at'])}" if held.get("expires_at") else ""
        what = render.amounts(held["resources"])
        click.echo(f"grid: {held['holder']} holds {what} on {held['node']}{until}", err=True)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the allocations as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless it fails.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.pass_context
def release(ctx: click.Context, ids: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Give back what was held by hand.

    ID is that of what is held, or its holder. What has been given back already stays as it is; what
    a job runs in is free when that has been stopped.
    """
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    found = []
    failed = 0
    with connect() as client:
        for id in ids:
            try:
                found.append(client.move(id, "release"))
            except GridError as error:
                if len(ids) == 1:
                    raise
                failed = 125  # the others are given back all the same
                click.echo(f"error: {error}", err=True)
    if as_json:
        render.print_json(found)
    elif not quiet:
        for held in found:
            what = render.amounts(held["resources"])
            left = held["state"] == "active"
            state = "free once what runs in it has ended" if left else held["state"]
            click.echo(f"{held['id']} is {state}: {what} on {held['node']}")
    ctx.exit(failed)
