"""The tables, with constraints that hold for every writer.

Amounts are JSON with sorted names and no spaces, so a negative amount always contains `":-`, which
no name can contain. `live_node` is the node of a live allocation and null afterwards: the foreign
key and the uniqueness of holders then apply to live allocations only, and history may name removed
nodes. Likewise `open` is 1 for a job or call that has not ended, and null afterwards. Calls are
history beside the ledger: they have no events, and nothing is counted from them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
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
_Big = BigInteger().with_variant(Integer, "sqlite")  # SQLite needs INTEGER for its fast primary key


def _no_negative(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} NOT LIKE '%\":-%'", name=f"{column}_not_negative")


meta = Table(
    "gridhand_meta",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("cluster_id", String, nullable=False),
    Column("epoch", _Big, nullable=False),
    # Every transaction writes its epoch here; the check refuses all but the owner's.
    Column("writer", _Big, nullable=False),
    Column("high_water_ms", _Big, nullable=False),
    Column("next_number", _Big, nullable=False),
    Column("checkpoint_through", _Big, nullable=False),
    Column("moved_to", String, nullable=True),
    Column("next_job", _Big, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
    CheckConstraint("writer = epoch", name=FENCE),
    CheckConstraint(
        "high_water_ms >= 0 AND next_number >= 1 AND next_job >= 1", name="marks_are_sane"
    ),
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

jobs = Table(
    "jobs",
    metadata,
    Column("number", _Big, primary_key=True, autoincrement=False),
    Column("id", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("name", String, nullable=True),
    Column("state", String, nullable=False),
    Column("open", Integer, nullable=True),
    Column("array", String, nullable=True),
    Column("array_index", _Big, nullable=True),
    Column("submitted", _Big, nullable=False),
    Column("ended", _Big, nullable=True),
    Column("reason", String, nullable=True),
    Column("not_before", _Big, nullable=True),
    Column("work", Text, nullable=False),
    Column("request", Text, nullable=True),  # null while it equals that of the work
    Column("after", Text, nullable=False),
    Column("attempts", Text, nullable=False),
    _no_negative("work"),
    _no_negative("request"),
    _no_negative("attempts"),
    CheckConstraint(
        "(open IS NOT NULL AND open = 1 AND state IN ('queued', 'running') AND ended IS NULL)"
        " OR (open IS NULL AND state IN ('succeeded', 'failed', 'cancelled', 'lost')"
        " AND ended IS NOT NULL)",
        name="open_until_ended",
    ),
    CheckConstraint("(reason IS NULL) = (ended IS NULL)", name="ended_for_a_reason"),
    CheckConstraint("not_before IS NULL OR state = 'queued'", name="only_the_queued_wait"),
    CheckConstraint("state <> 'running' OR attempts <> '[]'", name="running_is_an_attempt"),
    CheckConstraint(
        "number >= 1 AND submitted >= 0 AND (ended IS NULL OR ended >= 0)"
        " AND (not_before IS NULL OR not_before >= 0)"
        " AND (array_index IS NULL OR array_index >= 0)",
        name="times_and_numbers_are_sane",
    ),
    CheckConstraint('("array" IS NULL) = (array_index IS NULL)', name="array_and_index"),
    CheckConstraint(
        'id = CASE WHEN "array" IS NULL THEN CAST(number AS VARCHAR)'
        " ELSE \"array\" || '_' || CAST(array_index AS VARCHAR) END",
        name="id_tells_the_number",
    ),
)

Index("jobs_by_id", jobs.c.id, unique=True)
Index("jobs_by_owner", jobs.c.owner, jobs.c.number)
_OF_ARRAY = text('"array" IS NOT NULL')
Index(
    "jobs_of_array",
    jobs.c.array,
    jobs.c.number,
    sqlite_where=_OF_ARRAY,
    postgresql_where=_OF_ARRAY,
)
_OPEN, _ENDED = text("open IS NOT NULL"), text("open IS NULL")
Index("open_jobs", jobs.c.open, jobs.c.number, sqlite_where=_OPEN, postgresql_where=_OPEN)
# Most jobs have ended; a query for a few of them must not scan them all.
Index("ended_jobs", jobs.c.state, jobs.c.number, sqlite_where=_ENDED, postgresql_where=_ENDED)
Index(
    "ended_jobs_by_owner",
    jobs.c.owner,
    jobs.c.state,
    jobs.c.number,
    sqlite_where=_ENDED,
    postgresql_where=_ENDED,
)

calls = Table(
    "calls",
    metadata,
    Column("run", String, primary_key=True),
    Column("number", _Big, primary_key=True, autoincrement=False),
    Column("owner", String, nullable=False),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("open", Integer, nullable=True),
    Column("node", String, nullable=True),
    Column("job", String, nullable=True),
    Column("allocation", String, nullable=True),
    Column("submitted", _Big, nullable=False),
    Column("started", _Big, nullable=True),
    Column("ended", _Big, nullable=True),
    Column("error", Text, nullable=True),
    CheckConstraint(
        "(open IS NOT NULL AND open = 1 AND state IN ('queued', 'running') AND ended IS NULL)"
        " OR (open IS NULL AND state IN ('succeeded', 'failed', 'cancelled', 'lost')"
        " AND ended IS NOT NULL)",
        name="open_until_ended",
    ),
    CheckConstraint(
        "started IS NOT NULL OR state NOT IN ('running', 'succeeded')", name="what_ran_has_begun"
    ),
    CheckConstraint(
        "(error IS NOT NULL) = (state IN ('failed', 'lost'))", name="what_failed_says_why"
    ),
    CheckConstraint(
        "number >= 1 AND submitted >= 0 AND (started IS NULL OR started >= submitted)"
        " AND (ended IS NULL OR (ended >= submitted AND (started IS NULL OR ended >= started)))",
        name="times_and_numbers_are_sane",
    ),
    # Many short rows: without a rowid there is one tree to write instead of two.
    sqlite_with_rowid=False,
)
Index(
    "open_calls",
    calls.c.open,
    calls.c.submitted,
    calls.c.number,
    sqlite_where=_OPEN,
    postgresql_where=_OPEN,
)
# The latest calls are read from the end of each index, and the oldest deleted from its beginning.
# With `open` in the index, counting and finding them does not read the table.
Index(
    "ended_calls",
    calls.c.owner,
    calls.c.state,
    calls.c.ended,
    calls.c.number,
    calls.c.open,
    sqlite_where=_ENDED,
    postgresql_where=_ENDED,
)
Index(
    "ended_calls_by_name",
    calls.c.name,
    calls.c.state,
    calls.c.ended,
    calls.c.number,
    sqlite_where=_ENDED,
    postgresql_where=_ENDED,
)

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

# Few events have a token, so these have a table of their own: a column of the events of years
# would have to be added to all of them.
event_tokens = Table(
    "event_tokens",
    metadata,
    Column("number", _Big, primary_key=True, autoincrement=False),
    Column("token", String, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("scope", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("made_at", _Big, nullable=False),
    Column("expires_at", _Big, nullable=True),
    Column("revoked_at", _Big, nullable=True),
    Column("used_at", _Big, nullable=True),
    CheckConstraint("length(digest) = 64", name="only_a_digest"),
)

# What owners had on average, for the order of the queue; all are of the same moment.
owner_shares = Table(
    "owner_shares",
    metadata,
    Column("owner", String, primary_key=True),
    Column("share", Float, nullable=False),
    Column("at", _Big, nullable=False),
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

clock_jumps = Table(
    "clock_jumps",
    metadata,
    Column("at", _Big, primary_key=True, autoincrement=False),
    Column("ms", _Big, nullable=False),
    CheckConstraint("ms > 0", name="jumps_go_ahead"),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("kind", String, primary_key=True),
    Column("subject", String, primary_key=True),
    Column("row", Text, nullable=False),
    CheckConstraint("kind IN ('node', 'allocation', 'job')", name="known_kind"),
)
