"""Durations and arrays as users write them, and the errors for invalid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import InvalidInput
from gridhand.core.model.durations import MOST_MS, read_duration, read_time_limit
from gridhand.core.model.job_arrays import MOST_TASKS, read_array

S, M, H, D = 1_000, 60_000, 3_600_000, 86_400_000

#    what it shows                                   text             milliseconds
DURATIONS = {
    "a bare number counts minutes":                 ("30",            30 * M),
    "so it does beyond an hour":                    ("90",            90 * M),
    "two numbers are minutes and seconds":          ("5:30",          5 * M + 30 * S),
    "three are hours, minutes and seconds":         ("01:02:03",      H + 2 * M + 3 * S),
    "hours may be many":                            ("100:00:00",     100 * H),
    "after days come hours":                        ("2-12",          2 * D + 12 * H),
    "then minutes":                                 ("1-00:30",       D + 30 * M),
    "then seconds":                                 ("1-02:03:04",    D + 2 * H + 3 * M + 4 * S),
    "seconds have a unit":                          ("90s",           90 * S),
    "hours have one":                               ("2h",            2 * H),
    "m is minutes":                                 ("15m",           15 * M),
    "ms is less":                                   ("250ms",         250),
    "units follow each other":                      ("1h30m",         90 * M),
    "with spaces, too":                             ("1d 6h",         30 * H),
    "fractions are exact":                          ("1.1h",          66 * M),
    "capitals will do":                             ("2H",            2 * H),
    "ten years are the most":                       ("3650d",         MOST_MS),
    "what is written can be read":                  ("1d1h1m1s1ms",   D + H + M + S + 1),
}  # fmt: skip


@pytest.mark.parametrize(("text", "ms"), DURATIONS.values(), ids=DURATIONS)
def test_a_duration_is_read(text, ms):
    assert read_duration(text) == ms
    assert read_duration(f" {text} ") == ms


NO_DURATIONS = [
    "", " ", "x", "-5", "0", "0s", "00:00", "1:60", "1:00:60", "1:60:00", "1-24", "1-00:60", "1-",
    "-1:00", "1:2:3:4", "30m1h", "1h2h", "5 m 3", "1.5", "1e3", "٣m", "3651d", "9" * 50, 30, 1.5,
    None, True, ["1h"], "1h\n2m", "inf", "unlimited", "0.0001ms",
]  # fmt: skip


@pytest.mark.parametrize("value", NO_DURATIONS, ids=repr)
def test_an_invalid_duration_is_refused_with_examples(value):
    with pytest.raises(InvalidInput) as caught:
        read_duration(value, "grace")
    assert "grace" in str(caught.value)
    assert "HH:MM:SS" in caught.value.hint


@given(st.integers(1, MOST_MS))
def test_every_duration_can_be_written_to_the_millisecond(ms):
    assert read_duration(f"{ms // 1000}s{ms % 1000}ms") == ms


@pytest.mark.parametrize("value", ["0", "unlimited", "UNLIMITED", " infinite "])
def test_no_time_limit_can_be_said(value):
    assert read_time_limit(value) is None


def test_a_time_limit_is_a_duration():
    assert read_time_limit("2h") == 2 * H
    with pytest.raises(InvalidInput, match="time limit"):
        read_time_limit("soon")


#    what it shows                              text             indices               at once
ARRAYS = {
    "a range has both its ends":               ("1-4",           (1, 2, 3, 4),         None),
    "a limit follows a percent sign":          ("1-10%4",        tuple(range(1, 11)),  4),
    "indices are listed":                      ("1,3,5-9:2",     (1, 3, 5, 7, 9),      None),
    "a single one will do":                    ("7",             (7,),                 None),
    "zero is an index":                        ("0-2",           (0, 1, 2),            None),
    "a step need not meet the end":            ("0-10:4",        (0, 4, 8),            None),
    "each comes once, and in order":           ("5,1-3,2",       (1, 2, 3, 5),         None),
    "spaces do not matter":                    ("1, 3 % 2",      (1, 3),               2),
    "a limit may be more than there are":      ("1-2%99",        (1, 2),               99),
    "a wide range may have few indices":       ("0-1000000000:500000000", (0, 500_000_000, 10**9), None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "indices", "at_once"), ARRAYS.values(), ids=ARRAYS)
def test_an_array_is_read(text, indices, at_once):
    assert read_array(text) == (indices, at_once)


#    what it shows                          text                 what the hint says
NO_ARRAYS = {
    "nothing":                             ("",                  "1-10"),
    "a word":                              ("all",               "1-10"),
    "a negative index":                    ("-1",                "1-10"),
    "an open range":                       ("1-",                "1-10"),
    "an empty place":                      ("1,,2",              "1-10"),
    "a step without a range":              ("1:2",               "1-10"),
    "a step of none":                      ("1-5:0",             "at least 1"),
    "a range from high to low":            ("5-1",               "low to high"),
    "an index too high":                   ("9999999999",        "low to high"),
    "no limit after the sign":             ("1-5%",              "after the %"),
    "a limit of none":                     ("1-5%0",             "after the %"),
    "two limits":                          ("1-5%2%3",           "after the %"),
    "more than anyone can mean":           ("0-999999999",       str(MOST_TASKS)),
    "more than that, in parts":            ("0-600000,700000-1200000", str(MOST_TASKS)),
    "digits of other scripts":             ("١-٣",               "1-10"),
    "a number":                            (5,                   "1-10"),
    "something else":                      (None,                "1-10"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "hint"), NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_an_invalid_array_is_refused_with_a_hint(value, hint):
    with pytest.raises(InvalidInput, match="array") as caught:
        read_array(value)
    assert hint in caught.value.hint
