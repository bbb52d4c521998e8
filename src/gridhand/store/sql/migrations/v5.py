"""The fifth version: tokens, which events they caused, and the past shares of owners."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

_big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade(op: Operations) -> None:
    op.create_table(
        "event_tokens",
        sa.Column("number", _big, primary_key=True, autoincrement=False),
        sa.Column("token", sa.String, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("made_at", _big, nullable=False),
        sa.Column("expires_at", _big, nullable=True),
        sa.Column("revoked_at", _big, nullable=True),
        sa.Column("used_at", _big, nullable=True),
        sa.CheckConstraint("length(digest) = 64", name="only_a_digest"),
    )
    op.create_table(
        "owner_shares",
        sa.Column("owner", sa.String, primary_key=True),
        sa.Column("share", sa.Float, nullable=False),
        sa.Column("at", _big, nullable=False),
    )
