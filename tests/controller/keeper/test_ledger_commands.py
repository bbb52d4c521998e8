"""Commands on a desk of their own: what one leaves when it is undone."""

from __future__ import annotations

import pytest

from gridhand.controller.keeper.ledger_commands import (
    Context,
    allocate,
    end_with_session,
    move_allocation,
    register,
    unregister,
)
from gridhand.core.errors import InvalidRequest, NoRoom, NotYours
from gridhand.core.ledger.allocations import AllocationState, Lifetime, Terms
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.operations import (
    Allocate,
    EndWithSession,
    MoveAllocation,
    Register,
    Unregister,
)
from gridhand.core.placement.snapshot import Snapshot


def test_an_unregistering_that_is_undone_forgets_nothing_of_strangers():
    ledger = Ledger()
    desk = Context(ledger, Snapshot(ledger), None)
    node = Node.of("a", cpu=4, gpus=[{"id": "U", "memory": "10GB"}])
    register(Register("me", nodes=(node,)), desk)
    ledger.settle()
    desk.snapshot.set_foreign("a", {"U": 9 * 10**9})
    unregister(Unregister("me", name="a"), desk)
    ledger.rollback()
    assert desk.snapshot.foreign == {"U": 9 * 10**9}
    unregister(Unregister("me", name="a"), desk)
    register(Register("me", nodes=(node,)), desk)
    assert desk.snapshot.foreign == {}


@pytest.fixture
def context():
    """Two nodes of four cores."""
    ledger = Ledger()
    ledger.register(Node.of("a", cpu=4))
    ledger.register(Node.of("b", cpu=4))
    return Context(ledger, Snapshot(ledger), None, now=1000)


def hold(context, owner="ann", terms=None, **asked):
    command = Allocate(owner, None, (Request.of(**asked),), terms or Terms(owner))
    return allocate(command, context).allocations[0]


@pytest.mark.parametrize("lifetime", [Lifetime.SESSION, Lifetime.UNTIL_RELEASED, Lifetime.LEASE])
def test_only_what_is_of_a_session_ends_with_it(context, lifetime):
    ttl_ms = 5000 if lifetime is Lifetime.LEASE else None
    held = hold(context, terms=Terms("ann", lifetime=lifetime, ttl_ms=ttl_ms), cpu=1)
    assert held.lifetime is lifetime
    (after,) = end_with_session(EndWithSession("ann", id=held.id), context)
    ended = lifetime is Lifetime.SESSION
    assert after.state is (AllocationState.RELEASED if ended else AllocationState.ACTIVE)
    assert (held.id in context.ledger.live) is not ended
    if ended:
        assert end_with_session(EndWithSession("ann", id=held.id), context) == [after]


def test_nobody_else_moves_or_ends_an_allocation(context):
    held = hold(context, cpu=1)
    for decide, command in (
        (move_allocation, MoveAllocation("bob", id=held.id)),
        (end_with_session, EndWithSession("bob", id=held.id)),
    ):
        with pytest.raises(NotYours):
            decide(command, context)
    assert held.id in context.ledger.live


def test_apart_from_and_together_with_are_about_nodes(context):
    first = hold(context, cpu=1)
    assert hold(context, cpu=1, together_with=first.id).node == first.node
    other = hold(context, cpu=1, apart_from=[first.id])
    assert other.node != first.node
    with pytest.raises(NoRoom):
        hold(context, cpu=1, apart_from=[first.id, other.id])
    with pytest.raises(InvalidRequest):
        hold(context, cpu=1, together_with="nothing")
