"""`grid check` and `grid migrate-store`: verify a store, and move it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option

_SHOW_AFTER_S = 1.0
_SHOWN = 20


@command()
@option("--store", "url", metavar="URL", help="Store to check; by default the controller's.")
@option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def check(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Verify that no resource is promised twice or lost.

    Recounts what is held, replays the history and compares the two, with code that is independent
    of the code that wrote them. The store is only read, and its owner may keep working. Exits with
    0 if the store is clean, with 1 if it is not or the state has moved to another store, and with
    125 if the store could not be read.
    """
    from gridhand.store.reader import audit

    report = audit(url or _own_store(), _progress("events"))
    if as_json:
        facts = {
            name: getattr(report, name)
            for name in (
                "url", "cluster_id", "epoch", "nodes", "live", "closed", "events", "moved_to"
            )
        }  # fmt: skip
        wrong = [
            {
                "invariant": violation.invariant,
                "subject": violation.subject,
                "message": violation.message,
            }
            for violation in report.violations
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
        click.echo(
            "\n".join(
                _verdict([str(violation) for violation in report.violations], report.moved_to)
            )
        )
    ctx.exit(1 if report.violations or report.moved_to else 0)


def _own_store() -> str:
    """Return the store of the controller, or the one that a new controller would open."""
    from gridhand.client import connect
    from gridhand.core.errors import ControllerUnavailable, GridError
    from gridhand.home import Home

    try:
        with connect(start=False) as client:
            return str(client.status()["controller"]["store"])
    except ControllerUnavailable:
        home = Home.find(make=False)
    from gridhand.store.home_store import read_home_store

    address = read_home_store(home).address
    if address == home.store and not os.path.exists(home.store):
        hint = "Nothing has been run here yet. Use --store URL to check another store."
        raise GridError(f"there is no store in {home.folder}", hint=hint)
    return address


def _verdict(violations: list[str], moved_to: str | None) -> list[str]:
    lines = [f"  {violation}" for violation in violations[:_SHOWN]]
    count = len(violations)
    if count > _SHOWN:
        lines.append(f"  and {count - _SHOWN} more; --json lists them all")
    if moved_to is not None:
        lines.append(f"the state was moved to {moved_to}: check that store")
    if count:
        lines.append(f"{count} violation{'' if count == 1 else 's'}")
    return lines or ["clean"]


@command("migrate-store")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def migrate_store(source: str, target: str, as_json: bool) -> None:
    """Move the state to another store.

    Copies everything from FROM to TO, compares the rows, and then closes FROM for good; it keeps a
    note of where the state is now. Stop the controller first. TO must be empty. If FROM is the
    store of this home folder, later controllers use TO.
    """
    from gridhand.home import Home
    from gridhand.store.home_store import find_ledger, ledger_at, remember_home_store
    from gridhand.store.move import move
    from gridhand.store.ownership import Taking
    from gridhand.store.sql.sql_store import SqlStore
    from gridhand.store.urls import store_at

    old, new = store_at(source, Taking(must_exist=True)), store_at(target)
    assert isinstance(old, SqlStore)
    assert isinstance(new, SqlStore)
    home, ledger = Home.find(make=False), ledger_at(old.address)
    ours = find_ledger(home).cluster_id == ledger
    shown = _progress("rows")
    rows = move(old, new, lambda table, done, total: shown(done, total))
    if ours:
        remember_home_store(home, new.address, ledger)
    if as_json:
        click.echo(json.dumps({"from": old.url, "to": new.url, "rows": rows}))
    else:
        click.echo(f"moved {rows} rows from {old.url} to {new.url}")


def _progress(what: str) -> Callable[[int, int], None]:
    """Return a function that shows a count on the terminal, after a second and until it is done."""
    start = time.monotonic()

    def show(done: int, total: int) -> None:
        if render.is_terminal(sys.stderr) and time.monotonic() - start > _SHOW_AFTER_S:
            end = "\r\033[K" if done >= total else ""
            click.echo(f"\r{done:,} of {total:,} {what}{end}", nl=False, err=True)

    return show
