"""The first version: nodes, allocations, events, operations, and the checkpoint they start from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

_big = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_live = sa.text("live_node IS NOT NULL")


def upgrade(op: Operations) -> None:
    _meta_and_nodes(op)
    _allocations(op)
    _history(op)


def _meta_and_nodes(op: Operations) -> None:
    op.create_table(
        "gridhand_meta",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("cluster_id", sa.String, nullable=False),
        sa.Column("epoch", _big, nullable=False),
        sa.Column("writer", _big, nullable=False),
        sa.Column("high_water_ms", _big, nullable=False),
        sa.Column("next_number", _big, nullable=False),
        sa.Column("checkpoint_through", _big, nullable=False),
        sa.Column("moved_to", sa.String, nullable=True),
        sa.CheckConstraint("id = 1", name="one_row"),
        sa.CheckConstraint("writer = epoch", name="writer_is_owner"),
        sa.CheckConstraint("high_water_ms >= 0 AND next_number >= 1", name="marks_are_sane"),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("capacity", sa.Text, nullable=False),
        sa.Column("devices", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("price", _big, nullable=False),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("health", sa.String, nullable=False),
        sa.Column("draining", sa.Boolean, nullable=False),
        sa.CheckConstraint("capacity NOT LIKE '%\":-%'", name="capacity_not_negative"),
        sa.CheckConstraint("devices NOT LIKE '%\":-%'", name="devices_not_negative"),
        sa.CheckConstraint("price >= 0", name="price_not_negative"),
        sa.CheckConstraint("health IN ('up', 'suspect', 'down')", name="known_health"),
    )


def _allocations(op: Operations) -> None:
    op.create_table(
        "allocations",
        sa.Column("number", _big, primary_key=True, autoincrement=False),
        sa.Column("epoch", _big, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("live_node", sa.String, sa.ForeignKey("nodes.name"), nullable=True),
        sa.Column("amounts", sa.Text, nullable=False),
        sa.Column("devices", sa.Text, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("lifetime", sa.String, nullable=False),
        sa.Column("deadline", _big, nullable=True),
        sa.Column("ttl", _big, nullable=True),
        sa.Column("group", sa.String, nullable=True),
        sa.Column("asked", sa.Text, nullable=True),
        sa.Column("quality", sa.String, nullable=True),
        sa.Column("made_at", _big, nullable=False),
        sa.CheckConstraint("amounts NOT LIKE '%\":-%'", name="amounts_not_negative"),
        sa.CheckConstraint("devices NOT LIKE '%\":-%'", name="devices_not_negative"),
        sa.CheckConstraint(
            "(live_node IS NOT NULL AND live_node = node AND state IN ('reserved', 'active'))"
            " OR (live_node IS NULL AND state IN ('released', 'expired', 'lost'))",
            name="live_while_open",
        ),
        sa.CheckConstraint(
            "deadline IS NOT NULL OR (state <> 'reserved' AND lifetime <> 'lease')",
            name="what_lapses_has_a_deadline",
        ),
        sa.CheckConstraint("ttl > 0", name="ttl_positive"),
    )
    op.create_index(
        "one_live_allocation_per_holder",
        "allocations",
        ["owner", "holder"],
        unique=True,
        sqlite_where=_live,
        postgresql_where=_live,
    )
    op.create_index(
        "live_allocations",
        "allocations",
        ["live_node"],
        sqlite_where=_live,
        postgresql_where=_live,
    )


def _history(op: Operations) -> None:
    op.create_table(
        "events",
        sa.Column("number", _big, primary_key=True, autoincrement=False),
        sa.Column("at", _big, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("op_id", sa.String, nullable=True),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("row", sa.Text, nullable=True),
    )
    op.create_table(
        "operations",
        sa.Column("owner", sa.String, primary_key=True),
        sa.Column("op_id", sa.String, primary_key=True),
        sa.Column("at", _big, nullable=False),
        sa.Column("body", sa.String, nullable=False),
        sa.Column("reply", sa.Text, nullable=False),
    )
    op.create_index("operations_by_age", "operations", ["at"])
    op.create_table(
        "checkpoint",
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("subject", sa.String, primary_key=True),
        sa.Column("row", sa.Text, nullable=False),
        sa.CheckConstraint("kind IN ('node', 'allocation')", name="known_kind"),
    )
