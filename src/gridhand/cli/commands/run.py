"""`grid run --dry-run`: where a job would go, or why nowhere, without making one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gridhand.client import Client

WOULD_WAIT = 1


def dry_run(client: Client, order: dict[str, Any], *, as_json: bool) -> int:
    """Say it, and answer 0 if it would start now, 1 if it would wait."""
    found = client.plan({name: value for name, value in order.items() if name != "environment"})
    if as_json:
        from gridhand.cli.render import print_json

        print_json(found)
    else:
        click.echo(_text(found, "the first of its tasks" if "array" in order else "it"))
    return 0 if found["starts"] else WOULD_WAIT


def _text(found: dict[str, Any], what: str) -> str:
    if not found["starts"]:
        return f"{what} would wait: {found['why']}"
    devices = f" (devices {', '.join(found['gpus'])})" if found["gpus"] else ""
    return f"{what} would start now on {found['node']}{devices}"
