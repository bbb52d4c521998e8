"""`grid reserve` and `grid release`: resources reserved by hand."""

from __future__ import annotations

from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.options import request_options


@command(
    epilog="""
    grid reserve -c 2 --ttl 1h mine
    grid run --within mine -- make test
    grid release mine
    """
)
@request_options
@option("--ttl", metavar="TIME", help="Release it after this time: seconds, or 2h.")
@option("--json", "as_json", is_flag=True, help="Print the allocation as JSON.")
@option("-q", "--quiet", is_flag=True, help="Print only the id.")
@click.argument("holder", required=False)
def reserve(
    request: dict[str, Any], ttl: str | None, holder: str | None, as_json: bool, quiet: bool
) -> None:
    """Reserve resources by hand.

    They are held for HOLDER until `grid release`, or until the time of --ttl is over. Jobs run in
    them with `grid run --within ID`.
    """
    from gridhand.client import connect

    if not request:
        raise click.UsageError("Give the resources to reserve, for example -c 2 --mem 4GB.")
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


@command()
@option("--json", "as_json", is_flag=True, help="Print the allocations as JSON.")
@option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.pass_context
def release(ctx: click.Context, ids: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Release reserved resources.

    ID is the id of a reservation, or its holder. Releasing it again changes nothing. A job that
    runs inside it is stopped first.
    """
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    released = []
    failed = 0
    with connect() as client:
        for id in ids:
            try:
                released.append(client.move(id, "release"))
            except GridError as error:
                if len(ids) == 1:
                    raise
                failed = 125  # the others are still released
                click.echo(f"error: {error}", err=True)
    if as_json:
        render.print_json(released)
    elif not quiet:
        for held in released:
            what = render.amounts(held["resources"])
            click.echo(f"{_release_message(held)}: {what} on {held['node']}")
    ctx.exit(failed)


def _release_message(held: dict[str, Any]) -> str:
    if held["state"] == "released":
        return f"released {held['id']}"
    if held["state"] == "active":
        return f"{held['id']} is released when its job has stopped"
    return f"{held['id']} had already ended ({held['state']})"
