"""Commands on a store itself: proving it, and moving it elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import click

_SHOW_AFTER_S = 1.0


@click.command()
@click.option("--store", "url", required=True, metavar="URL", help="Where the state is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def check(ctx: click.Context, url: str, as_json: bool) -> None:
    """Prove that nothing is promised twice or lost.

    Recounts what is held, replays the history and compares the two, with code that shares nothing
    with the code that wrote them. The store is only read; its owner may go on working. Ends with
    0 if all is well, and with 1 if something is not.
    """
    from gridhand.store.audit import audit

    report = audit(url, _progress("events"))
    if as_json:
        facts = {
            name: getattr(report, name)
            for name in ("url", "cluster_id", "epoch", "nodes", "live", "closed", "events")
        }
        wrong = [
            {"invariant": one.invariant, "subject": one.subject, "message": one.message}
            for one in report.violations
        ]
        click.echo(json.dumps({"clean": not wrong, **facts, "violations": wrong}, indent=2))
    else:
        click.echo(
            f"{report.url}: {report.nodes} nodes, {report.live} live and {report.closed} closed "
            f"allocations, {report.events} events"
        )
        for violation in report.violations:
            click.echo(f"  {violation}")
        count = len(report.violations)
        click.echo(
            f"{count} {'thing is' if count == 1 else 'things are'} wrong" if count else "clean"
        )
    ctx.exit(1 if report.violations else 0)


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
