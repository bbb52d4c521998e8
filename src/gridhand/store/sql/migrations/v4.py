"""The fourth version: steps ahead of ledger time, which do not count as age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

_big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade(op: Operations) -> None:
    op.create_table(
        "clock_jumps",
        sa.Column("at", _big, primary_key=True, autoincrement=False),
        sa.Column("ms", _big, nullable=False),
        sa.CheckConstraint("ms > 0", name="jumps_go_ahead"),
    )
