"""Migrations from one version of the schema to the next; together they give `sql/schema.py`.

A step is a module `v<number>` with a function `upgrade(op)`, written with Alembic's operations and
with the tables as they were then: it never changes once it is released. All the steps that are due
run in the caller's one transaction, so a migration that is killed leaves the old version.
"""

from __future__ import annotations

from importlib import import_module

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection


def migrate(connection: Connection, version: int, target: int) -> None:
    """Run the steps from `version` (0: nothing is there yet) to `target`."""
    op = Operations(MigrationContext.configure(connection))
    for step in range(version + 1, target + 1):
        import_module(f"{__name__}.v{step}").upgrade(op)
