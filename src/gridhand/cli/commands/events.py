"""`grid events`: what has changed, and what changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option

_LAST = 50
_MOST = 10_000


@command(
    epilog="""
    grid events -f                       follow everything that happens
    grid events -f --kind job.ended      follow the ends of jobs
    grid events --kind node --json       the last changes of nodes, as JSON lines
    """
)
@option("-f", "--follow", is_flag=True, help="Go on with what happens from now on.")
@option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Only this kind, such as `job.ended`, or `job` for all of jobs. Repeatable.",
)
@option("--owner", "owners", multiple=True, metavar="NAME", help="Only of this owner. Repeatable.")
@option("--after", type=click.IntRange(0), metavar="NUMBER", help="Begin after this event.")
@option(
    "-n",
    "--last",
    type=click.IntRange(0, _MOST),
    metavar="N",
    help=f"Begin with the last N events: {_LAST}, or none with --follow.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON, one event on each line.")
def events(
    follow: bool,
    kinds: tuple[str, ...],
    owners: tuple[str, ...],
    after: int | None,
    last: int | None,
    as_json: bool,
) -> None:
    """List or follow what happens to jobs, nodes and allocations.

    Each line has the number of the event, its time, its kind, what it happened to, its owner, and
    why it happened.
    """
    from gridhand.client import connect

    if after is not None and last is not None:
        raise click.UsageError("--after and --last exclude each other")
    show = _show_json if as_json else _show
    with connect() as client:
        if after is None and (last or not follow):
            page = client.recent_events(kinds, owners, _LAST if last is None else last)
            show(page["events"])
            after = page["next"]
        elif after is not None and not follow:
            show(client.event_page(kinds, owners, after, _MOST)["events"])
        if follow:
            for event in client.follow_events(kinds, owners, after):
                show([event])


def _show_json(found: Iterable[dict[str, Any]]) -> None:
    for event in found:
        click.echo(json.dumps({name: value for name, value in event.items() if name != "row"}))


def _show(found: Iterable[dict[str, Any]]) -> None:
    for event in found:
        texts = [render.clean(event[name]) for name in ("kind", "subject", "owner", "why")]
        kind, subject, owner, why = texts
        at = render.clean(event["at"])
        line = f"{event['number']:>8}  {at}  {kind:<20}  {subject:<12}  {owner or '-':<10}  {why}"
        click.echo(line.rstrip())
