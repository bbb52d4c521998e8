"""Commands on a store itself: proving it, and moving it elsewhere."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import click

_SHOW_AFTER_S = 1.0
_SHOWN = 20


@click.command()
@click.option("--store", "url", metavar="URL", help="Where the state is kept; else as here.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def check(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Prove that nothing is promised twice or lost.

    Recounts what is held, replays the history and compares the two, with code that shares nothing
    with the code that wrote them. The store is only read; its owner may go on working. Ends with
    0 if all is well, with 1 if something is not or the state has moved elsewhere, and with 125 if
    the store could not be read.
    """
    from gridhand.store.audit import audit

    report = audit(url or _own_store(), _progress("events"))
    if as_json:
        facts = {
            name: getattr(report, name)
            for name in (
                "url", "cluster_id", "epoch", "nodes", "live", "closed", "events", "moved_to"
            )
        }  # fmt: skip
        wrong = [
            {"invariant": one.invariant, "subject": one.subject, "message": one.message}
            for one in report.violations
        ]
        facts["jobs"] = {"open": report.open_jobs, "ended": report.ended_jobs}
        facts["calls"] = {"open": report.open_calls, "ended": report.ended_calls}
        clean = not wrong and report.moved_to is None
        click.echo(json.dumps({"clean": clean, **facts, "violations": wrong}, indent=2))
    else:
        click.echo(
            f"{report.url}: {report.nodes} nodes, {report.live} live and {report.closed} closed "
            f"allocations, {report.open_jobs} open and {report.ended_jobs} ended jobs, "
            f"{report.open_calls} open and {report.ended_calls} ended calls, "
            f"{report.events} events"
        )
        click.echo("\n".join(_verdict([str(one) for one in report.violations], report.moved_to)))
    ctx.exit(1 if report.violations or report.moved_to else 0)


def _own_store() -> str:
    """The store of the controller; of the one that would be started, if none runs."""
    from gridhand.client import connect
    from gridhand.core.errors import ControllerUnavailable, GridError
    from gridhand.home import Home

    try:
        with connect(start=False) as client:
            return str(client.status()["controller"]["store"])
    except ControllerUnavailable:
        home = Home.find(make=False)
    if not os.path.exists(home.store):
        hint = "Nothing has been run here yet. Name another store with --store URL."
        raise GridError(f"there is no store in {home.folder}", hint=hint)
    return home.store


def _verdict(violations: list[str], moved_to: str | None) -> list[str]:
    lines = [f"  {violation}" for violation in violations[:_SHOWN]]
    count = len(violations)
    if count > _SHOWN:
        lines.append(f"  and {count - _SHOWN} more; --json lists them all")
    if moved_to is not None:
        lines.append(f"the state was moved to {moved_to}: check it there")
    if count:
        lines.append(f"{count} {'thing is' if count == 1 else 'things are'} wrong")
    return lines or ["clean"]


@click.command("migrate-store")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--json", "as_json", is_flag=True, help="Print what was moved as JSON.")
def migrate_store(source: str, target: str, as_json: bool) -> None:
    """Move the state to another store.

    Everything is copied, compared row by row, and then the old store is closed for good: it says
    where the state has gone. Nobody may own either of them meanwhile, and TO must be empty.
    """
    from gridhand.store.moving import move
    from gridhand.store.ownership import Taking
    from gridhand.store.sql import SqlStore
    from gridhand.store.urls import store_at

    old, new = store_at(source, Taking(must_exist=True)), store_at(target)
    assert isinstance(old, SqlStore)
    assert isinstance(new, SqlStore)
    shown = _progress("rows")
    rows = move(old, new, lambda table, done, total: shown(done, total))
    if as_json:
        click.echo(json.dumps({"from": old.url, "to": new.url, "rows": rows}))
    else:
        click.echo(f"moved {rows} rows from {old.url} to {new.url}")


def _progress(what: str) -> Callable[[int, int], None]:
    """A line on the terminal that counts, from the second on, and goes when all is done."""
    start = time.monotonic()

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - start > _SHOW_AFTER_S:
            end = "\r\033[K" if done >= total else ""
            click.echo(f"\r{done:,} of {total:,} {what}{end}", nl=False, err=True)

    return show
