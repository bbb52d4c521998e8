"""The second version: jobs, and the number that the next one gets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

_big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade(op: Operations) -> None:
    _meta(op)
    _checkpoint(op)
    _jobs(op)
    _indexes(op)


def _meta(op: Operations) -> None:
    _set_aside(op, "gridhand_meta")
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
        sa.Column("next_job", _big, nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
        sa.CheckConstraint("writer = epoch", name="writer_is_owner"),
        sa.CheckConstraint(
            "high_water_ms >= 0 AND next_number >= 1 AND next_job >= 1", name="marks_are_sane"
        ),
    )
    kept = (
        "id, schema_version, cluster_id, epoch, writer, high_water_ms, next_number,"
        " checkpoint_through, moved_to"
    )
    op.execute(f"INSERT INTO gridhand_meta ({kept}, next_job) SELECT {kept}, 1 FROM set_aside")
    op.drop_table("set_aside")


def _checkpoint(op: Operations) -> None:
    _set_aside(op, "checkpoint")
    op.create_table(
        "checkpoint",
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("subject", sa.String, primary_key=True),
        sa.Column("row", sa.Text, nullable=False),
        sa.CheckConstraint("kind IN ('node', 'allocation', 'job')", name="known_kind"),
    )
    kept = 'kind, subject, "row"'
    op.execute(f"INSERT INTO checkpoint ({kept}) SELECT {kept} FROM set_aside")
    op.drop_table("set_aside")


def _set_aside(op: Operations, table: str) -> None:
    """Copy a table and drop it, to fill a new one: SQLite cannot change constraints."""
    op.execute(f"CREATE TABLE set_aside AS SELECT * FROM {table}")
    op.drop_table(table)


def _jobs(op: Operations) -> None:
    op.create_table(
        "jobs",
        sa.Column("number", _big, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("open", sa.Integer, nullable=True),
        sa.Column("array", sa.String, nullable=True),
        sa.Column("array_index", _big, nullable=True),
        sa.Column("submitted", _big, nullable=False),
        sa.Column("ended", _big, nullable=True),
        sa.Column("reason", sa.String, nullable=True),
        sa.Column("not_before", _big, nullable=True),
        sa.Column("work", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=True),
        sa.Column("after", sa.Text, nullable=False),
        sa.Column("attempts", sa.Text, nullable=False),
        sa.CheckConstraint("work NOT LIKE '%\":-%'", name="work_not_negative"),
        sa.CheckConstraint("request NOT LIKE '%\":-%'", name="request_not_negative"),
        sa.CheckConstraint("attempts NOT LIKE '%\":-%'", name="attempts_not_negative"),
        sa.CheckConstraint(
            "(open IS NOT NULL AND open = 1 AND state IN ('queued', 'running') AND ended IS NULL)"
            " OR (open IS NULL AND state IN ('succeeded', 'failed', 'cancelled', 'lost')"
            " AND ended IS NOT NULL)",
            name="open_until_ended",
        ),
        sa.CheckConstraint("(reason IS NULL) = (ended IS NULL)", name="ended_for_a_reason"),
        sa.CheckConstraint("not_before IS NULL OR state = 'queued'", name="only_the_queued_wait"),
        sa.CheckConstraint("state <> 'running' OR attempts <> '[]'", name="running_is_an_attempt"),
        sa.CheckConstraint(
            "number >= 1 AND submitted >= 0 AND (ended IS NULL OR ended >= 0)"
            " AND (not_before IS NULL OR not_before >= 0)"
            " AND (array_index IS NULL OR array_index >= 0)",
            name="times_and_numbers_are_sane",
        ),
        sa.CheckConstraint('("array" IS NULL) = (array_index IS NULL)', name="array_and_index"),
        sa.CheckConstraint(
            'id = CASE WHEN "array" IS NULL THEN CAST(number AS VARCHAR)'
            " ELSE \"array\" || '_' || CAST(array_index AS VARCHAR) END",
            name="id_tells_the_number",
        ),
    )


def _indexes(op: Operations) -> None:
    op.create_index("jobs_by_id", "jobs", ["id"], unique=True)
    op.create_index("jobs_by_owner", "jobs", ["owner", "number"])
    _partial(op, "jobs_of_array", ["array", "number"], '"array" IS NOT NULL')
    _partial(op, "open_jobs", ["open", "number"], "open IS NOT NULL")
    _partial(op, "ended_jobs", ["state", "number"], "open IS NULL")
    _partial(op, "ended_jobs_by_owner", ["owner", "state", "number"], "open IS NULL")


def _partial(op: Operations, name: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, "jobs", columns, sqlite_where=condition, postgresql_where=condition)
