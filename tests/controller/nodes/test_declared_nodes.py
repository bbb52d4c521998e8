"""What an administrator declares about a node that reports itself outlives restarts and reports."""

import asyncio

import pytest

from api_server import Api, Server
from controller_place import Place, in_place
from gridhand import Node
from gridhand.core.errors import InvalidInput, NodeInUse, UnknownNode
from gridhand.core.ledger.allocations import Terms
from gridhand.core.model.declared_node import merge_declared
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, GetNode, Register, Unregister
from gridhand.core.rows.ledger import node_row

DECLARED = Node.of("n1", cpu=1, license=1, labels={"kind": "lab"}, price=2)
AS_DECLARED = Node.of("n1", cpu=1, memory="8GB", license=1, labels={"kind": "lab"}, price=2)


async def node(place):
    return (await place.controller.ask(GetNode("n1"))).node


async def is_gone(place):
    try:
        await node(place)
    except UnknownNode:
        return True
    return False


@in_place()
async def test_a_declaration_outlives_restarts_and_reports(place):
    [made] = await place.controller.declared.run(Register("ann", nodes=(DECLARED,)))
    assert made == AS_DECLARED
    await place.restart()
    assert await node(place) == AS_DECLARED
    place.engine.sink.node_changed(node_row(Node.of("n1", cpu=4, memory="2GB")), [])
    await place.until(lambda: _has(place, memory="2GB"))
    assert (await node(place)).capacity == Node.of("n1", cpu=1, memory="2GB", license=1).capacity


async def _has(place, **amounts):
    return (await node(place)).capacity["memory"] == Node.of("x", **amounts).capacity["memory"]


@in_place()
async def test_a_later_declaration_replaces_the_earlier_one(place):
    for declared in (DECLARED, Node.of("n1", cpu=2)):
        await place.controller.declared.run(Register("ann", nodes=(declared,)))
    await place.restart()
    assert await node(place) == Node.of("n1", cpu=2, memory="8GB")


@in_place()
async def test_a_removed_node_stays_removed_until_it_is_registered_again(place):
    await place.controller.declared.run(Unregister("ann", name="n1"))
    place.engine.sink.node_changed(place.engine.node, [])
    await place.restart()
    await place.quiet()
    assert await is_gone(place)
    await place.controller.declared.run(Register("ann", nodes=(Node.of("n1", cpu=3),)))
    await place.restart()
    assert await node(place) == Node.of("n1", cpu=3, memory="8GB")


@in_place()
async def test_a_change_that_is_refused_declares_nothing(place):
    held = Allocate("ann", requests=(Request.of(cpu=1),), terms=Terms("ann"))
    await place.controller.ask(held)
    with pytest.raises(NodeInUse):
        await place.controller.declared.run(Unregister("ann", name="n1"))
    await place.restart()
    assert await node(place) == Node.of("n1", cpu=4, memory="8GB")


@in_place()
async def test_a_repeat_of_a_declaration_is_one_even_if_something_else_is_found_now(place):
    command = Register("ann", "op1", (DECLARED,))
    first = await place.controller.declared.run(command)
    await place.restart()
    place.engine.sink.node_changed(node_row(Node.of("n1", cpu=4, memory="2GB")), [])
    assert await place.controller.declared.run(command) == first


@in_place()
async def test_a_node_that_reports_nothing_is_as_declared(place):
    shop = Node.of("shop", cpu=2, license=1)
    await place.controller.declared.run(Register("ann", nodes=(shop,)))
    await place.restart()
    assert (await place.controller.ask(GetNode("shop"))).node == shop
    await place.controller.declared.run(Unregister("ann", name="shop"))


def test_a_file_of_declarations_that_cannot_be_read_is_named(tmp_path):
    place = Place(tmp_path / "home")
    (tmp_path / "home/declared.json").write_text("[1]")
    with pytest.raises(InvalidInput, match=r"declared\.json"):
        asyncio.run(place.open())


A100, T4 = {"model": "A100", "memory": "40GB"}, {"model": "T4", "memory": "16GB"}
FOUND = Node.of("n1", cpu=4, memory="8GB", gpus=[A100, A100])
#    what it shows                                   declared                            counts
MERGED = {
    "a declared amount is a cap": (Node.of("n1", cpu=9, memory="1GB"), Node.of("n1", cpu=4, memory="1GB", gpus=[A100, A100])),
    "devices are those found, and no more than declared": (Node.of("n1", gpus=[T4]), Node.of("n1", cpu=4, memory="8GB", gpus=[A100])),
}  # fmt: skip


@pytest.mark.parametrize(("declared", "counts"), MERGED.values(), ids=MERGED)
def test_what_counts_of_a_declared_and_a_found_node(declared, counts):
    assert merge_declared(declared, FOUND) == counts


def test_declared_devices_count_where_none_are_found():
    found = Node.of("n1", cpu=4)
    assert merge_declared(Node.of("n1", gpus=[T4]), found).gpus == Node.of("n1", gpus=[T4]).gpus


def test_a_declaration_through_the_api_is_there_after_a_restart(tmp_path):
    declared = {"name": "n1", "resources": {"cpu": 1, "license": 1}, "labels": {"kind": "lab"}}
    with Server(tmp_path) as server:
        Api(server).ok("POST", "/nodes", {"nodes": [declared]})
    with Server(tmp_path) as server:
        node = Api(server).ok("GET", "/nodes/n1")
        assert node["labels"] == {"kind": "lab"}
        assert {name: node["total"][name] for name in ("cpu", "license")} == {
            "cpu": 1,
            "license": 1,
        }
        Api(server).ok("DELETE", "/nodes/n1")
    with Server(tmp_path) as server:
        assert Api(server).ok("GET", "/nodes") == {"nodes": []}
