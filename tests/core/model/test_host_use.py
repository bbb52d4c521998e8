"""What others use of a node: how it is rounded, how it follows measurements, and who it is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.host_use import NO_HOST_USE, STEPS, HostUse, Stranger
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot

GB = 10**9
STEP = STEPS["memory"]

AMOUNTS = st.integers(0, 10**12)


@given(st.lists(AMOUNTS, min_size=1))
def test_what_is_planned_with_covers_what_was_measured_last_by_at_most_two_steps(readings):
    use = NO_HOST_USE
    for memory in readings:
        use = use.follow(HostUse(memory=memory))
        assert memory <= use.memory < memory + 3 * STEP
        assert use.memory % STEP == 0
    assert use.follow(HostUse(memory=readings[-1])) == use


@given(AMOUNTS, st.lists(st.integers(0, STEP - 1)))
def test_readings_that_differ_by_less_than_a_step_change_it_twice_at_most(base, noise):
    use, seen = NO_HOST_USE, []
    for more in noise:
        use = use.follow(HostUse(memory=base + more))
        seen.append(use.memory)
    assert sum(one != other for one, other in itertools.pairwise(seen)) <= 1


#    what it shows                              kept   measured  after
CPU_CASES = {
    "the noise of every machine is none":       (0.0,  0.24,     0.0),
    "use is rounded up":                        (0.0,  0.26,     0.5),
    "it rises at once":                         (0.5,  3.0,      3.0),
    "it falls late":                            (1.0,  0.6,      1.0),
    "it falls when a whole step is free":       (1.0,  0.5,      0.5),
    "it ends when only noise is left":          (0.5,  0.2,      0.0),
    "a single step ends late":                  (0.25, 0.2,      0.25),
}  # fmt: skip


@pytest.mark.parametrize(("kept", "measured", "after"), CPU_CASES.values(), ids=CPU_CASES)
def test_cpu(kept, measured, after):
    use = HostUse(cpu=round(kept * UNIT)).follow(HostUse(cpu=round(measured * UNIT)))
    assert use.cpu == round(after * UNIT)


BLENDER = Stranger(4711, "blender", 3 * UNIT, 28 * GB)
FOX = Stranger(99, "firefox", UNIT // 2, 4 * GB)
SHELL = Stranger(7, "sh", 0, 10**6)

#    what it shows                        memory        strangers                 sentence
SENTENCES = {
    "one of them":                       (28 * GB,      (BLENDER,),               "28 GB used by pid 4711 (blender)"),
    "the largest is first":              (32 * GB,      (FOX, BLENDER),           "28 GB used by pid 4711 (blender), 4 GB by pid 99 (firefox)"),
    "small ones are not named":          (28 * GB,      (SHELL, BLENDER),         "28 GB used by pid 4711 (blender)"),
    "the rest is told if it is much":    (40 * GB,      (BLENDER,),               "28 GB used by pid 4711 (blender), 12 GB by other processes"),
    "nobody that can be seen":           (512 * 10**6,  (),                       "512 MB used by processes outside the grid"),
    "nothing":                           (0,            (BLENDER,),               ""),
}  # fmt: skip


@pytest.mark.parametrize(("memory", "strangers", "told"), SENTENCES.values(), ids=SENTENCES)
def test_sentence(memory, strangers, told):
    assert HostUse(memory=memory, strangers=strangers).sentence("memory") == told


def test_cores_are_told_too():
    use = HostUse(cpu=round(3.5 * UNIT), strangers=(FOX, BLENDER))
    assert (
        use.sentence("cpu") == "3 cores used by pid 4711 (blender), 0.5 cores by pid 99 (firefox)"
    )
    assert use.sentence("disk") == ""


def test_others_first_use_what_is_no_part_of_the_node():
    use = HostUse(cpu=4 * UNIT, memory=28 * GB)
    assert use.beyond({"memory": 32 * GB, "cpu": UNIT}).amounts == {"cpu": 3 * UNIT}


@given(total=st.integers(1, 64), held=st.integers(0, 64), others=st.integers(0, 64))
def test_others_and_what_is_held_leave_the_rest_and_no_more(total, held, others):
    """The request for the rest fits, and one byte more does not."""
    ledger = Ledger()
    ledger.register(Node.of("n", memory=f"{total}GB", cpu=1))
    seen = Snapshot(ledger)
    if 0 < held <= total:
        ledger.grant([place(Request.of(memory=f"{held}GB"), seen)], Terms("ann"), now=0)
    free = max(0, total - (held if held <= total else 0)) * GB
    assert seen.free(seen.use(0), "memory") == free
    seen.set_host_use("n", HostUse(memory=others * GB))
    left = max(0, free - others * GB)
    assert seen.free(seen.use(0), "memory") == left
    assert not left or fits(seen, left)
    assert not fits(seen, left + 1)
    seen.set_host_use("n", NO_HOST_USE)
    assert not free or fits(seen, free)


def fits(seen, amount):
    return isinstance(place(Request.of(memory=f"{amount}B"), seen), Placement)
