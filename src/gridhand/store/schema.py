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
FENCE = "writer_is_owner"
_Big = BigInteger().with_variant(Integer, "sqlite")  # SQLite's fast key is an INTEGER


def _no_negative(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} NOT LIKE '%\":-%'", name=f"{column}_not_negative")


meta = Table(
    "gridhand_meta",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("cluster_id", String, nullable=False),
    Column("epoch", _Big, nullable=False),
    # Every transaction says here in which epoch it writes; the check refuses all but the owner's.
    Column("writer", _Big, nullable=False),
    Column("high_water_ms", _Big, nullable=False),
    Column("next_number", _Big, nullable=False),
    Column("checkpoint_through", _Big, nullable=False),
    Column("moved_to", String, nullable=True),
    CheckConstraint("id = 1", name="one_row"),
    CheckConstraint("writer = epoch", name=FENCE),
    CheckConstraint("high_water_ms >= 0 AND next_number >= 1", name="marks_are_sane"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String, primary_key=True),
    Column("capacity", Text, nullable=False),
    Column("devices", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("price", _Big, nullable=False),
    Column("address", String, nullable=False),
    Column("health", String, nullable=False),
    Column("draining", Boolean, nullable=False),
    _no_negative("capacity"),
    _no_negative("devices"),
    CheckConstraint("price >= 0", name="price_not_negative"),
    CheckConstraint("health IN ('up', 'suspect', 'down')", name="known_health"),
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
    Column("ttl", _Big, nullable=True),
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
    CheckConstraint(
        "deadline IS NOT NULL OR (state <> 'reserved' AND lifetime <> 'lease')",
        name="what_lapses_has_a_deadline",
    ),
    CheckConstraint("ttl > 0", name="ttl_positive"),
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
    Column("kind", String, primary_key=True),
    Column("subject", String, primary_key=True),
    Column("row", Text, nullable=False),
    CheckConstraint("kind IN ('node', 'allocation')", name="known_kind"),
)
