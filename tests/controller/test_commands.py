"""Commands on a desk of their own: what one leaves when it is undone."""

from __future__ import annotations

from gridhand.controller.commands import Desk, Register, Unregister
from gridhand.core.ledger import Ledger
from gridhand.core.nodes import Node
from gridhand.core.placement import Snapshot


def test_an_unregistering_that_is_undone_forgets_nothing_of_strangers():
    ledger = Ledger()
    desk = Desk(ledger, Snapshot(ledger), None)
    node = Node.of("a", cpu=4, gpus=[{"id": "U", "memory": "10GB"}])
    Register("me", nodes=(node,)).decide(desk)
    ledger.settle()
    desk.snapshot.set_foreign("a", {"U": 9 * 10**9})
    Unregister("me", name="a").decide(desk)
    ledger.rollback()
    assert desk.snapshot.foreign == {"U": 9 * 10**9}
    Unregister("me", name="a").decide(desk)
    Register("me", nodes=(node,)).decide(desk)
    assert desk.snapshot.foreign == {}
