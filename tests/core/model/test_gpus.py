"""Devices have an identity: what is asked is asked of one device at a time."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import Gpu, InvalidAmount, InvalidInput, InvalidName, InvalidRequest, Node
from gridhand.core.gpus import (
    MOST_DEVICES,
    DeviceHold,
    DeviceUse,
    GpuHealth,
    anonymous_gpus,
    pick_devices,
    read_capability,
    read_gpu_ask,
)
from gridhand.core.resources import UNIT, Resources

GB = 10**9


def ask(gpu=0.0, memory=0, model=None, capability=None):
    return read_gpu_ask(round(gpu * UNIT), memory, model, capability)


def device(id="d0", memory=24 * GB, index=None, **more):
    index = int(id[1:]) if index is None else index
    return DeviceUse(Gpu(id=id, index=index, memory_bytes=memory, **more))


def devices(count, memory=24 * GB, **more):
    return [device(f"d{index}", memory, **more) for index in range(count)]


def take(asked, uses, foreign=None):
    """Pick, and hold what was picked; the ids, or None."""
    picked = pick_devices(asked, uses, foreign or {})
    for hold in picked or ():
        next(use for use in uses if use.gpu.id == hold.device).add(hold)
    return None if picked is None else [hold.device for hold in picked]


# ---- capabilities


#    the device has   is asked for   fits
CAPABILITIES = {
    "G3 10.0 is more than 9.0":          ("10.0", "9.0",   True),
    "G3 7.5 is less than 8.6":           ("7.5",  "8.6",   False),
    "9.0 is less than 10.0":             ("9.0",  "10.0",  False),
    "the same":                          ("8.6",  "8.6",   True),
    "a bare major is its .0":            ("8.0",  "8",     True),
    "a bare major of the device":        ("8",    "8.0",   True),
    "a float is read as it is written":  (8.6,    "8.6",   True),
    "an int":                            (9,      8.6,     True),
    "8.10 is more than 8.9":             ("8.10", "8.9",   True),
    "8.0 is 8.0.0":                      ("8.0",  "8.0.0", True),
    "8.0.0 is 8.0":                      ("8.0.0", "8.0",  True),
    "an unknown one is less than any":   (None,   "1.0",   False),
    "nobody asked":                      (None,   None,    True),
}  # fmt: skip


@pytest.mark.parametrize(("has", "needs", "fits"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_capabilities_compare_as_versions(has, needs, fits):
    gpu = Gpu(id="d0", capability=read_capability(has))
    assert ask(1, capability=needs).suits(gpu) is fits


@pytest.mark.parametrize(
    "value",
    ["", "x", "8.", ".8", "8.0.0.0", "8,6", "-8", "8.6\n", "٨", True, b"8", [8], 1e300],
    ids=repr,
)
def test_a_capability_that_is_no_version_is_refused(value):
    with pytest.raises(InvalidInput, match="gpu_capability"):
        read_capability(value)


def test_a_model_narrows_the_devices_in_any_case():
    assert ask(1, model="a100").suits(Gpu(id="d", model="A100"))
    assert not ask(1, model="A100").suits(Gpu(id="d", model="H100"))
    assert not ask(1, model="A100").suits(Gpu(id="d"))


# ---- what is asked


#    what it says                       gpu   memory    devices share  memory   exclusive
ASKS = {
    "one whole device":                (1,    0,        1,      UNIT,  None,    True),
    "four whole devices":              (4,    0,        4,      UNIT,  None,    True),
    "a share":                         (0.25, 0,        1,      2500,  None,    False),
    "memory of one device":            (0,    8 * GB,   1,      0,     8 * GB,  False),
    "memory of one device, said":      (1,    8 * GB,   1,      0,     8 * GB,  False),
    "memory on each of two":           (2,    20 * GB,  2,      0,     20 * GB, False),
    "a share and memory":              (0.25, 10 * GB,  1,      2500,  10 * GB, False),
}  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "memory", "count", "share", "bytes_", "exclusive"), ASKS.values(), ids=ASKS
)
def test_gpu_and_gpu_memory_together_say_what_is_asked(
    gpu, memory, count, share, bytes_, exclusive
):
    asked = ask(gpu, memory)
    assert (asked.devices, asked.share, asked.memory_bytes) == (count, share, bytes_)
    assert asked.exclusive is exclusive


@pytest.mark.parametrize("gpu", [1.5, 1.0001, 2.25, 1023.5])
def test_more_than_one_device_in_part_is_refused(gpu):
    with pytest.raises(InvalidRequest, match="gpu: "):
        ask(gpu)
    with pytest.raises(InvalidRequest, match="gpu: "):
        ask(gpu, GB)


def test_more_devices_than_a_node_can_have_are_refused():
    assert ask(MOST_DEVICES).devices == MOST_DEVICES
    with pytest.raises(InvalidRequest, match="gpu: '1025'"):
        ask(MOST_DEVICES + 1)


def test_a_model_or_capability_without_a_gpu_is_refused():
    with pytest.raises(InvalidRequest, match="A100"):
        ask(model="A100")
    with pytest.raises(InvalidRequest, match=r"8\.6"):
        ask(capability="8.6")
    assert ask() is None


def test_an_ask_says_itself_in_the_words_it_was_made_in():
    assert ask(4).resources() == Resources.of(gpu=4)
    assert ask(0.25).resources() == Resources.of(gpu=0.25)
    assert ask(2, 20 * GB).resources() == Resources.of(gpu=2, gpu_memory="20GB")
    assert ask(0.25, GB).resources() == Resources.of(gpu=0.25, gpu_memory="1GB")


# ---- picking


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
        hold = read_gpu_ask(share, 0, None, None).hold_on(use.gpu)
        assert hold.memory_bytes == memory * share // UNIT
        assert use.admits(hold, 0)
        use.add(hold)
    assert use.share <= UNIT
    assert use.memory_bytes <= memory


def test_g1_what_is_held_but_not_used_and_what_strangers_use_both_count():
    use = device(memory=24 * GB)
    use.add(ask(memory=8 * GB).hold_on(use.gpu))
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
    uses[0].add(ask(0.5).hold_on(uses[0].gpu))
    uses[1].add(ask(0.5).hold_on(uses[1].gpu))
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


def test_a_stranger_keeps_whole_device_requests_away_but_not_shares():
    uses = devices(2)
    foreign = {"d0": 1}
    assert pick_devices(ask(2), uses, foreign) is None
    assert take(ask(1), uses, foreign) == ["d1"]
    assert take(ask(0.5), uses, foreign) == ["d0"]


def test_a_stranger_who_uses_it_all_leaves_nothing():
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


def test_the_fullest_device_that_will_do_is_taken_so_that_whole_ones_stay_whole():
    uses = devices(3)
    assert take(ask(0.25), uses) == ["d0"]
    uses[2].add(ask(0.5).hold_on(uses[2].gpu))
    assert take(ask(0.25), uses) == ["d2"]
    assert take(ask(0.25), uses) == ["d2"]
    assert take(ask(0.25), uses) == ["d0"]
    assert take(ask(1), uses) == ["d1"]


def test_among_devices_that_nobody_uses_the_smallest_that_will_do_is_taken():
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
        use for use in uses if use.admits(asked.hold_on(use.gpu), foreign.get(use.gpu.id, 0))
    ]
    assert (picked is None) == (len(admitting) < asked.devices)
    if picked is not None:
        assert len({hold.device for hold in picked}) == asked.devices == len(picked)
        assert {hold.device for hold in picked} <= {use.gpu.id for use in admitting}


def test_adding_and_removing_in_any_order_leaves_nothing():
    use = device(memory=12_345_678_901)
    holds = [read_gpu_ask(share, 0, None, None).hold_on(use.gpu) for share in (1, 333, 2500, 17)]
    for order in itertools.permutations(holds):
        for hold in holds:
            use.add(hold)
        for hold in order:
            use.remove(hold)
        assert (use.share, use.memory_bytes, use.holds, use.exclusive) == (0, 0, 0, False)


# ---- how devices are described


def test_a_node_with_a_number_of_gpus_has_that_many_anonymous_devices():
    node = Node.of("box", cpu=8, gpu=2, gpu_memory="16GB")
    assert [gpu.id for gpu in node.gpus] == ["box/0", "box/1"]
    assert [gpu.memory_bytes for gpu in node.gpus] == [16 * GB] * 2
    assert node.total == Resources.of(cpu=8, gpu=2, gpu_memory="32GB")
    assert node.capacity == Resources.of(cpu=8)
    assert anonymous_gpus("n", 2, 5) == (
        Gpu("n/0", 0, memory_bytes=5),
        Gpu("n/1", 1, memory_bytes=5),
    )


def test_a_device_has_its_uuid_as_id_or_else_node_and_index():
    node = Node.of(
        "box",
        gpus=[
            {"uuid": "GPU-1", "model": "A100", "memory": "40GB", "capability": "8.0"},
            {"id": "GPU-2", "memory": 40_000},
            {"model": "T4"},
        ],
    )
    assert [gpu.id for gpu in node.gpus] == ["GPU-1", "GPU-2", "box/2"]
    assert [gpu.index for gpu in node.gpus] == [0, 1, 2]
    assert node.gpus[0] == Gpu("GPU-1", 0, "A100", 40 * GB, (8, 0), GpuHealth.OK)
    assert node.gpus[1].memory_bytes == 40 * GB


#    what is wrong                       gpus                                     how it is refused
BAD = {
    "no list":                          ({"model": "A100"},                       InvalidInput),
    "text":                             ("A100",                                  InvalidInput),
    "a number":                         (2,                                       InvalidInput),
    "a list of names":                  (["A100"],                                InvalidInput),
    "an unknown field":                 ([{"ram": "40GB"}],                       InvalidInput),
    "a negative memory":                ([{"memory": -1}],                        InvalidAmount),
    "a memory in a unit there is not":  ([{"memory": "4 QB"}],                    InvalidAmount),
    "no memory but None":               ([{"memory": None}],                      InvalidAmount),
    "an id with a newline":             ([{"id": "a\nb"}],                        InvalidName),
    "an id with SQL":                   ([{"id": "a'; --"}],                      InvalidName),
    "an id of a megabyte":              ([{"id": "a" * 10**6}],                   InvalidName),
    "an id that is a number":           ([{"id": 5}],                             InvalidName),
    "a model with a newline":           ([{"model": "A\n"}],                      InvalidInput),
    "a model of 101":                   ([{"model": "A" * 101}],                  InvalidInput),
    "a model that is a number":         ([{"model": 100}],                        InvalidInput),
    "a capability that is none":        ([{"capability": "eight"}],               InvalidInput),
    "a health there is not":            ([{"health": "fine"}],                    InvalidInput),
    "a health of None":                 ([{"health": None}],                      InvalidInput),
    "the same id twice":                ([{"id": "a"}, {"uuid": "a"}],            InvalidInput),
    "too many":                         ([{}] * (MOST_DEVICES + 1),               InvalidInput),
    "a Gpu with a bad id":              ([Gpu(id="a\nb")],                        InvalidInput),
    "a Gpu with negative memory":       ([Gpu(id="a", memory_bytes=-1)],          InvalidInput),
    "a Gpu with memory in a float":     ([Gpu(id="a", memory_bytes=0.5)],         InvalidInput),
}  # fmt: skip


@pytest.mark.parametrize(("gpus", "kind"), BAD.values(), ids=BAD)
def test_a_device_that_is_described_wrongly_is_refused(gpus, kind):
    with pytest.raises(kind) as caught:
        Node.of("box", cpu=1, gpus=gpus)
    assert caught.value.hint
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("gpu", [0.5, 1.5, MOST_DEVICES + 1])
def test_a_node_has_whole_devices_and_not_too_many(gpu):
    with pytest.raises(InvalidInput, match="gpu: "):
        Node.of("box", gpu=gpu)


def test_a_number_of_gpus_must_be_that_of_the_list():
    assert len(Node.of("box", gpu=2, gpus=[{}, {}]).gpus) == 2
    with pytest.raises(InvalidRequest, match="gpu: '3'"):
        Node.of("box", gpu=3, gpus=[{}, {}])


def test_gpu_memory_of_a_node_needs_devices_that_have_it():
    with pytest.raises(InvalidRequest, match="gpu_memory"):
        Node.of("box", cpu=1, gpu_memory="40GB")


def test_gpu_memory_beside_a_list_of_devices_is_not_silently_dropped():
    try:
        node = Node.of("box", gpu_memory="40GB", gpus=[{"model": "A100"}])
    except InvalidInput:
        return
    assert node.gpus[0].memory_bytes == 40 * GB
