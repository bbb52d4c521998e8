"""The tables, and the guards that hold whoever writes to them.

Amounts are kept as JSON with the names in order and no spaces, so a negative one always shows as
`":-`, which no name can contain. `live_node` is the node of a live allocation and null afterwards:
the foreign key and the uniqueness of holders then concern the living alone, and history may name
nodes that are gone.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()
_Big = BigInteger().with_variant(Integer, "sqlite")  # SQLite's fast key is an INTEGER


def _no_negative(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} NOT LIKE '%\":-%'", name=f"{column}_not_negative")


meta = Table(
    "gridhand_meta",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("cluster_id", String, nullable=False),
    Column("epoch", _Big, CheckConstraint("epoch >= 0"), nullable=False),
    Column("high_water_ms", _Big, CheckConstraint("high_water_ms >= 0"), nullable=False),
    Column("next_number", _Big, CheckConstraint("next_number >= 1"), nullable=False),
    Column("checkpoint_through", _Big, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String, primary_key=True),
    Column("capacity", Text, nullable=False),
    Column("devices", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("price", _Big, CheckConstraint("price >= 0"), nullable=False),
    Column("address", String, nullable=False),
    Column("health", String, CheckConstraint("health IN ('up', 'suspect', 'down')")),
    Column("draining", Boolean, nullable=False),
    _no_negative("capacity"),
)

allocations = Table(
    "allocations",
    metadata,
    Column("number", _Big, primary_key=True, autoincrement=False),
    Column("epoch", _Big, nullable=False),
    Column("owner", String, nullable=False),
    Column("holder", String, nullable=False),
    Column("node", String, nullable=False),
    Column("live_node", String, ForeignKey("nodes.name"), nullable=True),
    Column("amounts", Text, nullable=False),
    Column("devices", Text, nullable=False),
    Column("state", String, nullable=False),
    Column("lifetime", String, nullable=False),
    Column("deadline", _Big, nullable=True),
    Column("ttl", _Big, CheckConstraint("ttl > 0"), nullable=True),
    Column("group", String, nullable=True),
    Column("asked", Text, nullable=True),
    Column("quality", String, nullable=True),
    Column("made_at", _Big, nullable=False),
    _no_negative("amounts"),
    _no_negative("devices"),
    CheckConstraint(
        "(live_node IS NOT NULL AND live_node = node AND state IN ('reserved', 'active'))"
        " OR (live_node IS NULL AND state IN ('released', 'expired', 'lost'))",
        name="live_while_open",
    ),
    CheckConstraint("state <> 'reserved' OR deadline IS NOT NULL", name="reservation_has_deadline"),
    CheckConstraint("lifetime <> 'lease' OR deadline IS NOT NULL", name="lease_has_deadline"),
)

_LIVE = text("live_node IS NOT NULL")
Index(
    "one_live_allocation_per_holder",
    allocations.c.owner,
    allocations.c.holder,
    unique=True,
    sqlite_where=_LIVE,
    postgresql_where=_LIVE,
)
Index("live_allocations", allocations.c.live_node, sqlite_where=_LIVE, postgresql_where=_LIVE)

events = Table(
    "events",
    metadata,
    Column("number", _Big, primary_key=True, autoincrement=False),
    Column("at", _Big, nullable=False),
    Column("kind", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("op_id", String, nullable=True),
    Column("why", Text, nullable=False),
    Column("row", Text, nullable=True),
)

operations = Table(
    "operations",
    metadata,
    Column("owner", String, primary_key=True),
    Column("op_id", String, primary_key=True),
    Column("at", _Big, nullable=False),
    Column("body", String, nullable=False),
    Column("reply", Text, nullable=False),
)
Index("operations_by_age", operations.c.at)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("kind", String, CheckConstraint("kind IN ('node', 'allocation')"), primary_key=True),
    Column("subject", String, primary_key=True),
    Column("row", Text, nullable=False),
)
