"""The ledger: nodes, allocations, groups, holders, deadlines and rollback."""

import random

import pytest

from gridhand import (
    HolderBusy,
    InvalidInput,
    LeaseExpired,
    MoveRefused,
    Node,
    NodeInUse,
    Request,
    Resources,
    UnknownAllocation,
    UnknownNode,
)
from gridhand.audit import check_state
from gridhand.core.ledger.allocations import AllocationMove, AllocationState, Lifetime, Terms
from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.ledger.status import cluster_status, dump, node_status
from gridhand.core.model.gpus import GpuHealth
from gridhand.core.model.nodes import Health
from gridhand.core.model.resources import UNIT
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import best_fit

NOW = 1_000_000
GB = 10**9
ANN = Terms("ann")


def ledger_of(**nodes):
    """A ledger with nodes by name: `n1="cpu=4"`, or a whole `Node`."""
    ledger = Ledger()
    for name, has in nodes.items():
        ledger.register(has if isinstance(has, Node) else Node.of(name, has))
    ledger.changes.clear()
    return ledger


def seen(ledger):
    found = dump(ledger, {}, now=NOW)
    assert check_state(found) == []
    return found


def hold(ledger, terms=ANN, *, now=NOW, **asked):
    placed = place(Request.of(**asked), Snapshot(ledger), best_fit)
    assert isinstance(placed, Placement), placed.sentence()
    return ledger.grant([placed], terms, now=now)[0]


def hold_group(ledger, *asked, terms=ANN, node="n1", now=NOW):
    grants = [Placement(Request.of(one), node, ()) for one in asked]
    return ledger.grant(grants, terms, now=now)


def reservation(ttl_ms=100, **more):
    return Terms("ann", state=AllocationState.RESERVED, ttl_ms=ttl_ms, **more)


def lease(ttl_ms=100, **more):
    return Terms("ann", lifetime=Lifetime.LEASE, ttl_ms=ttl_ms, **more)


def available(ledger, name="n1"):
    return ledger.nodes[name].available()


# ---- nodes


def test_nodes_are_in_name_order_whatever_order_they_came_in():
    ledger = ledger_of(b="cpu=1", c="cpu=1", a="cpu=1")
    assert ledger.names == ["a", "b", "c"]
    ledger.unregister("b", now=NOW)
    assert ledger.names == ["a", "c"]
    assert [row["name"] for row in seen(ledger)["nodes"]] == ["a", "c"]


def test_registering_the_same_again_changes_nothing():
    ledger = ledger_of(n1="cpu=4")
    ledger.register(Node.of("n1", cpu=4))
    assert ledger.changes == []


def test_t9_registering_again_keeps_what_is_held():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, cpu=2)
    ledger.register(Node.of("n1", cpu=8))
    assert available(ledger) == Resources.of(cpu=6)
    assert ledger.get(held.id) == held
    seen(ledger)


def test_t9_a_total_below_what_is_held_is_overcommitted_and_takes_nothing_new():
    ledger = ledger_of(n1="cpu=4 memory=100")
    first, _ = hold(ledger, cpu=2), hold(ledger, cpu=1)
    ledger.register(Node.of("n1", cpu=1, memory=100))
    assert available(ledger) == Resources.of(memory=100)
    assert ledger.nodes["n1"].overcommitted
    assert ledger.nodes["n1"].room(Request.of(memory=1), {}) is None
    seen(ledger)
    ledger.move(first.id, AllocationMove.RELEASE, now=NOW)
    assert not ledger.nodes["n1"].overcommitted  # exactly what there is, is not too much
    assert ledger.nodes["n1"].room(Request.of(memory=1), {}) == ()
    seen(ledger)


def test_a_resource_that_vanishes_while_it_is_held_is_overcommitted():
    ledger = ledger_of(n1="cpu=4 fpga=1")
    held = hold(ledger, fpga=1)
    ledger.register(Node.of("n1", cpu=4))
    assert ledger.nodes["n1"].overcommitted
    seen(ledger)
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert not ledger.nodes["n1"].overcommitted
    assert "fpga" not in available(ledger)


def test_a_release_that_is_undone_leaves_the_node_overcommitted():
    ledger = ledger_of(n1="cpu=4 memory=100")
    held = hold(ledger, cpu=4)
    ledger.register(Node.of("n1", cpu=1, memory=100))
    mark = ledger.mark()
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert ledger.nodes["n1"].open
    ledger.rollback(mark)
    assert ledger.nodes["n1"].overcommitted
    assert ledger.nodes["n1"].room(Request.of(memory=1), {}) is None


def test_growing_back_ends_the_overcommitment():
    ledger = ledger_of(n1="cpu=4")
    hold(ledger, cpu=4)
    ledger.register(Node.of("n1", cpu=1))
    ledger.register(Node.of("n1", cpu=5))
    assert not ledger.nodes["n1"].overcommitted
    assert available(ledger) == Resources.of(cpu=1)


def test_draining_gives_no_new_work_keeps_what_is_held_and_outlives_registering():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, cpu=1)
    ledger.set_draining("n1", True)
    assert ledger.nodes["n1"].room(Request.of(cpu=1), {}) is None
    assert ledger.get(held.id) == held
    assert ledger.register(Node.of("n1", cpu=5)).draining
    assert ledger.nodes["n1"].room(Request.of(cpu=1), {}) is None
    ledger.set_draining("n1", False)
    assert ledger.nodes["n1"].room(Request.of(cpu=4), {}) == ()
    assert [change.kind for change in ledger.changes[1:]] == [
        "node.drained",
        "node.registered",
        "node.resumed",
    ]


def test_draining_a_drained_node_changes_nothing():
    ledger = ledger_of(n1="cpu=4")
    ledger.set_draining("n1", False)
    assert ledger.changes == []


def test_a_suspect_node_keeps_what_it_holds_and_gets_nothing_new():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, cpu=1)
    ledger.set_health("n1", Health.SUSPECT, now=NOW)
    assert ledger.live == {held.id: held}
    assert ledger.nodes["n1"].room(Request.of(cpu=1), {}) is None
    ledger.set_health("n1", Health.UP, now=NOW)
    assert ledger.nodes["n1"].room(Request.of(cpu=3), {}) == ()


def test_what_a_node_held_is_lost_when_it_goes_down_and_only_that():
    ledger = ledger_of(n1="cpu=4", n2="cpu=4")
    first, second = hold(ledger, cpu=1, node="n1"), hold(ledger, cpu=1, node="n1")
    other = hold(ledger, cpu=1, node="n2")
    ledger.changes.clear()
    ledger.set_health("n1", Health.DOWN, now=NOW, why="no heartbeat")
    assert list(ledger.live) == [other.id]
    assert available(ledger) == Resources.of(cpu=4)
    lost = [change for change in ledger.changes if change.kind == "allocation.lost"]
    assert [change.subject for change in lost] == [first.id, second.id]
    assert {change.why for change in lost} == {"no heartbeat"}
    assert all(change.after.state is AllocationState.LOST for change in lost)
    seen(ledger)


def test_a_gang_on_a_node_that_goes_down_is_lost_as_one():
    ledger = ledger_of(n1="cpu=4", n2="cpu=4")
    one, two = Request.of(cpu=1), Request.of(cpu=2)
    ledger.grant(
        [Placement(one, "n1", ()), Placement(two, "n1", ()), Placement(one, "n2", ())], ANN, now=NOW
    )
    ledger.set_health("n1", Health.DOWN, now=NOW)
    assert ledger.live == {}
    assert available(ledger, "n2") == Resources.of(cpu=4)
    seen(ledger)


def test_a_gang_on_a_node_that_is_removed_by_force_is_lost_as_one():
    ledger = ledger_of(n1="cpu=4")
    hold_group(ledger, {"cpu": 1}, {"cpu": 1})
    ledger.unregister("n1", now=NOW, force=True)
    assert ledger.live == {}
    assert ledger.names == []


def test_removing_a_node_in_use_is_refused_and_by_force_loses_what_it_held():
    ledger = ledger_of(n1="cpu=4", n2="cpu=1")
    hold(ledger, cpu=2)
    hold(ledger, cpu=2)
    before = seen(ledger)
    with pytest.raises(NodeInUse, match="node n1 has 2 live allocations"):
        ledger.unregister("n1", now=NOW)
    assert seen(ledger) == before
    ledger.unregister("n1", now=NOW, force=True)
    assert ledger.live == {}
    assert ledger.names == ["n2"]
    assert [change.kind for change in ledger.changes[-3:]] == [
        "allocation.lost",
        "allocation.lost",
        "node.removed",
    ]


def test_one_live_allocation_is_one():
    ledger = ledger_of(n1="cpu=4")
    hold(ledger, cpu=2)
    with pytest.raises(NodeInUse, match=r"1 live allocation\n"):
        ledger.unregister("n1", now=NOW)


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: ledger.node("node2"),
        lambda ledger: ledger.set_draining("node2", True),
        lambda ledger: ledger.set_health("node2", Health.DOWN, now=NOW),
        lambda ledger: ledger.unregister("node2", now=NOW),
    ],
    ids=["look", "drain", "health", "remove"],
)
def test_an_unknown_node_is_an_error_that_names_the_nearest(change):
    with pytest.raises(UnknownNode, match=r"no node named 'node2'; did you mean node1\?"):
        change(ledger_of(node1="cpu=1"))


# ---- devices


def gpu_node(name="n1", *ids, memory="24GB", **more):
    return Node.of(name, cpu=8, gpus=[{"id": id, "memory": memory} for id in ids], **more)


def test_a_device_on_which_something_is_held_stays_as_lost_when_it_is_no_longer_described():
    ledger = ledger_of(n1=gpu_node("n1", "A", "B"))
    held = hold(ledger, gpu=1)
    assert held.devices[0].device == "A"
    described = ledger.register(gpu_node("n1", "B"))
    assert [(gpu.id, gpu.health) for gpu in described.gpus] == [
        ("B", GpuHealth.OK),
        ("A", GpuHealth.LOST),
    ]
    assert ledger.get(held.id) == held
    assert ledger.nodes["n1"].room(Request.of(gpu=2), {}) is None
    assert hold(ledger, gpu=1).devices[0].device == "B"  # the others stay allocatable
    seen(ledger)
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert ledger.nodes["n1"].room(Request.of(gpu=1), {}) is None
    ledger.register(gpu_node("n1", "B"))
    assert list(ledger.nodes["n1"].devices) == ["B"]
    seen(ledger)


def test_a_lost_device_that_is_described_again_is_well_again():
    ledger = ledger_of(n1=gpu_node("n1", "A"))
    held = hold(ledger, gpu=0.5)
    ledger.register(gpu_node("n1"))
    ledger.register(gpu_node("n1", "A"))
    assert ledger.nodes["n1"].devices["A"].share == UNIT // 2
    assert hold(ledger, gpu=0.5).devices[0].device == "A"
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    seen(ledger)


def test_a_device_that_is_free_goes_when_it_is_no_longer_described_and_may_go_elsewhere():
    ledger = ledger_of(n1=gpu_node("n1", "A", "B"))
    ledger.register(gpu_node("n1", "B"))
    ledger.register(gpu_node("n2", "A"))
    assert list(ledger.nodes["n2"].devices) == ["A"]
    seen(ledger)


def test_a_device_is_on_one_node_even_while_it_is_lost():
    ledger = ledger_of(n1=gpu_node("n1", "A"))
    hold(ledger, gpu=1)
    for described in (gpu_node("n1", "A"), gpu_node("n1")):
        ledger.register(described)
        with pytest.raises(InvalidInput, match="gpu id: 'A'"):
            ledger.register(gpu_node("n2", "A"))
    assert ledger.names == ["n1"]


def test_a_removed_node_gives_its_device_ids_back():
    ledger = ledger_of(n1=gpu_node("n1", "A"))
    ledger.unregister("n1", now=NOW)
    ledger.register(gpu_node("n2", "A"))
    seen(ledger)


def test_a_device_that_shrinks_below_what_is_held_is_overcommitted():
    ledger = ledger_of(n1=gpu_node("n1", "A", "B"))
    held = hold(ledger, gpu_memory="20GB")
    ledger.register(gpu_node("n1", "A", "B", memory="16GB"))
    assert ledger.nodes["n1"].overcommitted
    assert ledger.nodes["n1"].room(Request.of(cpu=1), {}) is None
    seen(ledger)
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert ledger.nodes["n1"].room(Request.of(gpu=2), {}) is not None


# ---- allocations


def test_a_grant_has_its_own_id_fence_and_holder():
    ledger = Ledger(epoch=7, next_number=41)
    ledger.register(Node.of("n1", cpu=4))
    first, second = hold(ledger, cpu=1), hold(ledger, cpu=1)
    assert (first.id, first.epoch, first.number) == ("a7-41", 7, 41)
    assert (second.id, second.number) == ("a7-42", 42)
    assert first.holder != second.holder
    assert first.made_at == NOW


def test_an_allocation_is_for_one_owner_until_released():
    held = hold(ledger_of(n1="cpu=4"), cpu=1)
    assert (held.owner, held.state, held.lifetime) == (
        "ann",
        AllocationState.ACTIVE,
        Lifetime.UNTIL_RELEASED,
    )
    assert held.deadline is held.group is held.asked is None


def test_releasing_brings_back_exactly_what_was_held():
    ledger = ledger_of(n1=gpu_node("n1", "A", "B"))
    before = seen(ledger)
    held = [hold(ledger, cpu=0.1, gpu=0.3), hold(ledger, gpu_memory="3GB"), hold(ledger, gpu=1)]
    for one in held:
        assert (
            ledger.move(one.id, AllocationMove.RELEASE, now=NOW).state is AllocationState.RELEASED
        )
    assert seen(ledger) == before


def test_10_000_tenths_are_held_and_given_back_exactly():
    ledger = ledger_of(n1="cpu=1000")
    tenth = Placement(Request.of(cpu=0.1), "n1", ())
    held = [ledger.grant([tenth], ANN, now=NOW)[0] for _ in range(10_000)]
    assert available(ledger) == Resources()
    with pytest.raises(ValueError, match="does not fit"):
        ledger.grant([tenth], ANN, now=NOW)
    random.Random(5).shuffle(held)
    for one in held:
        ledger.move(one.id, AllocationMove.RELEASE, now=NOW)
    assert ledger.nodes["n1"].held == {}
    assert available(ledger) == Resources.of(cpu=1000)


def test_moving_an_unknown_allocation_is_an_error():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, cpu=1)
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    for id in (held.id, "a1-99", ""):
        with pytest.raises(UnknownAllocation):
            ledger.move(id, AllocationMove.RELEASE, now=NOW)
        with pytest.raises(UnknownAllocation):
            ledger.get(id)


WRONG = {
    "too much": Placement(Request.of(cpu=5), "n1", ()),
    "a resource it has not": Placement(Request.of(fpga=1), "n1", ()),
    "a node that drains": Placement(Request.of(cpu=1), "n2", ()),
    "a device it has not": Placement(Request.of(gpu=1), "n1", (DeviceHold("Z", UNIT, 0, True),)),
    "the same device twice": Placement(Request.of(gpu=2), "n1", (DeviceHold("A", 0, 1),) * 2),
    "more than the device has": Placement(Request.of(gpu=1), "n1", (DeviceHold("A", 0, 25 * GB),)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_grant_is_checked_again_as_it_is_applied(wrong):
    ledger = ledger_of(n1=Node.of("n1", cpu=4, gpus=[{"id": "A", "memory": "24GB"}]), n2="cpu=4")
    ledger.set_draining("n2", True)
    before, mark = seen(ledger), ledger.mark()
    fine = Placement(Request.of(cpu=1), "n1", ())
    for grants in ([wrong], [fine, wrong], [fine, wrong, fine]):
        with pytest.raises(ValueError, match="does not fit"):
            ledger.grant(grants, ANN, now=NOW)
        assert seen(ledger) == before
        assert ledger.mark() == mark


# ---- holders


def test_the_same_holder_asking_again_for_the_same_gets_what_it_has():
    ledger = ledger_of(n1="cpu=4")
    terms = Terms("ann", "train")
    held = hold(ledger, terms, cpu=1)
    assert held.holder == "train"
    assert ledger.held_by(terms, [Request.of(cpu=1)]) == [held]
    assert ledger.held_by(terms, [Request.of(cpu="1000m")]) == [held]


def test_a_holder_asking_for_something_else_is_busy():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, Terms("ann", "train"), cpu=1)
    for terms, asked in (
        (Terms("ann", "train"), [Request.of(cpu=2)]),
        (Terms("ann", "train"), [Request.of(cpu=1, node="n1")]),
        (Terms("ann", "train"), [Request.of(cpu=1)] * 2),
        (reservation(holder="train"), [Request.of(cpu=1)]),
    ):
        with pytest.raises(HolderBusy, match=f"'train' already has allocation {held.id}"):
            ledger.held_by(terms, asked)


def test_holders_are_of_one_owner_and_free_again_when_they_end():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, Terms("ann", "train"), cpu=1)
    assert ledger.held_by(Terms("bob", "train"), [Request.of(cpu=9)]) == []
    assert ledger.held_by(Terms("ann", "other"), [Request.of(cpu=9)]) == []
    assert ledger.held_by(Terms("ann"), [Request.of(cpu=1)]) == []
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert ledger.held_by(Terms("ann", "train"), [Request.of(cpu=9)]) == []
    hold(ledger, Terms("ann", "train"), cpu=2)
    seen(ledger)


def test_a_holder_with_the_name_of_the_next_id_does_not_mix_with_it():
    ledger = ledger_of(n1="cpu=4")
    named = hold(ledger, Terms("ann", f"a1-{ledger.next_number + 1}"), cpu=1)
    nameless = hold(ledger, ANN, cpu=1)
    seen(ledger)  # no two live allocations of one owner have the same holder
    ledger.move(named.id, AllocationMove.RELEASE, now=NOW)
    ledger.move(nameless.id, AllocationMove.RELEASE, now=NOW)
    seen(ledger)


def test_the_members_of_a_group_hold_under_numbered_names():
    ledger = ledger_of(n1="cpu=4")
    terms, asked = Terms("ann", "gang"), [Request.of(cpu=1), Request.of(cpu=2)]
    made = hold_group(ledger, *asked, terms=terms)
    assert [held.holder for held in made] == ["gang#0", "gang#1"]
    assert ledger.held_by(terms, asked) == made
    for others in (asked[:1], asked[::-1], [*asked, asked[0]]):
        with pytest.raises(HolderBusy):
            ledger.held_by(terms, others)
    with pytest.raises(HolderBusy):
        ledger.held_by(Terms("ann", "gang#1"), asked[1:])


# ---- groups


def test_a_group_is_granted_renewed_and_ended_as_one():
    ledger = ledger_of(n1="cpu=4")
    made = hold_group(ledger, {"cpu": 1}, {"cpu": 2}, terms=lease(100))
    assert len({held.group for held in made}) == 1
    assert made[0].group is not None
    ledger.move(made[1].id, AllocationMove.RENEW, now=NOW + 50)
    assert {held.deadline for held in ledger.live.values()} == {NOW + 150}
    seen(ledger)
    ledger.move(made[0].id, AllocationMove.RELEASE, now=NOW + 60)
    assert ledger.live == {}
    assert available(ledger) == Resources.of(cpu=4)
    assert hold(ledger, cpu=1).group is None


def test_a_move_of_a_group_answers_the_member_that_was_named():
    ledger = ledger_of(n1="cpu=4")
    made = hold_group(ledger, {"cpu": 1}, {"cpu": 2})
    assert ledger.move(made[1].id, AllocationMove.RELEASE, now=NOW).id == made[1].id


def test_a_group_expires_as_one():
    ledger = ledger_of(n1="cpu=4")
    hold_group(ledger, {"cpu": 1}, {"cpu": 2}, terms=lease(100))
    ledger.expire_due(NOW + 100)
    assert ledger.live == {}
    kinds = [
        change.kind for change in ledger.changes if change.after.state is AllocationState.EXPIRED
    ]
    assert kinds == ["allocation.expired"] * 2


def test_two_groups_do_not_mix():
    ledger = ledger_of(n1="cpu=8")
    first = hold_group(ledger, {"cpu": 1}, {"cpu": 1})
    second = hold_group(ledger, {"cpu": 1}, {"cpu": 1})
    assert first[0].group != second[0].group
    ledger.move(first[0].id, AllocationMove.RELEASE, now=NOW)
    assert sorted(ledger.live) == sorted(held.id for held in second)


# ---- time


def test_an_allocation_expires_at_its_deadline_and_frees_exactly_what_it_held():
    ledger = ledger_of(n1="cpu=4")
    short, long = hold(ledger, reservation(100), cpu=1), hold(ledger, lease(200), cpu=2)
    kept = hold(ledger, cpu=1)
    assert ledger.next_deadline() == NOW + 100
    assert ledger.expire_due(NOW + 99) == []
    assert [held.id for held in ledger.expire_due(NOW + 100)] == [short.id]
    assert available(ledger) == Resources.of(cpu=1)
    assert ledger.next_deadline() == NOW + 200
    assert [held.id for held in ledger.expire_due(NOW + 10**9)] == [long.id]
    assert ledger.next_deadline() is None
    assert list(ledger.live) == [kept.id]


def test_confirming_and_renewing_put_the_deadline_off():
    ledger = ledger_of(n1="cpu=4")
    confirmed, renewed = hold(ledger, reservation(100), cpu=1), hold(ledger, lease(100), cpu=1)
    ledger.move(confirmed.id, AllocationMove.CONFIRM, now=NOW + 50)
    ledger.move(renewed.id, AllocationMove.RENEW, now=NOW + 50)
    assert ledger.next_deadline() == NOW + 150
    assert ledger.expire_due(NOW + 149) == []
    assert [held.id for held in ledger.expire_due(NOW + 150)] == [renewed.id]


def test_a_lease_that_lapsed_cannot_be_renewed_before_the_sweep_either():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, lease(100), cpu=1)
    before = seen(ledger)
    with pytest.raises(LeaseExpired):
        ledger.move(held.id, AllocationMove.RENEW, now=NOW + 100)
    assert seen(ledger) == before


def test_what_was_renewed_does_not_expire_at_its_old_deadline():
    ledger = ledger_of(n1="cpu=4")
    renewed, lapsing = hold(ledger, lease(100), cpu=1), hold(ledger, lease(100), cpu=1)
    ledger.move(renewed.id, AllocationMove.RENEW, now=NOW + 50)
    assert [one.id for one in ledger.expire_due(NOW + 100)] == [lapsing.id]
    assert [one.id for one in ledger.expire_due(NOW + 150)] == [renewed.id]


def test_renewing_for_ever_does_not_pile_deadlines_up():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, lease(1000), cpu=1)
    for now in range(NOW, NOW + 10_000):
        ledger.move(held.id, AllocationMove.RENEW, now=now)
    assert len(ledger._deadlines) <= 1002
    assert ledger.next_deadline() == NOW + 9999 + 1000
    assert [one.id for one in ledger.expire_due(NOW + 20_000)] == [held.id]


def test_dropping_old_deadlines_keeps_those_that_count():
    ledger = ledger_of(n1="cpu=100")
    kept = [hold(ledger, lease(10**6 + n), cpu=1) for n in range(20)]
    busy = hold(ledger, lease(10**5), cpu=1)
    for now in range(NOW, NOW + 3000):
        ledger.move(busy.id, AllocationMove.RENEW, now=now)
    ledger.move(busy.id, AllocationMove.RELEASE, now=NOW + 3000)
    due = []
    while (deadline := ledger.next_deadline()) is not None:
        due += [held.id for held in ledger.expire_due(deadline)]
    assert due == [held.id for held in kept]


@pytest.mark.parametrize("order", ["short first", "short last", "short between"])
def test_thousands_of_renewals_do_not_hide_a_short_lease(order):
    ledger = ledger_of(n1="cpu=100")
    ttls = {"short first": [10, 10**6, 10**5], "short last": [10**6, 10**5, 10]}.get(
        order, [10**6, 10, 10**5]
    )
    held = [hold(ledger, lease(ttl), cpu=1) for ttl in ttls]
    short = min(held, key=lambda one: one.ttl_ms)
    busy = hold(ledger, lease(10**5), cpu=1)
    for now in range(NOW, NOW + 2500):
        ledger.move(busy.id, AllocationMove.RENEW, now=NOW)
        assert ledger.next_deadline() == NOW + 10, now
    assert len(ledger._deadlines) < 1500
    assert [one.id for one in ledger.expire_due(NOW + 9)] == []
    assert [one.id for one in ledger.expire_due(NOW + 10)] == [short.id]
    assert short.id not in ledger.live


# ---- changes


def test_every_change_is_kept_with_before_and_after():
    ledger = ledger_of(n1="cpu=4")
    held = hold(ledger, reservation(100), cpu=1)
    ledger.move(held.id, AllocationMove.CONFIRM, now=NOW, ttl_ms=100)
    ledger.move(held.id, AllocationMove.RENEW, now=NOW)
    ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert [change.kind for change in ledger.changes] == [
        "allocation.reserved",
        "allocation.confirmed",
        "allocation.renewed",
        "allocation.released",
    ]
    assert ledger.changes[0].before is None
    for one, next_one in zip(ledger.changes, ledger.changes[1:], strict=False):
        assert next_one.before == one.after


def busy_ledger():
    ledger = ledger_of(n1=gpu_node("n1", "A", "B"), n2="cpu=4 memory=8000", n3="cpu=2")
    hold(ledger, Terms("ann", "train"), cpu=2, gpu=0.5)
    hold(ledger, lease(100), cpu=1, node="n2")
    hold(ledger, reservation(50), cpu=1, memory=100, node="n2")
    hold_group(ledger, {"cpu": 1}, {"cpu": 1}, node="n3", terms=lease(100))
    ledger.changes.clear()
    return ledger


def in_any_order(found):
    """Return the dump with allocations by number, as their order is not guaranteed."""
    return found | {"allocations": sorted(found["allocations"], key=lambda row: row["number"])}


CHANGES = {
    "a grant": lambda ledger: hold(ledger, cpu=1, gpu=1),
    "a lease": lambda ledger: hold(ledger, lease(10), cpu=1),
    "a release": lambda ledger: ledger.move("a1-1", AllocationMove.RELEASE, now=NOW),
    "a renewal": lambda ledger: ledger.move("a1-2", AllocationMove.RENEW, now=NOW, ttl_ms=7),
    "a confirmation": lambda ledger: ledger.move("a1-3", AllocationMove.CONFIRM, now=NOW),
    "the end of a group": lambda ledger: ledger.move("a1-4", AllocationMove.RELEASE, now=NOW),
    "an expiry": lambda ledger: ledger.expire_due(NOW + 50),
    "every expiry": lambda ledger: ledger.expire_due(NOW + 500),
    "a new node": lambda ledger: ledger.register(gpu_node("n4", "C")),
    "a smaller node": lambda ledger: ledger.register(Node.of("n2", cpu=1)),
    "a node without its devices": lambda ledger: ledger.register(Node.of("n1", cpu=8)),
    "a node removed": lambda ledger: ledger.unregister("n2", now=NOW, force=True),
    "a node drained": lambda ledger: ledger.set_draining("n1", True),
    "a node down": lambda ledger: ledger.set_health("n2", Health.DOWN, now=NOW),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_rollback_undoes(change):
    ledger = busy_ledger()
    before, deadline = in_any_order(seen(ledger)), ledger.next_deadline()
    change(ledger)
    assert ledger.changes
    assert in_any_order(seen(ledger)) != before
    ledger.rollback()
    assert ledger.changes == []
    assert in_any_order(seen(ledger)) == before
    assert ledger.next_deadline() == deadline
    assert len(ledger.held_by(Terms("ann", "train"), [Request.of(cpu=2, gpu=0.5)])) == 1


def test_a_rollback_undoes_everything_since_its_mark_and_nothing_before():
    ledger = busy_ledger()
    hold(ledger, cpu=1)
    mark, before = ledger.mark(), in_any_order(seen(ledger))
    for change in CHANGES.values():
        try:
            change(ledger)
        except (UnknownAllocation, MoveRefused, UnknownNode, AssertionError):
            continue  # an earlier change has ended it
    assert ledger.mark() > mark + 5
    ledger.rollback(mark)
    assert ledger.mark() == mark
    assert in_any_order(seen(ledger)) == before


def test_random_changes_undo_to_where_they_began():
    chance = random.Random(11)
    ledger = busy_ledger()
    for _ in range(100):
        before, mark = in_any_order(seen(ledger)), ledger.mark()
        for change in chance.sample(list(CHANGES.values()), 4):
            try:
                change(ledger)
            except (UnknownAllocation, MoveRefused, UnknownNode, AssertionError):
                continue
        seen(ledger)
        ledger.rollback(mark)
        assert in_any_order(seen(ledger)) == before


REFUSED = {
    "an unknown node": (UnknownNode, lambda ledger: ledger.set_draining("nx", True)),
    "a node in use": (NodeInUse, lambda ledger: ledger.unregister("n1", now=NOW)),
    "a device of another node": (
        InvalidInput,
        lambda ledger: ledger.register(gpu_node("n9", "C", "A")),
    ),
    "an unknown allocation": (
        UnknownAllocation,
        lambda ledger: ledger.move("a9-9", AllocationMove.RELEASE, now=NOW),
    ),
    "a renewal of a reservation": (
        MoveRefused,
        lambda ledger: ledger.move("a1-3", AllocationMove.RENEW, now=NOW),
    ),
    "a renewal of what is no lease": (
        MoveRefused,
        lambda ledger: ledger.move("a1-1", AllocationMove.RENEW, now=NOW),
    ),
    "a renewal of a group that lapsed": (
        LeaseExpired,
        lambda ledger: ledger.move("a1-5", AllocationMove.RENEW, now=NOW + 100),
    ),
    "an expiry before its time": (
        MoveRefused,
        lambda ledger: ledger.move("a1-2", AllocationMove.EXPIRE, now=NOW),
    ),
    "a busy holder": (
        HolderBusy,
        lambda ledger: ledger.held_by(Terms("ann", "train"), [Request.of(cpu=1)]),
    ),
    "a grant that does not fit": (
        ValueError,
        lambda ledger: hold_group(ledger, {"cpu": 1}, {"cpu": 9}),
    ),
}


@pytest.mark.parametrize(("kind", "change"), REFUSED.values(), ids=REFUSED)
def test_i4_a_refused_change_changes_nothing(kind, change):
    ledger = busy_ledger()
    before = seen(ledger)
    with pytest.raises(kind):
        change(ledger)
    assert seen(ledger) == before
    assert ledger.changes == []


def test_rows_that_were_written_are_taken_over_as_they_are():
    ledger = busy_ledger()
    rows = [use.node for use in ledger.nodes.values()], list(ledger.live.values())
    again = Ledger(epoch=2, next_number=ledger.next_number)
    again.load(*rows)
    assert seen(again) == seen(ledger)
    assert again.changes == []
    assert again.next_deadline() == ledger.next_deadline()
    assert hold(again, cpu=1).id == f"a2-{ledger.next_number}"


def test_an_overcommitted_node_is_so_after_it_is_taken_over():
    ledger = Ledger()
    held = hold(ledger_of(n1="cpu=4"), cpu=4)
    ledger.load([Node.of("n1", cpu=1)], [held])
    assert ledger.nodes["n1"].overcommitted
    seen(ledger)


# ---- what is seen


def test_p8_an_empty_cluster_is_all_zeros():
    status = cluster_status(Ledger(), {})
    assert status.nodes == ()
    assert status.total == status.allocated == status.available == Resources()
    assert status.utilization() == {"cpu": 0.0, "memory": 0.0, "gpu": 0.0}


def test_the_cluster_is_the_sum_of_its_nodes():
    ledger = ledger_of(n1=gpu_node("n1", "A", "B"), n2="cpu=2 memory=1000")
    hold(ledger, cpu=4, gpu=0.5)
    status = cluster_status(ledger, {"A": 10 * GB})
    assert status.total == Resources.of(cpu=10, memory=1000, gpu=2, gpu_memory="48GB")
    assert status.allocated == Resources.of(cpu=4, gpu=0.5, gpu_memory="12GB")
    assert status.available == Resources.of(cpu=6, memory=1000, gpu=1.5, gpu_memory="36GB")
    assert status.utilization() == {"cpu": 0.4, "memory": 0.0, "gpu": 0.25, "gpu_memory": 0.25}
    gpu = node_status(ledger.nodes["n1"], {"A": 10 * GB}).gpus[0]
    assert (gpu.share, gpu.memory_bytes, gpu.foreign_bytes) == (0.5, 12 * GB, 10 * GB)
    assert gpu.free_memory_bytes == 2 * GB
