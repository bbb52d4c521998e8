"""G1 to G4, and G6, of BEHAVIOURS.md, as a program sees them."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from gridhand import InvalidInput, NeverFits, NoRoom, Resources, UnknownNode

GB = 10**9


def register(grid, *memory, name="n1", **more):
    return grid.register_node(
        name, cpu=64, gpus=[{"memory": f"{size}GB", **more} for size in memory]
    )


def count(call):
    """How often `call` is granted before it is refused."""
    for granted in range(1000):
        try:
            call()
        except NoRoom:
            return granted
    raise AssertionError("it is granted for ever")


def test_g1_a_node_of_eight_with_one_in_use_has_seven_left(grid):
    register(grid, *[24] * 8)
    grid.allocate(gpu=1)
    assert grid.node("n1").available["gpu"] == 70_000
    assert not grid.fits("n1", gpu=8)
    held = grid.allocate(gpu=7)
    assert held.gpus == tuple(f"n1/{n}" for n in range(1, 8))
    assert not grid.fits("n1", gpu_memory=1)


def test_g1_one_device_of_24_gb_serves_three_shared_8_gb_requests(grid):
    register(grid, 24)
    assert count(lambda: grid.allocate(gpu_memory="8GB")) == 3
    assert grid.node("n1").available["gpu_memory"] == 0


@pytest.mark.parametrize("memory", ["24GB", "23.999999999GB", "1B", "0B", "25757220864B"])
def test_g1_two_halves_fit_any_device_whatever_its_exact_size(grid, memory):
    grid.register_node("n1", gpus=[{"memory": memory}])
    assert count(lambda: grid.allocate(gpu=0.5)) == 2


def test_g1_what_is_held_and_what_strangers_use_both_count(grid):
    register(grid, 24)
    grid.allocate(gpu_memory="8GB")
    grid.report_foreign("n1", {"n1/0": "10GB"})
    assert grid.node("n1").gpus[0].free_memory_bytes == 6 * GB
    assert not grid.fits("n1", gpu_memory="6.1GB")
    with pytest.raises(NoRoom, match=r"has 6\.00 GB available on one device") as caught:
        grid.allocate(gpu_memory="7GB")
    assert "processes outside the grid use 10.00 GB" in caught.value.refusal.reasons()["n1"][1]
    grid.allocate(gpu_memory="6GB")


def test_g1_a_stranger_keeps_whole_device_requests_away_until_it_leaves(grid):
    register(grid, 24, 24)
    grid.report_foreign("n1", {"n1/0": 1})
    assert not grid.fits("n1", gpu=2)
    assert grid.allocate(gpu=1).gpus == ("n1/1",)
    grid.report_foreign("n1", {})
    assert grid.allocate(gpu=1).gpus == ("n1/0",)


def test_strangers_on_what_is_not_there_are_refused(grid):
    register(grid, 24)
    with pytest.raises(UnknownNode):
        grid.report_foreign("n2", {})
    with pytest.raises(InvalidInput, match="gpu id: 'n1/7'"):
        grid.report_foreign("n1", {"n1/0": "1GB", "n1/7": "1GB"})
    assert grid.node("n1").gpus[0].foreign_bytes == 0


def test_what_strangers_used_on_a_removed_node_is_forgotten(grid):
    register(grid, 24)
    grid.report_foreign("n1", {"n1/0": "10GB"})
    grid.unregister("n1")
    register(grid, 24)
    assert grid.node("n1").gpus[0].foreign_bytes == 0
    assert grid.fits("n1", gpu=1)


def test_g2_a_40_gb_request_for_one_device_on_two_of_24_gb_is_refused(grid):
    register(grid, 24, 24)
    with pytest.raises(NeverFits, match=r"has 24\.00 GB available on one device"):
        grid.allocate(gpu_memory="40GB")
    held = grid.allocate(gpu=2, gpu_memory="20GB")
    assert held.gpus == ("n1/0", "n1/1")
    assert held.resources == Resources.of(gpu_memory="40GB")


#    the device has   needs   fits
G3 = {
    "10.0 serves 9.0": ("10.0", "9.0", True),
    "7.5 does not serve 8.6": ("7.5", "8.6", False),
    "9.0 does not serve 10.0": ("9.0", "10.0", False),
    "8.6 serves 8.6": ("8.6", "8.6", True),
}


@pytest.mark.parametrize(("has", "needs", "fits"), G3.values(), ids=G3)
def test_g3_capabilities_compare_as_versions(grid, has, needs, fits):
    register(grid, 24, capability=has)
    assert grid.fits("n1", gpu=1, gpu_capability=needs) is fits
    assert grid.fits("n1", {"gpu_count": 1, "gpu_compute_capability": needs}) is fits


def test_g3_a_model_narrows_the_devices(grid):
    register(grid, 40, name="n1", model="A100")
    register(grid, 80, name="n2", model="H100")
    assert grid.allocate(gpu=0.5, gpu_model="h100").node == "n2"
    with pytest.raises(NeverFits, match=r"Insufficient GPU \(V100\)"):
        grid.allocate(gpu=1, gpu_model="V100")


def test_g4_sixteen_halves_at_once_on_eight_are_two_on_each(grid):
    register(grid, *[24] * 8)
    with ThreadPoolExecutor(16) as pool:
        held = list(pool.map(lambda _: grid.allocate(gpu=0.5), range(16)))
    assert Counter(one.gpus for one in held) == {(f"n1/{n}",): 2 for n in range(8)}
    with pytest.raises(NoRoom):
        grid.allocate(gpu=0.0001)


def test_g4_eighty_of_018_on_sixteen_all_run(grid):
    register(grid, *[24] * 8, name="n1")
    register(grid, *[24] * 8, name="n2")
    with ThreadPoolExecutor(16) as pool:
        held = list(pool.map(lambda _: grid.allocate(gpu=0.18), range(80)))
    assert set(Counter(one.gpus for one in held).values()) == {5}
    assert len({one.gpus for one in held}) == 16


def test_shares_fill_one_device_before_the_next_so_that_whole_ones_stay_whole(grid):
    register(grid, 24, 24, 24)
    assert [grid.allocate(gpu=0.25).gpus[0] for _ in range(5)] == ["n1/0"] * 4 + ["n1/1"]
    assert grid.allocate(gpu=1).gpus == ("n1/2",)


def test_several_devices_of_one_allocation_are_distinct(grid):
    register(grid, *[24] * 4)
    for asked in ({"gpu": 2}, {"gpu": 2, "gpu_memory": "1GB"}):
        with grid.allocate(asked) as held:
            assert len(set(held.gpus)) == 2


def test_g6_without_a_gpu_the_fallback_places_it_on_cpu_and_says_so(grid):
    grid.register_node("n1", cpu=4)
    held = grid.allocate(cpu=1, gpu=1, fallback="cpu")
    assert held.gpus == ()
    assert held.resources == Resources.of(cpu=1)
    with pytest.raises(NeverFits):
        grid.allocate(cpu=1, gpu=1)


def test_a_sick_device_is_taken_out_and_the_others_stay(grid):
    healths = ["ok", "sick", "lost"]
    grid.register_node("n1", gpus=[{"memory": "24GB", "health": health} for health in healths])
    assert grid.node("n1").total == Resources.of(gpu=1, gpu_memory="24GB")
    assert grid.allocate(gpu=1).gpus == ("n1/0",)
    assert not grid.fits("n1", gpu_memory=1)


def test_auto_quality_takes_what_device_memory_there_is(grid):
    register(grid, 24)
    levels = []
    while grid.fits("n1", gpu_memory="8GB", quality="auto"):
        levels.append(grid.allocate(gpu_memory="8GB", quality="auto").quality)
    assert levels == ["ultra", "ultra"]  # 11.2 GB each; 1.6 GB are left, and a draft takes 6.4
    with pytest.raises(NoRoom):
        grid.allocate(gpu_memory="8GB", quality="draft")


def test_the_size_of_a_share_is_seen(grid):
    register(grid, 24)
    with grid.allocate(gpu=0.25) as held:
        assert held.resources == Resources.of(gpu=0.25, gpu_memory="6GB")
        gpu = grid.node("n1").gpus[0]
        assert (gpu.share, gpu.memory_bytes, gpu.exclusive) == (0.25, 6 * GB, False)
    with grid.allocate(gpu=1):
        assert grid.node("n1").gpus[0].exclusive
