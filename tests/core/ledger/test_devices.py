"""Holds on devices, free capacity, and the choice of devices."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import Gpu
from gridhand.core.ledger.devices import DeviceHold, DeviceUsage, pick_devices
from gridhand.core.model.gpus import GpuHealth, read_gpu_request
from gridhand.core.model.resources import UNIT

GB = 10**9


def ask(gpu=0.0, memory=0, model=None, capability=None):
    return read_gpu_request(round(gpu * UNIT), memory, model, capability)


def device(id="d0", memory=24 * GB, index=None, **more):
    index = int(id[1:]) if index is None else index
    return DeviceUsage(Gpu(id=id, index=index, memory_bytes=memory, **more))


def devices(count, memory=24 * GB, **more):
    return [device(f"d{index}", memory, **more) for index in range(count)]


def take(asked, uses, foreign=None):
    """Pick devices and hold them; return their ids, or None."""
    picked = pick_devices(asked, uses, foreign or {})
    for hold in picked or ():
        next(use for use in uses if use.gpu.id == hold.device).add(hold)
    return None if picked is None else [hold.device for hold in picked]


#    what it shows                            held before                    wanted                          foreign   whether it may be added
ADDED = {
    "all of a free device":                  ([],                            DeviceHold("d0", UNIT, 0, True), 0,       True),
    "all of one that is shared":             ([DeviceHold("d0", 10, 0)],     DeviceHold("d0", UNIT - 10, 0, True), 0,  False),
    "all of one with nothing but memory":    ([DeviceHold("d0", 0, 1)],      DeviceHold("d0", UNIT, 0, True), 0,       False),
    "all of one that others use":            ([],                            DeviceHold("d0", UNIT, 0, True), 1,       False),
    "a share of one that is held whole":     ([DeviceHold("d0", 0, 0, True)], DeviceHold("d0", 1, 0),         0,       False),
    "memory of one that is held whole":      ([DeviceHold("d0", 0, 0, True)], DeviceHold("d0", 0, 1),         0,       False),
    "exactly the rest of its share":         ([DeviceHold("d0", 10, 0)],     DeviceHold("d0", UNIT - 10, 0),  0,       True),
    "a hair more than its share":            ([DeviceHold("d0", 10, 0)],     DeviceHold("d0", UNIT - 9, 0),   0,       False),
    "exactly the rest of its memory":        ([DeviceHold("d0", 0, 4 * GB)], DeviceHold("d0", 0, 20 * GB),    0,       True),
    "a byte more than its memory":           ([DeviceHold("d0", 0, 4 * GB)], DeviceHold("d0", 0, 20 * GB + 1), 0,      False),
    "memory that others leave":              ([],                            DeviceHold("d0", 0, 23 * GB),    GB,      True),
    "memory that others use":                ([],                            DeviceHold("d0", 0, 23 * GB + 1), GB,     False),
}  # fmt: skip


@pytest.mark.parametrize(("held", "wanted", "foreign", "added"), ADDED.values(), ids=ADDED)
def test_what_may_be_added_to_a_device(held, wanted, foreign, added):
    use = device()
    for hold in held:
        use.add(hold)
    assert use.admits(wanted, foreign) is added
    failed = device(health=GpuHealth.LOST)
    assert not failed.admits(wanted, foreign)


def test_g1_a_node_of_eight_with_one_in_use_has_seven_left():
    uses = devices(8)
    assert take(ask(1), uses) == ["d0"]
    assert pick_devices(ask(8), uses, {}) is None
    assert take(ask(7), uses) == [f"d{n}" for n in range(1, 8)]
    assert take(ask(1), uses) is None


def test_g1_one_device_of_24_gb_serves_three_shared_8_gb_requests():
    uses = devices(1)
    assert [take(ask(memory=8 * GB), uses) for _ in range(4)] == [["d0"]] * 3 + [None]


@given(st.integers(0, 2**45))
def test_g1_two_halves_fit_any_device_whatever_its_exact_size(memory):
    uses = devices(1, memory)
    assert [take(ask(0.5), uses) for _ in range(3)] == [["d0"], ["d0"], None]
    assert uses[0].memory_bytes <= memory


@given(st.integers(1, 2**45), st.integers(2, 100))
def test_n_shares_of_one_nth_fit_any_device(memory, n):
    share = UNIT // n
    use = device(memory=memory)
    for _ in range(n):
        hold = DeviceHold.of(read_gpu_request(share, 0, None, None), use.gpu)
        assert hold.memory_bytes == memory * share // UNIT
        assert use.admits(hold, 0)
        use.add(hold)
    assert use.share <= UNIT
    assert use.memory_bytes <= memory


def test_g1_unused_holds_and_foreign_use_both_count():
    use = device(memory=24 * GB)
    use.add(DeviceHold.of(ask(memory=8 * GB), use.gpu))
    assert use.free_memory(10 * GB) == 6 * GB
    foreign = {"d0": 10 * GB}
    assert pick_devices(ask(memory=6 * GB + 1), [use], foreign) is None
    assert take(ask(memory=6 * GB), [use], foreign) == ["d0"]


def test_g2_memory_is_of_one_device_never_of_two():
    uses = devices(2)
    assert pick_devices(ask(memory=40 * GB), uses, {}) is None
    assert pick_devices(ask(2, 24 * GB), uses, {}) is not None
    assert pick_devices(ask(2, 24 * GB + 1), uses, {}) is None


def test_half_a_device_here_and_half_there_are_not_a_device():
    uses = [device("d0"), device("d1")]
    uses[0].add(DeviceHold.of(ask(0.5), uses[0].gpu))
    uses[1].add(DeviceHold.of(ask(0.5), uses[1].gpu))
    assert pick_devices(ask(1), uses, {}) is None
    assert pick_devices(ask(0.5001), uses, {}) is None


def test_g4_sixteen_halves_are_two_on_each_of_eight():
    uses = devices(8)
    assert all(take(ask(0.5), uses) for _ in range(16))
    assert [use.holds for use in uses] == [2] * 8
    assert take(ask(0.0001), uses) is None


def test_g4_eighty_of_018_run_on_sixteen():
    uses = devices(16)
    assert all(take(ask(0.18), uses) for _ in range(80))
    assert [use.holds for use in uses] == [5] * 16
    assert take(ask(0.18), uses) is None


def test_nothing_else_is_held_on_an_exclusive_device():
    uses = devices(1)
    assert take(ask(1), uses) == ["d0"]
    for other in (ask(1), ask(0.0001), ask(memory=1)):
        assert pick_devices(other, uses, {}) is None
    uses[0].remove(DeviceHold("d0", UNIT, 24 * GB, True))
    assert take(ask(0.0001), uses) == ["d0"]
    assert pick_devices(ask(1), uses, {}) is None


def test_a_device_without_known_memory_still_has_shares_but_no_memory():
    uses = devices(1, memory=0)
    assert pick_devices(ask(memory=1), uses, {}) is None
    assert [take(ask(0.5), uses) for _ in range(3)] == [["d0"], ["d0"], None]
    assert pick_devices(ask(1), devices(1, memory=0), {}) is not None


def test_foreign_use_keeps_whole_device_requests_away_but_not_shares():
    uses = devices(2)
    foreign = {"d0": 1}
    assert pick_devices(ask(2), uses, foreign) is None
    assert take(ask(1), uses, foreign) == ["d1"]
    assert take(ask(0.5), uses, foreign) == ["d0"]


def test_foreign_use_of_the_whole_device_leaves_nothing():
    assert device().free_memory(99 * GB) == 0
    assert pick_devices(ask(0.1), devices(1), {"d0": 24 * GB}) is None


@pytest.mark.parametrize("health", [GpuHealth.SICK, GpuHealth.LOST])
def test_only_a_healthy_device_is_picked(health):
    uses = [device("d0", health=health), device("d1")]
    for asked in (ask(1), ask(0.5), ask(memory=GB)):
        assert [hold.device for hold in pick_devices(asked, uses, {})] == ["d1"]
    assert pick_devices(ask(2), uses, {}) is None
    assert uses[0].free_share() == uses[0].free_memory(0) == 0


def test_a_mixed_node_gives_the_devices_of_the_kind_asked_for():
    uses = [
        device("d0", model="T4", capability=(7, 5)),
        device("d1", 80 * GB, model="H100", capability=(9, 0)),
        device("d2", 40 * GB, model="A100", capability=(8, 0)),
    ]
    assert take(ask(0.1, model="H100"), uses) == ["d1"]
    assert take(ask(0.1, capability="8.0"), uses) == ["d1"]  # the one that is in use already
    assert take(ask(1, capability="8.0"), uses) == ["d2"]
    assert take(ask(1, capability="8.0"), uses) is None
    assert take(ask(memory=30 * GB), uses) == ["d1"]


# ---- the order of picks


def test_the_fullest_device_that_fits_is_taken_so_that_whole_ones_stay_whole():
    uses = devices(3)
    assert take(ask(0.25), uses) == ["d0"]
    uses[2].add(DeviceHold.of(ask(0.5), uses[2].gpu))
    assert take(ask(0.25), uses) == ["d2"]
    assert take(ask(0.25), uses) == ["d2"]
    assert take(ask(0.25), uses) == ["d0"]
    assert take(ask(1), uses) == ["d1"]


def test_among_unused_devices_the_smallest_that_fits_is_taken():
    uses = [device("d0", 80 * GB), device("d1", 24 * GB), device("d2", 24 * GB)]
    assert take(ask(memory=8 * GB), uses) == ["d1"]
    assert take(ask(memory=30 * GB), uses) == ["d0"]


def test_among_equals_the_lowest_index_is_taken_in_number_order():
    uses = devices(12)
    assert [take(ask(1), uses)[0] for _ in range(12)] == [f"d{n}" for n in range(12)]


SHARES = st.sampled_from([0, 0.1, 0.25, 0.5, 0.9])


@given(
    st.lists(st.tuples(SHARES, st.integers(0, 24), st.sampled_from(list(GpuHealth))), max_size=6),
    st.one_of(st.sampled_from([1, 2, 3, 0.1, 0.5]), st.just(0)),
    st.sampled_from([0, GB, 8 * GB, 24 * GB]),
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(6)]), st.integers(1, 24 * GB)),
    st.randoms(use_true_random=False),
)
def test_picks_are_distinct_admitted_and_the_same_in_any_order(held, gpu, memory, foreign, chance):
    if not gpu and not memory:
        return
    uses = [device(f"d{n}", health=health) for n, (_, _, health) in enumerate(held)]
    for use, (share, gigabytes, _) in zip(uses, held, strict=True):
        if share or gigabytes:
            use.add(DeviceHold(use.gpu.id, round(share * UNIT), gigabytes * GB))
    asked = ask(gpu, memory)
    picked = pick_devices(asked, uses, foreign)
    shuffled = list(uses)
    chance.shuffle(shuffled)
    assert pick_devices(asked, shuffled, foreign) == picked
    admitting = [
        use for use in uses if use.admits(DeviceHold.of(asked, use.gpu), foreign.get(use.gpu.id, 0))
    ]
    assert (picked is None) == (len(admitting) < asked.devices)
    if picked is not None:
        assert len({hold.device for hold in picked}) == asked.devices == len(picked)
        assert {hold.device for hold in picked} <= {use.gpu.id for use in admitting}


def test_adding_and_removing_in_any_order_leaves_nothing():
    use = device(memory=12_345_678_901)
    holds = [
        DeviceHold.of(read_gpu_request(share, 0, None, None), use.gpu)
        for share in (1, 333, 2500, 17)
    ]
    for order in itertools.permutations(holds):
        for hold in holds:
            use.add(hold)
        for hold in order:
            use.remove(hold)
        assert (use.share, use.memory_bytes, use.holds, use.exclusive) == (0, 0, 0, False)
