"""The third version: calls of functions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

_big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade(op: Operations) -> None:
    op.create_table(
        "calls",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("number", _big, primary_key=True, autoincrement=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("open", sa.Integer, nullable=True),
        sa.Column("node", sa.String, nullable=True),
        sa.Column("job", sa.String, nullable=True),
        sa.Column("allocation", sa.String, nullable=True),
        sa.Column("submitted", _big, nullable=False),
        sa.Column("started", _big, nullable=True),
        sa.Column("ended", _big, nullable=True),
        sa.Column("error", sa.Text, nullable=True),
        sa.CheckConstraint(
            "(open IS NOT NULL AND open = 1 AND state IN ('queued', 'running') AND ended IS NULL)"
            " OR (open IS NULL AND state IN ('succeeded', 'failed', 'cancelled', 'lost')"
            " AND ended IS NOT NULL)",
            name="open_until_ended",
        ),
        sa.CheckConstraint(
            "started IS NOT NULL OR state NOT IN ('running', 'succeeded')",
            name="what_ran_has_begun",
        ),
        sa.CheckConstraint(
            "(error IS NOT NULL) = (state IN ('failed', 'lost'))", name="what_failed_says_why"
        ),
        sa.CheckConstraint(
            "number >= 1 AND submitted >= 0 AND (started IS NULL OR started >= submitted)"
            " AND (ended IS NULL OR"
            " (ended >= submitted AND (started IS NULL OR ended >= started)))",
            name="times_and_numbers_are_sane",
        ),
        sqlite_with_rowid=False,
    )
    _partial(op, "open_calls", ["open", "submitted", "number"], "open IS NOT NULL")
    _partial(op, "ended_calls", ["owner", "state", "ended", "number", "open"], "open IS NULL")
    _partial(op, "ended_calls_by_name", ["name", "state", "ended", "number"], "open IS NULL")


def _partial(op: Operations, name: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, "calls", columns, sqlite_where=condition, postgresql_where=condition)
