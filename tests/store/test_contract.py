"""What every store promises the keeper, whichever database is behind it."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_budget import examples
from gridhand.core.errors import StoreError, StoreFenced
from gridhand.core.ledger.allocations import AllocationMove, AllocationState, Lifetime
from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.ledger.ledger import Change
from gridhand.core.model.gpus import Gpu
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.resources import Resources
from gridhand.core.rows.ledger import allocation_row, node_row
from gridhand.store.base import Batch, StoredOperation
from store_writer import Negative, lawful

GPUS = [
    {"id": "GPU-0a", "model": "A100", "memory": "40GB", "capability": "8.0"},
    {"model": "T4", "memory": "16GB", "capability": "10.0", "health": "sick"},
    {"memory": "24GB"},
]


@pytest.fixture
def writer(store, tools):
    return tools.Writer(store)


def present(store):
    contents = store.load()
    return (
        {node.name: node for node in contents.nodes},
        {held.id: held for held in contents.allocations},
    )


def remembered(writer):
    """What memory has, in the shape of `present`."""
    ledger = writer.ledger
    return {name: use.node for name, use in ledger.nodes.items()}, dict(ledger.live)


def entry(kind, before, after):
    subject = (after or before).name if isinstance(after or before, Node) else (after or before).id
    return Change(kind, subject, before, after, "")


# ---- opening


def test_any_epoch_is_passed_in_one_step(durable):
    """Row 97: nodes may have seen any epoch of another store, or a forged one."""
    store = durable.store()
    assert store.open(lambda found: 2**53).epoch == 2**53
    store.close()
    following = durable.store()
    assert following.open().epoch == 2**53 + 1
    following.close()


def test_an_opened_store_is_empty_and_in_its_first_epoch(durable):
    store = durable.store()
    opening = store.open()
    assert (opening.epoch, opening.high_water_ms) == (1, 0)
    assert opening.cluster_id
    contents = store.load()
    assert (contents.nodes, contents.allocations, contents.next_number) == ([], [], 1)
    assert (contents.jobs, contents.next_job) == ([], 1)
    assert (store.events(), store.checkpoint(), store.find([1]), store.operations([])) == ([], [], [], [])  # fmt: skip
    store.close()


def test_every_owner_has_a_later_epoch_of_the_same_cluster(durable):
    openings = []
    for _ in range(3):
        store = durable.store()
        openings.append(store.open())
        store.close()
    assert [opening.epoch for opening in openings] == [1, 2, 3]
    assert len({opening.cluster_id for opening in openings}) == 1


def test_each_store_is_a_cluster_of_its_own(kind, tools):
    ids = set()
    for _ in range(2):
        with tools.new_place(kind) as place:
            store = place.store()
            ids.add(store.open().cluster_id)
            store.close()
    assert len(ids) == 2


def test_closing_twice_is_closing(durable):
    store = durable.store()
    store.open()
    store.close()
    store.close()
    durable.store().close()  # nor does one that was never opened mind


# ---- writing and reading


def test_nodes_come_back_as_they_were_described(store, writer):
    writer.register("plain", cpu=4)
    writer.register(
        "rich", cpu=0.0001, memory="17GB", fpga=3, gpus=GPUS, labels={"zone": "a", "b": "c=d"},
        price="1.25", address="10.0.0.1:7070",
    )  # fmt: skip
    writer.register("largest", memory=f"{2**53 - 1}B")
    writer.register("nothing")
    writer.ledger.set_draining("plain", True)
    writer.ledger.set_health("largest", Health.SUSPECT, now=writer.now)
    writer.commit()
    assert present(store) == remembered(writer)
    rich = present(store)[0]["rich"]
    assert [gpu.capability for gpu in rich.gpus] == [(8, 0), (10, 0), None]


def test_allocations_come_back_as_they_were_granted(store, writer):
    writer.register("n", cpu=8, memory="8GB", gpus=GPUS)
    writer.grant({"cpu": 0.0001, "memory": "1B"})
    writer.grant({"cpu": 1, "gpu": 0.3333}, owner="bob", holder="train/1")
    writer.grant({"gpu_memory": "1GB"}, ttl_ms=5)
    writer.grant({"gpu": 1}, ttl_ms=1_000, reserve=True)
    writer.grant({"cpu": 1}, {"cpu": 2}, holder="gang")
    batch = writer.commit()
    assert len(batch.entries) == 7
    assert present(store) == remembered(writer)


def test_moves_change_what_is_loaded(store, writer):
    writer.register("n", cpu=8)
    kept, leased, gone, lost = (
        writer.grant({"cpu": 1}, ttl_ms=100, reserve=True)[0],
        writer.grant({"cpu": 1}, ttl_ms=100)[0],
        writer.grant({"cpu": 1})[0],
        writer.grant({"cpu": 1}, ttl_ms=10, reserve=True)[0],
    )
    writer.commit()
    writer.now += 50
    writer.move(kept, AllocationMove.CONFIRM)
    writer.move(leased, AllocationMove.RENEW, ttl_ms=500)
    writer.release(gone)
    writer.ledger.expire_due(writer.now)
    writer.commit()
    assert present(store) == remembered(writer)
    assert present(store)[1].keys() == {kept.id, leased.id}
    assert present(store)[1][kept.id].lifetime is Lifetime.UNTIL_RELEASED
    assert present(store)[1][leased.id].deadline == writer.now + 500
    found = {held.id: held.state for held in store.find([gone.number, lost.number])}
    assert found == {gone.id: AllocationState.RELEASED, lost.id: AllocationState.EXPIRED}


def test_what_is_made_and_ended_in_one_batch_is_history(store, writer, tools):
    writer.register("n", cpu=8)
    held = writer.grant({"cpu": 1})[0]
    writer.release(held)
    writer.commit()
    assert present(store)[1] == {}
    assert [one.state for one in store.find([held.number])] == [AllocationState.RELEASED]
    assert [event.kind for event in tools.all_events(store)] == [
        "node.registered", "allocation.active", "allocation.released",
    ]  # fmt: skip


def test_a_holder_passes_its_name_on_within_a_batch(store, writer):
    writer.register("n", cpu=8)
    first = writer.grant({"cpu": 1}, holder="h")[0]
    writer.commit()
    writer.release(first)
    second = writer.grant({"cpu": 2}, holder="h")[0]
    writer.release(second)
    third = writer.grant({"cpu": 3}, holder="h")[0]
    writer.commit()
    assert present(store)[1] == {third.id: third}


def test_a_node_may_be_removed_and_added_again_within_a_batch(store, writer):
    writer.register("n", cpu=8, gpu=1)
    held = writer.grant({"cpu": 1})[0]
    writer.commit()
    writer.ledger.unregister("n", now=writer.now, force=True)
    writer.register("n", cpu=2)
    again = writer.grant({"cpu": 2})[0]
    writer.register("brief", cpu=1)
    writer.ledger.unregister("brief", now=writer.now)
    writer.commit()
    assert present(store) == remembered(writer)
    assert present(store)[1] == {again.id: again}
    assert store.find([held.number])[0].state is AllocationState.LOST


def test_a_removed_node_is_gone(store, writer):
    writer.register("n", cpu=8)
    writer.register("m", cpu=8)
    writer.commit()
    writer.ledger.unregister("n", now=writer.now)
    writer.commit()
    assert present(store)[0].keys() == {"m"}
    assert store.events()[-1].row is None


@pytest.mark.parametrize("count", [1, 7, 8, 31, 33, 600, 1101])
def test_batches_of_any_size_are_written_whole(store, writer, tools, count):
    for index in range(count):
        writer.register(f"n{index:04}", cpu=1)
    made = [
        writer.grant({"cpu": 1}, holder=f"h{index}", ttl_ms=10, reserve=True)[0]
        for index in range(min(count, 40))
    ]
    writer.commit()
    for held in made[::2]:
        writer.release(held)
    for held in made[1::2]:
        writer.move(held, AllocationMove.CONFIRM)
    writer.commit()
    assert present(store) == remembered(writer)
    numbers = [held.number for held in made] + list(range(5_000, 5_000 + count))
    assert {held.number for held in store.find(numbers)} == {held.number for held in made}
    lawful(store)


def test_closed_allocations_are_found_by_number(store, writer):
    writer.register("n", cpu=8)
    made = [writer.grant({"cpu": 1})[0] for _ in range(3)]
    writer.commit()
    writer.release(made[1])
    writer.commit()
    found = {held.number: held for held in store.find([1, 2, 3, 4, 2**53])}
    assert found == {1: made[0], 2: made[1]._replace(state=AllocationState.RELEASED), 3: made[2]}
    assert store.find([]) == []


# ---- operations and events


def test_answered_operations_are_found_by_owner_and_id(store, writer):
    kept = [StoredOperation(owner, f"op{n}", f"body {n}", '{"a": "\'ö\'"}') for owner in "ab" for n in range(3)]  # fmt: skip
    writer.commit(operations=kept)
    assert sorted(store.operations([(op.owner, op.op_id) for op in kept])) == sorted(kept)
    assert store.operations([("a", "op1"), ("c", "op1"), ("a", "op9")]) == [kept[1]]
    assert store.operations([]) == []
    many = [("a", f"x{n}") for n in range(1200)] + [("b", "op2")]
    assert store.operations(many) == [kept[5]]


def test_an_operation_is_answered_once(store, writer):
    once = StoredOperation("a", "op", "body", "reply")
    writer.commit(operations=[once])
    with pytest.raises(StoreError):
        writer.commit(operations=[once._replace(reply="another")])
    assert store.operations([("a", "op")]) == [once]


def test_events_tell_what_happened_in_order(store, writer, tools):
    node = writer.register("n", cpu=8)
    first = writer.commit(owner="root", op_id="op-1").entries
    writer.now += 5
    held = writer.grant({"cpu": 1}, ttl_ms=9)[0]
    writer.commit(owner="ann", op_id="op-2")
    writer.now += 20
    writer.ledger.expire_due(writer.now)
    writer.commit(owner="")
    writer.ledger.unregister("n", now=writer.now)
    writer.commit(owner="root")
    events = tools.all_events(store, step=1)
    assert len(first) == 1
    assert [event.number for event in events] == [1, 2, 3, 4]
    assert [event.at for event in events] == [1000, 1005, 1025, 1025]
    assert [(event.kind, event.subject) for event in events] == [
        ("node.registered", "n"), ("allocation.active", held.id), ("allocation.expired", held.id),
        ("node.removed", "n"),
    ]  # fmt: skip
    assert [(event.owner, event.op_id) for event in events] == [
        ("root", "op-1"), ("ann", "op-2"), ("", None), ("root", None),
    ]  # fmt: skip
    assert [event.why for event in events] == ["", "", "its deadline passed", ""]
    expired = held._replace(state=AllocationState.EXPIRED)
    assert [event.row for event in events] == [
        node_row(node), allocation_row(held), allocation_row(expired), None,
    ]  # fmt: skip
    assert store.events(after=2, limit=1) == [events[2]]
    assert store.events(after=4) == store.events(after=2**62, limit=1) == []


@pytest.mark.parametrize(
    "why",
    [
        "'; DROP TABLE events; --",
        "x'), (1,2,3,'a','b','c','d','e'); --",
        '" OR 1=1 /* ? :why %s $1 {} */',
        'a":-1 \\ back\\slash',
        "über π 🚀\nsecond line\ttab",
    ],
)
def test_text_that_looks_like_sql_is_text(store, writer, why):
    writer.register("n", cpu=1)
    writer.ledger.set_health("n", Health.DOWN, now=1, why=why)
    writer.commit(owner=why, op_id=why, operations=[StoredOperation(why, why, why, why)])
    assert [(event.why, event.owner, event.op_id) for event in store.events()][1] == (why, why, why)
    assert store.operations([(why, why)]) == [StoredOperation(why, why, why, why)]
    assert present(store) == remembered(writer)


# ---- what survives


def test_a_new_owner_finds_everything(durable, tools):
    store = durable.store()
    store.open()
    store.load()
    writer = tools.Writer(store)
    writer.register("n", cpu=8, gpus=GPUS)
    writer.grant({"cpu": 1, "gpu": 0.5}, holder="h")
    gone = writer.grant({"cpu": 1})[0]
    writer.release(gone)
    operation = StoredOperation("ann", "op", "body", "reply")
    writer.commit(op_id="op", operations=[operation])
    events = store.events()
    store.close()
    again = durable.store()
    again.open()
    assert present(again) == remembered(writer)
    assert again.events() == events
    assert again.find([gone.number])[0].state is AllocationState.RELEASED
    assert again.operations([("ann", "op")]) == [operation]
    lawful(again)
    again.close()


def test_the_high_water_mark_is_the_latest_time_written(durable, tools):
    marks = []
    for now in (5_000, 3_000, 9_000):
        store = durable.store()
        marks.append(store.open().high_water_ms)
        store.load()
        writer = tools.Writer(store, now=now)
        writer.register(f"n{now}", cpu=1)
        writer.commit()
        store.close()
    assert marks == [0, 5_000, 5_000]
    store = durable.store()
    assert store.open().high_water_ms == 9_000
    store.close()


def test_numbers_are_never_given_twice(durable, tools):
    """Neither by a new owner, nor when all that had the numbers is forgotten."""
    store = durable.store()
    epoch = store.open().epoch
    store.load()
    writer = tools.Writer(store, epoch=epoch)
    writer.register("n", cpu=8)
    for _ in range(5):
        writer.release(writer.grant({"cpu": 1})[0])
    writer.commit()
    writer.now += 1_000
    assert store.prune(before=writer.now, most=1000) == 0
    assert store.find(range(1, 10)) == []
    assert store.load().next_number == 6
    store.close()

    again = durable.store()
    epoch = again.open().epoch
    number = again.load().next_number
    assert number == 6
    later = tools.Writer(again, epoch=epoch, next_number=number, now=9_000)
    later.ledger.load(again.load().nodes, [])
    assert later.grant({"cpu": 1})[0].id == "a2-6"
    later.commit()
    again.close()


@pytest.mark.parametrize("last", ["commit", "prune"])
def test_numbers_do_not_go_back_for_an_owner_who_has_not_looked(durable, tools, last):
    store = durable.store()
    store.open()
    store.load()
    writer = tools.Writer(store)
    writer.register("n", cpu=8)
    for _ in range(5):
        writer.release(writer.grant({"cpu": 1})[0])
    writer.commit()
    store.close()
    hasty = durable.store()
    hasty.open()
    if last == "prune":
        hasty.prune(before=500, most=10)
    else:
        other = tools.Writer(hasty)
        other.register("m", cpu=1)
        other.commit()
    hasty.close()
    store = durable.store()
    store.open()
    assert store.load().next_number == 6
    store.close()


def test_events_are_numbered_on_after_pruning_and_reopening(durable, tools):
    store = durable.store()
    store.open()
    store.load()
    writer = tools.Writer(store)
    writer.register("n", cpu=8)
    writer.register("m", cpu=8)
    writer.commit()
    assert store.prune(before=writer.now + 1, most=10) == 0
    assert store.events() == []
    store.close()
    again = durable.store()
    again.open()
    again.load()
    writer.store = again
    writer.register("o", cpu=8)
    writer.commit()
    assert [event.number for event in again.events()] == [3]
    lawful(again)
    again.close()


# ---- when the answer to a commit was lost


@pytest.mark.parametrize("written", [True, False])
def test_recovering_tells_whether_the_last_batch_was_written(durable, tools, written):
    """And whichever it was, the store goes on from there."""
    store = durable.store()
    store.open()
    store.load()
    writer = tools.Writer(store)
    writer.register("n", cpu=8)
    first = writer.grant({"cpu": 1})[0]
    writer.commit()
    writer.now += 100
    writer.grant({"cpu": 1})
    believed = dict(vars(store))
    if written:  # it went through, but the store never heard so
        writer.commit()
        known = ("_high_water_ms", "_next_number", "_next_job", "_next_event")
        vars(store).update({name: believed[name] for name in known})
    else:
        lost = first._replace(id="a1-9", number=9, holder="h9", node="nowhere")
        bad = entry("allocation.active", None, lost), "ann", None
        with pytest.raises(StoreError):
            store.commit(Batch(writer.now, [*writer.batch().entries, bad]))
    assert store.recover() is written
    if not written:
        writer.commit()
    writer.release(first)
    writer.commit()
    assert present(store) == remembered(writer)
    assert store.load().next_number == 3
    lawful(store)
    store.close()
    again = durable.store()
    assert again.open().high_water_ms == writer.now
    assert again.load().next_number == 3
    again.close()


def test_recovering_knows_a_batch_without_events_too(durable):
    """Such as the answer to a release of what was released before."""
    store = durable.store()
    store.open()
    store.load()
    once = StoredOperation("ann", "op", "body", "reply")
    with pytest.raises(StoreError):
        store.commit(Batch(1_000, [], [once, once]))
    assert store.recover() is False
    store.commit(Batch(1_000, [], [once]))
    assert store.operations([("ann", "op")]) == [once]
    store.close()


# ---- all or nothing, and the guards


@pytest.fixture
def kept(store, writer):
    """One node and one live allocation, written; what to break, and how to tell."""
    writer.register("n", cpu=8, gpus=GPUS)
    held = writer.grant({"cpu": 1, "gpu": 0.5}, holder="h")[0]
    writer.commit()
    return held


HOLD = DeviceHold("GPU-0a", 100, 100)
BROKEN = {
    "a negative amount": lambda held: entry("allocation.active", None, held._replace(amounts=Negative(cpu=-1))),
    "a negative amount among good ones": lambda held: entry("allocation.active", None, held._replace(amounts=Negative(cpu=1, memory=-5, zeta=2))),
    "a negative share of a device": lambda held: entry("allocation.active", None, held._replace(devices=(HOLD, DeviceHold("GPU-0b", -1, 0)))),
    "negative memory of a device": lambda held: entry("allocation.active", None, held._replace(devices=(DeviceHold("GPU-0a", 0, -1),))),
    "a second live allocation of one owner and holder": lambda held: entry("allocation.active", None, held._replace(holder="h")),
    "a live allocation on an unknown node": lambda held: entry("allocation.active", None, held._replace(node="nowhere")),
    "a reservation without a deadline": lambda held: entry("allocation.reserved", None, held._replace(state=AllocationState.RESERVED)),
    "a lease without a deadline": lambda held: entry("allocation.active", None, held._replace(lifetime=Lifetime.LEASE)),
    "a ttl of nothing": lambda held: entry("allocation.active", None, held._replace(ttl_ms=0, deadline=5)),
    "a number that was given before": lambda held: entry("allocation.active", None, held._replace(number=1)),
    "a node with a negative capacity": lambda held: entry("node.registered", None, Node("m", Negative(cpu=-1))),
    "a node with a device of negative memory": lambda held: entry("node.registered", None, Node("m", Resources(), (Gpu("d", memory_bytes=-1),))),
    "a node with a negative price": lambda held: entry("node.registered", None, Node("m", Resources(), price=-1)),
    "removing a node under a live allocation": lambda held: entry("node.removed", Node("n", Resources()), None),
    "a move of what is not there": lambda held: entry("allocation.renewed", held, held),
    "an end of what is not there": lambda held: entry("allocation.released", held, held._replace(state=AllocationState.RELEASED)),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_the_store_itself_refuses(store, writer, kept, tools, broken):
    """Whatever the code above it believes; and then nothing of the batch is written."""
    before = present(store), store.events(), store.load().next_number
    good = [writer.grant({"cpu": 1})[0] for _ in range(3)]
    writer.register("other", cpu=1)
    sound = writer.batch(operations=[StoredOperation("ann", "op", "b", "r")])
    fresh = kept._replace(id="a1-99", number=99, holder="fresh")
    bad = (broken(fresh), "ann", None)
    middle = len(sound.entries) // 2
    entries = [*sound.entries[:middle], bad, *sound.entries[middle:]]
    with pytest.raises(StoreError) as caught:
        store.commit(Batch(writer.now + 7, entries, sound.operations))
    assert not isinstance(caught.value, StoreFenced)
    assert (present(store), store.events(), store.load().next_number) == before
    assert store.operations([("ann", "op")]) == []
    store.commit(sound)  # and the store goes on
    assert present(store)[1].keys() == {kept.id, *(held.id for held in good)}
    lawful(store)


def test_the_dead_may_share_names_and_nodes_that_are_gone(store, writer):
    for _ in range(3):
        writer.register("n", cpu=1)
        writer.grant({"cpu": 1}, holder="h")
        writer.ledger.unregister("n", now=writer.now, force=True)
        writer.commit()
    assert present(store) == ({}, {})
    assert {held.state for held in store.find([1, 2, 3])} == {AllocationState.LOST}


def test_a_batch_on_a_store_that_was_taken_over_is_refused(store, writer, kept):
    before = present(store), store.events()
    writer.grant({"cpu": 1})
    store._epoch -= 1  # as if another owner had opened it since
    with pytest.raises(StoreFenced):
        writer.commit()
    with pytest.raises(StoreFenced):
        store.prune(before=writer.now + 1, most=10)
    assert (present(store), store.events()) == before
    store._epoch += 1
    writer.commit()


# ---- rebuilding and forgetting


def test_the_ledger_can_be_rebuilt_from_its_events(store, writer, tools):
    writer.register("n", cpu=8, gpus=GPUS, labels={"a": "b"})
    held = [writer.grant({"cpu": 1}, ttl_ms=50 + n, reserve=True)[0] for n in range(4)]
    writer.commit()
    for one in held[:2]:
        writer.move(one, AllocationMove.CONFIRM)
    writer.release(held[0])
    writer.ledger.set_draining("n", True)
    writer.commit()
    lawful(store)


def test_pruning_takes_bounded_steps_and_says_what_is_left(store, writer, tools):
    writer.register("n", cpu=100)
    made = [writer.grant({"cpu": 1})[0] for _ in range(30)]
    writer.commit()
    for held in made[:10]:
        writer.release(held)
    writer.commit()
    cut = writer.now + 1
    writer.now += 1_000
    for held in made[10:13]:
        writer.release(held)
    writer.commit()
    before, left = len(tools.all_events(store)), 99
    steps = []
    while left:
        left = store.prune(before=cut, most=9)
        steps.append(left)
        lawful(store)
    assert (before, steps) == (44, [32, 23, 14, 5, 0])
    assert [event.subject for event in store.events()] == [held.id for held in made[10:13]]
    assert present(store) == remembered(writer)


def test_closed_allocations_are_forgotten_with_their_last_event_and_live_ones_never(store, writer):
    writer.register("n", cpu=100)
    live, early, late = (writer.grant({"cpu": 1})[0] for _ in range(3))
    writer.release(early)
    writer.commit()
    writer.now += 100
    writer.release(late)
    writer.commit()
    assert store.prune(before=writer.now, most=100) == 0
    assert {held.id for held in store.find([1, 2, 3])} == {live.id, late.id}
    assert {row.get("id", "n") for row in store.checkpoint()} == {"n", live.id, late.id}
    assert store.prune(before=writer.now + 1, most=100) == 0
    assert {held.id for held in store.find([1, 2, 3])} == {live.id}
    assert {row.get("id", "n") for row in store.checkpoint()} == {"n", live.id}
    assert store.events() == []


def test_pruning_forgets_operations_by_their_age(store, writer):
    for _ in range(5):
        writer.commit(operations=[StoredOperation("a", f"op{writer.now}", "b", "r")])
        writer.now += 10
    assert store.prune(before=1_020, most=100) == 0
    known = store.operations([("a", f"op{at}") for at in range(1_000, 1_050, 10)])
    assert sorted(op.op_id for op in known) == ["op1020", "op1030", "op1040"]


def test_pruning_until_nothing_is_left_forgets_every_old_operation(store, writer):
    """Asking again makes operations without events: they, too, are still to go."""
    writer.commit(operations=[StoredOperation("a", f"op{n}", "b", "r") for n in range(50)])
    left, steps = 1, 0
    while left:
        left = store.prune(before=writer.now + 1, most=10)
        steps += 1
        assert steps < 20
    assert store.operations([("a", f"op{n}") for n in range(50)]) == []


def test_pruning_an_empty_store_is_nothing(store, tools):
    assert store.prune(before=10**12, most=10) == 0
    lawful(store)


COUNT = st.integers(0, 5)
STEP = st.one_of(
    st.tuples(st.just("register"), COUNT, st.booleans()),
    st.tuples(st.just("remove"), COUNT, st.booleans()),
    st.tuples(st.just("health"), COUNT, st.sampled_from(Health)),
    st.tuples(st.just("drain"), COUNT, st.booleans()),
    st.tuples(st.just("grant"), st.integers(1, 3), st.sampled_from([None, "h", "k"])),
    st.tuples(st.just("gpu"), st.sampled_from([0.25, 0.5, 1]), st.none()),
    st.tuples(st.just("reserve"), st.integers(1, 60), st.none()),
    st.tuples(st.just("lease"), st.integers(1, 60), st.none()),
    st.tuples(st.just("group"), st.integers(2, 3), st.none()),
    st.tuples(
        st.sampled_from([AllocationMove.CONFIRM, AllocationMove.RENEW, AllocationMove.RELEASE]),
        COUNT,
        st.integers(1, 60),
    ),
    st.tuples(st.just("wait"), st.integers(1, 40), st.none()),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("prune"), st.integers(0, 120), st.integers(1, 9)),
)


class History:
    """Carries steps out on a ledger and its store, and expects what pruning promises."""

    def __init__(self, store, tools):
        self.store, self.tools = store, tools
        self.writer = tools.Writer(store)
        self.writer.register("n0", cpu=8, gpus=GPUS[:1])

    def step(self, name, one, two):
        writer = self.writer
        with contextlib.suppress(ValueError):
            if isinstance(name, AllocationMove):
                self.move(name, one, two)
            elif name in ("grant", "gpu", "reserve", "lease", "group"):
                self.grant(name, one, two)
            elif name == "register":
                writer.register(f"n{one}", cpu=8, gpus=GPUS[:1] if two and one == 0 else None)
            elif name in ("remove", "health", "drain"):
                self.node(name, f"n{one}", two)
        if name == "wait":
            writer.now += one
            writer.ledger.expire_due(writer.now)
        elif name == "commit":
            writer.commit()
        elif name == "prune":
            self.prune(writer.now - one, two)

    def node(self, name, node, value):
        ledger = self.writer.ledger
        use = ledger.nodes.get(node)
        if use is None:
            return
        if name == "drain":
            ledger.set_draining(node, value)
        elif name == "health":
            ledger.set_health(node, value, now=self.writer.now, why="drawn")
        elif value or not use.allocations:
            ledger.unregister(node, now=self.writer.now, force=value)

    def grant(self, name, one, two):
        writer = self.writer
        if name == "grant":
            if ("ann", two) not in writer.ledger._holders:
                writer.grant({"cpu": one}, holder=two)
        elif name == "gpu":
            if any(use.node.gpus for use in writer.ledger.nodes.values()):
                writer.grant({"gpu": one})
        elif name == "group":
            writer.grant(*[{"cpu": 1}] * one)
        else:
            writer.grant({"cpu": 1}, ttl_ms=one, reserve=name == "reserve")

    def move(self, move, which, ttl_ms):
        live = list(self.writer.ledger.live.values())
        if not live:
            return
        held = live[which % len(live)]
        if move is AllocationMove.CONFIRM and held.state is not AllocationState.RESERVED:
            return
        if move is AllocationMove.RENEW and (
            held.deadline is None or held.state is not AllocationState.ACTIVE
        ):
            return
        self.writer.move(held, move, ttl_ms=None if move is AllocationMove.RELEASE else ttl_ms)

    def prune(self, before, most):
        self.writer.commit()
        store, events = self.store, self.tools.all_events(self.store)
        old = [event for event in events if event.at < before]
        left = store.prune(before=before, most=most)
        forgotten = old[:most]
        assert left == max(0, len(old) - most)
        assert self.tools.all_events(store) == events[len(forgotten) :]
        ended = {
            event.row["number"]
            for event in forgotten
            if event.kind in ("allocation.released", "allocation.expired", "allocation.lost")
        }
        assert store.find(ended) == []
        still = {event.row["number"] for event in events[len(forgotten) :] if event.subject[0] == "a"}  # fmt: skip
        assert {held.number for held in store.find(still)} == still
        self.check()

    def check(self):
        assert present(self.store) == remembered(self.writer)
        lawful(self.store)


@settings(max_examples=examples(20))
@given(steps=st.lists(STEP, min_size=5, max_size=60))
def test_whatever_happened_and_was_forgotten_the_rest_can_be_replayed(tools, kind, steps):
    with tools.new_place(kind) as place:
        store = place.store()
        store.open()
        store.load()
        try:
            history = History(store, tools)
            for step in steps:
                history.step(*step)
            history.prune(history.writer.now - 5, 3)
            history.prune(history.writer.now + 1, 1_000)
        finally:
            store.close()
