"""The shares of owners: what they hold, what they held, and the order that follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.core.ledger.allocations import AllocationMove, Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.queue.shares import AGE_MS, HALF_LIFE_MS, Shares

START = 1_000_000


def cluster(cpu=10, memory="100GB"):
    ledger = Ledger()
    ledger.register(Node.of("n1", cpu=cpu, memory=memory))
    return ledger


def hold(ledger, owner, **amounts):
    placed = Placement(Request.of(amounts), "n1", ())
    return ledger.grant([placed], Terms(owner), now=START)[0].id


def followed(ledger, shares=None, now=START):
    shares = shares or Shares()
    shares.follow(ledger, now)
    return shares


def test_the_largest_part_of_any_resource_counts():
    ledger = cluster()
    hold(ledger, "ann", cpu=1, memory="30GB")
    hold(ledger, "bob", cpu=2, memory="10GB")
    shares = followed(ledger)
    assert (shares.share("ann"), shares.share("bob"), shares.share("eve")) == (0.3, 0.2, 0.0)


def test_devices_count_as_a_resource():
    ledger = Ledger()
    gpus = [{"id": f"g{n}", "memory": "10GB"} for n in range(4)]
    ledger.register(Node.of("n1", cpu=100, gpus=gpus))
    request = Request.of(cpu=1, gpu=3)
    devices = ledger.nodes["n1"].room(request, {})
    ledger.grant([Placement(request, "n1", devices)], Terms("ann"), now=START)
    assert followed(ledger).share("ann") == 0.75


def test_releasing_and_undoing_give_it_back():
    ledger = cluster()
    id = hold(ledger, "ann", cpu=4)
    shares = followed(ledger)
    ledger.move(id, AllocationMove.RELEASE, now=START, why="")
    assert followed(ledger, shares).share("ann") == 0.0
    ledger.rollback()
    assert followed(ledger, shares).share("ann") == 0.0
    assert ledger.owners.owners() == []


def test_another_node_makes_shares_smaller():
    ledger = cluster()
    hold(ledger, "ann", cpu=5)
    shares = followed(ledger)
    ledger.register(Node.of("n2", cpu=10))
    assert followed(ledger, shares).share("ann") == 0.25


def test_the_past_is_an_average_that_forgets():
    ledger = cluster()
    id = hold(ledger, "ann", cpu=5)
    shares = followed(ledger)
    followed(ledger, shares, START + HALF_LIFE_MS)
    assert shares.past_share("ann") == pytest.approx(0.25)
    ledger.move(id, AllocationMove.RELEASE, now=START, why="")
    followed(ledger, shares, START + HALF_LIFE_MS)
    followed(ledger, shares, START + 2 * HALF_LIFE_MS)
    assert shares.past_share("ann") == pytest.approx(0.125)
    other = Shares()
    other.load(shares.past(), shares.settled)
    followed(ledger, other, START + 3 * HALF_LIFE_MS)
    assert other.past_share("ann") == pytest.approx(0.0625)


#    what it shows                        ann has, had, weight, waited       bob
ORDERS = {
    "less is first":                     ((0.2, 0.0, 1, 0),                 (0.1, 0.0, 1, 0)),
    "less in the past is first":         ((0.1, 0.5, 1, 0),                 (0.1, 0.0, 1, 0)),
    "a weight divides":                  ((0.3, 0.0, 1, 0),                 (0.5, 0.0, 2, 0)),
    "who waits for a day is first":      ((0.1, 0.1, 1, 0),                 (1.0, 0.1, 1, AGE_MS)),
}  # fmt: skip


@pytest.mark.parametrize(("ann", "bob"), ORDERS.values(), ids=ORDERS)
def test_the_order_of_owners(ann, bob):
    shares = Shares()
    weights = {"ann": ann[2], "bob": bob[2]}
    shares.weight = weights.get
    shares._now = {"ann": ann[0], "bob": bob[0]}
    shares._past = {"ann": ann[1], "bob": bob[1]}
    now = START + 10 * AGE_MS
    order = {
        name: shares.order(name, now - one[3], now)
        for name, one in zip(weights, (ann, bob), strict=True)
    }
    assert order["bob"] < order["ann"]


def test_a_start_ends_the_wait_of_its_owner():
    shares = Shares()
    shares.note_start("ann", START)
    assert shares.order("ann", 0, START) == 0.0
    assert shares.order("bob", 0, START) < 0.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=30))
def test_what_owners_hold_is_what_their_allocations_hold(grants):
    ledger, expected, ids = cluster(cpu=1000), {}, []
    for owner, cpu in grants:
        ids.append((hold(ledger, owner, cpu=cpu), owner, cpu))
        expected[owner] = expected.get(owner, 0) + cpu
    for id, owner, cpu in ids[::2]:
        ledger.move(id, AllocationMove.RELEASE, now=START, why="")
        expected[owner] -= cpu
    held = {owner: ledger.owners.held(owner).get("cpu", 0) // 10_000 for owner in expected}
    assert held == expected
