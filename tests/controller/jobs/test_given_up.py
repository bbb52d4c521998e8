"""What is given up on a node: nothing of the node is granted before its processes are gone."""

import asyncio

import pytest

from controller_place import in_place
from gridhand.core.model.nodes import Health
from gridhand.core.operations import GetNode, Register, SetHealth, Unregister
from gridhand.core.rows.ledger import node_from_row


async def down_and_up(place):
    await place.controller.ask(SetHealth("root", None, "n1", Health.DOWN))
    await place.controller.ask(SetHealth("root", None, "n1", Health.UP))


async def down_and_up_at_once(place):
    """In one batch of the keeper."""
    ask = place.controller.ask
    await asyncio.gather(
        ask(SetHealth("root", None, "n1", Health.DOWN)),
        ask(SetHealth("root", None, "n1", Health.UP)),
    )


async def remove_and_register(place):
    await place.controller.ask(Unregister("root", None, "n1", force=True))
    await place.controller.ask(Register("root", nodes=(node_from_row(place.engine.node),)))


async def new_cluster(place):
    await place.kill()
    await place.open(store=f"sqlite:///{place.home.folder}/other.db", new_cluster=True)
    await place.submit(4)


WAYS = [down_and_up, down_and_up_at_once, remove_and_register, new_cluster]


@pytest.mark.parametrize("way", WAYS)
@in_place()
async def test_nothing_is_granted_before_what_was_given_up_is_gone(place, way):
    """Row 89."""
    place.engine.immediate = False
    await place.submit(4)
    await place.sent(("1", 1))
    await way(place)
    await place.until(lambda: place.engine.stops)
    await asyncio.sleep(0.2)
    assert list(place.engine.running) == [("1", 1)], "two attempts have the same cores"
    status = await place.controller.ask(GetNode("n1"))
    assert status.health is Health.SUSPECT
    place.engine.end(("1", 1), reason="node_lost")
    await place.until(lambda: len(place.engine.orders) == 2 and place.engine.running)
    status = await place.controller.ask(GetNode("n1"))
    assert status.health is Health.UP
    place.engine.immediate = True
