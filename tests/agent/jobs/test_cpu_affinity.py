"""Whole cores have one owner, and everybody has somewhere to run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.agent.jobs.cpu_affinity import Cores
from gridhand.core.model.resources import UNIT

#    what it shows                               cores  asked, in turn                    where each runs
CASES = {
    "whole cores are disjoint":                 (4, [2 * UNIT, UNIT],                    [[0, 1], [2]]),
    "a part shares what is left":               (4, [2 * UNIT, UNIT // 2],               [[0, 1], [2, 3]]),
    "one and a half shares as well":            (4, [UNIT, 3 * UNIT // 2],               [[0], [1, 2, 3]]),
    "parts share with each other":              (2, [UNIT // 2, UNIT // 4],              [[0, 1], [0, 1]]),
    "one core is left to those that share":     (2, [UNIT // 2, 2 * UNIT],               [[0, 1], [0, 1]]),
    "nothing asked is wherever it likes":       (2, [0],                                 [None]),
    "too many are in each other's way":         (1, [UNIT, UNIT],                        [[0], [0]]),
}  # fmt: skip


@pytest.mark.parametrize(("count", "asked", "expected"), CASES.values(), ids=CASES)
def test_take(count, asked, expected):
    cores = Cores(range(count))
    assert [cores.take(number, parts, pin=True) for number, parts in enumerate(asked)] == expected


def test_who_is_not_pinned_takes_nothing():
    cores = Cores(range(2))
    assert cores.take("a", UNIT, pin=False) is None
    assert cores.take("b", 2 * UNIT, pin=True) == [0, 1]


def test_what_was_kept_is_not_given_again():
    cores = Cores(range(3))
    cores.keep("old", [0, 2], shares=False)
    assert cores.take("new", UNIT, pin=True) == [1]
    cores.give_back("old")
    assert cores.take("next", 2 * UNIT, pin=True) == [0, 2]


WHO = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(st.tuples(WHO, st.integers(0, 5 * UNIT), st.booleans()), st.tuples(WHO)), max_size=30
)


@given(count=st.integers(1, 6), steps=STEPS)
def test_no_core_has_two_owners_and_none_is_lost(count, steps):
    cores, held = Cores(range(count)), {}
    for who, *asked in steps:
        if not asked:
            cores.give_back(who)
            held.pop(who, None)
            continue
        parts, pin = asked
        given_cores = cores.take(who, parts, pin=pin)
        held[who] = parts
        assert (given_cores is None) == (not pin or parts == 0)
        assert given_cores is None or set(given_cores) <= set(range(count))
        owned = [core for one in held for core in cores.own(one) or ()]
        assert len(owned) == len(set(owned))
        assert all(len(cores.own(one)) * UNIT == held[one] for one in held if cores.own(one))
        sharing = [one for one in held if cores.shares(one)]
        if given_cores and who in sharing:
            assert given_cores == cores.rest()
        assert set(cores.rest()).isdisjoint(owned) or len(owned) == count
    for who in list(held):
        cores.give_back(who)
    assert cores.take("all", count * UNIT, pin=True) == list(range(count))
