"""The statements that write a batch, declared with SQLAlchemy Core and compiled once."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, insert, null, update
from sqlalchemy.sql.expression import UpdateBase

from gridhand.store.sql import schema

_allocations, _calls, _events, _jobs, _meta, _nodes = (
    schema.allocations, schema.calls, schema.events, schema.jobs, schema.meta, schema.nodes
)  # fmt: skip

_change = (
    update(_allocations)
    .where(_allocations.c.live_node.is_not(None), _allocations.c.number == bindparam("which"))
    .values(
        state=bindparam("to"),
        lifetime=bindparam("life"),
        deadline=bindparam("due"),
        ttl=bindparam("lasts"),
    )
)

_change_job = (
    update(_jobs)
    .where(_jobs.c.number == bindparam("which"), _jobs.c.open.is_not(None))
    .values(
        state=bindparam("to"),
        not_before=bindparam("waits"),
        request=bindparam("asks"),
        attempts=bindparam("tried"),
    )
)

# Parameters are given in the order of the table's columns, then those of the condition.
STATEMENTS: dict[str, UpdateBase] = {
    "fence": update(_meta).values(
        writer=bindparam("mine"),
        high_water_ms=bindparam("high"),
        next_number=bindparam("next"),
        next_job=bindparam("next_one"),
    ),
    "change": _change,
    "finish": _change.values(live_node=null()),
    "insert": insert(_allocations),
    "event": insert(_events),
    "operation": insert(schema.operations),
    "event_token": insert(schema.event_tokens),
    "drop_share": delete(schema.owner_shares).where(
        schema.owner_shares.c.owner == bindparam("which")
    ),
    "insert_share": insert(schema.owner_shares),
    "drop_token": delete(schema.tokens).where(schema.tokens.c.id == bindparam("which")),
    "insert_token": insert(schema.tokens),
    "use_token": update(schema.tokens)
    .where(schema.tokens.c.id == bindparam("which"))
    .values(used_at=bindparam("at")),
    "drop_node": delete(_nodes).where(_nodes.c.name == bindparam("which")),
    "insert_node": insert(_nodes),
    "insert_job": insert(_jobs),
    "forget_call": delete(_calls).where(
        _calls.c.run == bindparam("of"), _calls.c.number == bindparam("which")
    ),
    # Indexed columns that do not change are left out: setting them costs time.
    "change_job": _change_job,
    "end_job": _change_job.values(
        open=null(), ended=bindparam("over"), reason=bindparam("because")
    ),
}
