"""Rounded amounts for people: never more than there is, and readable by our own parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import Grid, InvalidAmount, Resources
from gridhand.core.model.amount_text import at_least, at_most, capacity_text, request_text
from gridhand.core.model.job_arrays import read_array, tasks_text
from gridhand.core.model.resources import MOST, read_amount

#    what it shows                        name       parts              at most      at least
CASES = {
    "bytes to the last one":             ("memory",  25_274_793_984,    "25.27GB",   "25.28GB"),
    "what is short stays exact":         ("memory",  16 * 2**30,        "16GiB",     "16GiB"),
    "also with decimals":                ("memory",  1_234_000_000,     "1.234GB",   "1.234GB"),
    "up to the next unit":               ("memory",  999_999_999_999,   "999.99GB",  "1TB"),
    "the most there can be":             ("disk",    MOST,              "9PB",       "9007199254740.991kB"),
    "few bytes":                         ("memory",  999,               "999B",      "999B"),
    "parts of a core":                   ("cpu",     123_456_789,       "12345.6789", "12345.6789"),
    "nothing":                           ("memory",  0,                 "0B",        "0B"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "parts", "less", "more"), CASES.values(), ids=CASES)
def test_amounts(name, parts, less, more):
    assert (at_most(name, parts), at_least(name, parts)) == (less, more)


@given(st.integers(1, MOST))
def test_rounded_text_is_read_back_and_never_promises_more(parts):
    less, more = (read_amount("memory", text("memory", parts)) for text in (at_most, at_least))
    assert less <= parts <= more
    assert (parts - less) * 100 <= parts
    assert len(at_most("memory", parts)) <= 9


def test_several_at_once_are_read_back():
    some = Resources.of(cpu=2, memory="25274793984B")
    assert (capacity_text(some), request_text(some)) == (
        "cpu=2 memory=25.27GB",
        "cpu=2 memory=25.28GB",
    )
    assert Resources.parse(capacity_text(some)).fits_in(some)
    assert some.fits_in(Resources.parse(request_text(some)))
    assert capacity_text(Resources()) == request_text(Resources()) == "nothing"


def test_a_capacity_is_rounded_down():
    with Grid.in_memory() as grid:
        grid.register_node("box", memory="25274793984B")
        assert str(grid.node("box")) == "box (up): memory=25.27GB free of memory=25.27GB"


def test_an_amount_that_is_too_large_names_the_limit():
    with pytest.raises(InvalidAmount) as caught:
        Resources.of(memory="10PB")
    assert caught.value.hint == "Use at most 9PB."


@given(st.sets(st.integers(0, 60), min_size=2))
def test_tasks_are_listed_as_arrays_are_written(indices):
    said = tasks_text("17", indices, longest=1000)
    assert set(read_array(said.removeprefix("17_[").removesuffix("]")).indices) == indices


def test_very_many_tasks_are_cut_short():
    said = tasks_text("17", range(0, 1000, 2))
    assert said.startswith("17_[0,2,4,")
    assert said.endswith(",…]")
    assert len(said) < 60
