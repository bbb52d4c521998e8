"""Amounts are exact, whatever unit, spelling or number they came in."""

import copy
import decimal
import doctest
import importlib
import math
import pickle
import pkgutil
import random
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gridhand.core
import gridhand.library
from gridhand import InvalidAmount, InvalidInput, InvalidName, InvalidRequest, Resources
from gridhand.core.model.resources import BYTES, KNOWN, MOST, MOST_NAMES, UNIT

KB, MB, GB, TB, PB = (1000**n for n in range(1, 6))
KIB, MIB, GIB, TIB, PIB = (1024**n for n in range(1, 6))
ALIASES = (
    "cpu_cores", "memory_gb", "disk_gb", "storage", "gpu_count", "gpu_memory_gb",
    "network_bandwidth_mbps",
)  # fmt: skip

#    what is written                        name           value              parts
READ = {
    "a whole number":                      ("cpu",         2,                 2 * UNIT),
    "a fraction":                          ("cpu",         0.5,               UNIT // 2),
    "a tenth is a tenth, not a float":     ("cpu",         0.1,               1000),
    "three tenths made by adding":         ("cpu",         0.1 + 0.2,         3000),
    "the smallest there is":               ("cpu",         0.0001,            1),
    "as text":                             ("cpu",         "2.5",             25_000),
    "as text in thousandths":              ("cpu",         "250m",            2500),
    "as a decimal":                        ("cpu",         Decimal("1.25"),   12_500),
    "nothing":                             ("cpu",         0,                 0),
    "nothing as a float":                  ("cpu",         0.0,               0),
    "nothing, negated":                    ("cpu",         -0.0,              0),
    "half a part is rounded to the even":  ("cpu",         0.00025,           2),
    "over half a part is rounded up":      ("cpu",         0.00026,           3),
    "a third":                             ("gpu",         1 / 3,             3333),
    "a large float":                       ("cpu",         1e6,               10**10),
    "a bare number of memory is MB":       ("memory",      4000,              4 * GB),
    "a bare fraction of memory is MB":     ("memory",      0.5,               500_000),
    "a bare number of disk is MB":         ("disk",        1,                 MB),
    "a bare number of GPU memory is MB":   ("gpu_memory",  1,                 MB),
    "a bare number as text is MB":         ("memory",      "4000",            4 * GB),
    "another name counts in units":        ("fpga",        1,                 UNIT),
    "bandwidth counts in units":           ("bandwidth",   100,               100 * UNIT),
    "B":                                   ("memory",      "7B",              7),
    "k":                                   ("memory",      "4k",              4 * KB),
    "kB":                                  ("memory",      "4kB",             4 * KB),
    "M":                                   ("memory",      "4M",              4 * MB),
    "MB":                                  ("memory",      "4MB",             4 * MB),
    "G":                                   ("memory",      "4G",              4 * GB),
    "GB":                                  ("memory",      "4GB",             4 * GB),
    "T":                                   ("disk",        "4T",              4 * TB),
    "TB":                                  ("disk",        "4TB",             4 * TB),
    "P":                                   ("disk",        "4P",              4 * PB),
    "PB":                                  ("disk",        "4PB",             4 * PB),
    "Ki":                                  ("memory",      "4Ki",             4 * KIB),
    "KiB":                                 ("memory",      "4KiB",            4 * KIB),
    "Mi":                                  ("memory",      "4Mi",             4 * MIB),
    "MiB":                                 ("memory",      "4MiB",            4 * MIB),
    "Gi":                                  ("memory",      "4Gi",             4 * GIB),
    "GiB":                                 ("gpu_memory",  "4GiB",            4 * GIB),
    "Ti":                                  ("disk",        "4Ti",             4 * TIB),
    "TiB":                                 ("disk",        "4TiB",            4 * TIB),
    "Pi":                                  ("disk",        "4Pi",             4 * PIB),
    "PiB":                                 ("disk",        "4PiB",            4 * PIB),
    "units in any case":                   ("memory",      "4gb",             4 * GB),
    "a space before the unit":             ("memory",      "4 GB",            4 * GB),
    "spaces around":                       ("memory",      "  4GB ",          4 * GB),
    "a fraction of a unit":                ("memory",      "1.5GiB",          3 * GIB // 2),
    "to the byte":                         ("memory",      "1.000000001GB",   GB + 1),
    "a part of a byte is rounded":         ("memory",      "1.0000000014GB",  GB + 1),
    "the most there is":                   ("memory",      f"{MOST}B",        MOST),
    "the most there is, in units":         ("cpu",         Decimal(MOST) / UNIT, MOST),
    "a Decimal with a long tail":          ("cpu",         Decimal("1." + "0" * 60 + "1"), UNIT),
    "a number of numpy":                   ("cpu",         np.float64(0.5),   UNIT // 2),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value", "parts"), READ.values(), ids=READ)
def test_an_amount_is_read_exactly(name, value, parts):
    assert Resources.of({name: value})[name] == parts
    assert Resources.of(**{name: value}).parts() == ({name: parts} if parts else {})


#    spelling of the seeds     its value   here          parts
SPELLINGS = {
    "cpu_cores":              (2.5,        "cpu",        25_000),
    "memory_gb":              (4,          "memory",     4 * GB),
    "memory_gb as text":      ("0.1",      "memory",     100 * MB),
    "memory_gb with a unit":  ("512MiB",   "memory",     512 * MIB),
    "disk_gb":                (50,         "disk",       50 * GB),
    "storage":                (10,         "disk",       10 * MB),
    "storage with a unit":    ("10GB",     "disk",       10 * GB),
    "gpu_count":              (2,          "gpu",        2 * UNIT),
    "gpu_memory_gb":          (7.5,        "gpu_memory", 7_500 * MB),
    "network_bandwidth_mbps": (100,        "bandwidth",  100 * UNIT),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_seeds_spellings_mean_our_names(spelling):
    value, name, parts = SPELLINGS[spelling]
    assert Resources.of({spelling.split()[0]: value}).parts() == {name: parts}


def test_the_same_resource_in_two_spellings_is_refused():
    for spelled in ALIASES:
        ours = next(iter(Resources.of({spelled: 1})))
        with pytest.raises(InvalidRequest, match=ours):
            Resources.of({spelled: 1, ours: 1})
        with pytest.raises(InvalidRequest, match=ours):
            Resources.of({ours: 1}, **{spelled: 1})
        with pytest.raises(InvalidRequest, match=ours):
            Resources.parse(f"{ours}=1 {spelled}=1")


#    what cannot be read
UNREADABLE = {
    "negative": -1,
    "a negative fraction": -0.1,
    "a negative decimal": Decimal("-1"),
    "NaN": math.nan,
    "a signalling NaN": Decimal("sNaN"),
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "an infinite decimal": Decimal("Infinity"),
    "True": True,
    "False": False,
    "None": None,
    "a list": [1],
    "bytes": b"1",
    "a complex number": 1j,
    "an object": object(),
    "a 1e3 in text": "1e3",
    "a NaN in text": "nan",
    "an infinity in text": "inf",
    "a minus in text": "-1",
    "a plus in text": "+1",
    "no digits": "",
    "a blank": " ",
    "a word": "lots",
    "no digit before the point": ".5",
    "no digit after the point": "5.",
    "two points": "1.2.3",
    "a comma": "1,5",
    "an underscore": "1_000",
    "hexadecimal": "0x10",
    "digits of another script": "٤",
    "wide digits": "４",
    "a trailing newline": "4\n",
    "a tab": "\t4",
    "two spaces before a unit": "4  GB",
    "a NUL": "4\0",
    "an unknown unit": "4 QB",
    "a unit of bits": "4Gbit",
    "more than there can be": 10**30,
    "more than there can be, as a float": 1e30,
    "more than there can be, in text": "9" * 40,
    "more than there can be, as a decimal": Decimal("1e1000000"),
    "an integer that Python itself will not print": 10**5000,
    "a positive amount that would become 0": 1e-12,
    "the smallest float": 5e-324,
    "a decimal below every context": Decimal("1e-2000000"),
    "a kilobyte of digits": "1" * 1000,
    "an array of numpy": np.array([[1, 2], [3, 4]]),
}


@pytest.mark.parametrize("name", ["cpu", "memory", "fpga"])
@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_an_invalid_amount_is_refused_with_name_and_value(name, value):
    with pytest.raises(InvalidAmount) as caught:
        Resources.of({name: value})
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert "\n" not in message
    assert len(message) < 200
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu", "4GB"),
        ("cpu", "4k"),
        ("gpu", "1G"),
        ("memory", "4m2"),
        ("cpu", "4M"),
        ("fpga", "4B"),
    ],
)
def test_a_unit_that_the_resource_does_not_have_is_refused(name, value):
    with pytest.raises(InvalidAmount, match=name):
        Resources.of({name: value})


def test_one_part_more_than_the_most_is_refused():
    assert Resources.of(memory=f"{MOST}B")["memory"] == MOST
    with pytest.raises(InvalidAmount, match="memory"):
        Resources.of(memory=f"{MOST + 1}B")
    with pytest.raises(InvalidAmount, match="cpu"):
        Resources.of(cpu=Decimal(MOST + 1) / UNIT)


BAD_NAMES = {
    "empty": "",
    "a digit first": "1cpu",
    "a space": "my cpu",
    "an equals sign": "a=b",
    "a comma": "a,b",
    "a newline": "cpu\n",
    "a NUL": "cpu\0",
    "an umlaut": "härte",
    "64 characters": "a" * 64,
    "a megabyte": "a" * 10**6,
    "SQL": "cpu'; DROP TABLE nodes; --",
    "None": None,
    "a number": 5,
    "a tuple": ("cpu",),
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_an_invalid_name_is_refused(name):
    with pytest.raises(InvalidName) as caught:
        Resources.of({name: 1})
    assert "resource name" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_names_may_be_63_long_and_have_dots_and_slashes():
    for name in ("a" * 63, "nvidia.com/gpu", "license-x_1"):
        assert Resources.of({name: 1})[name] == UNIT


def test_too_many_names_are_refused():
    Resources.of({f"r{n}": 1 for n in range(MOST_NAMES)})
    for count in (MOST_NAMES + 1, 10_000):
        with pytest.raises(InvalidRequest, match=f"{count} names"):
            Resources.of({f"r{n}": 1 for n in range(count)})


@pytest.mark.parametrize("given", [5, 1.5, True, b"cpu=1", ["cpu"], 1j], ids=repr)
def test_anything_but_a_mapping_is_refused(given):
    with pytest.raises(InvalidRequest, match="resources"):
        Resources.of(given)


def test_every_spelling_of_the_same_amounts_is_equal():
    same = Resources.of(cpu=2, memory="4GB", fpga=1)
    assert Resources.of({"cpu": 2, "memory": 4000, "fpga": 1}) == same
    assert Resources.of({"fpga": "1", "memory_gb": 4, "cpu_cores": 2.0}) == same
    assert Resources.of("cpu=2 memory=4GB fpga=1") == same
    assert Resources.of("cpu=2", memory="4GB", fpga=1) == same
    assert Resources.of(Resources.of(cpu=2), memory=4000, fpga=1) == same
    assert Resources.of({"cpu": 2}, memory=4000, fpga=1) == same
    assert Resources.parse("cpu=2,memory=4GB, fpga=1") == same
    assert Resources.of(same) is same


def test_nothing_is_asked_for_unless_it_is_named():
    assert Resources() == Resources.of() == Resources.of({}) == Resources.parse("")
    assert Resources() == Resources.of(cpu=0, memory="0GB")
    assert not Resources()
    assert len(Resources()) == 0
    assert str(Resources()) == "nothing"
    assert Resources.parse("nothing") == Resources()


@pytest.mark.parametrize("text", ["cpu", "cpu 2", "=2", "cpu=", "cpu=2 cpu=3", "2=cpu", "cpu==2"])
def test_text_that_does_not_parse_is_refused(text):
    with pytest.raises(InvalidInput):
        Resources.parse(text)


# ---- arithmetic


def test_adding_adds_every_name_gpus_too():
    total = Resources.of(cpu=1, gpu=2, memory=100) + Resources.of(cpu=0.5, gpu=3, fpga=1)
    assert total == Resources.of(cpu=1.5, gpu=5, memory=100, fpga=1)


def test_taking_away_leaves_what_is_left_and_drops_zeros():
    left = Resources.of(cpu=4, gpu=0.5) - Resources.of(cpu=1, gpu=0.5)
    assert left == Resources.of(cpu=3)
    assert "gpu" not in left


def test_taking_away_more_than_there_is_is_our_bug():
    with pytest.raises(ValueError, match="fpga=1 missing"):
        Resources.of(cpu=4) - Resources.of(cpu=1, fpga=1)
    with pytest.raises(ValueError, match="negative"):
        Resources({"cpu": -1})


FITS = {
    "exactly": ("cpu=2 memory=1GB", "cpu=2 memory=1GB", "nothing"),
    "with room": ("cpu=2", "cpu=3 gpu=1", "nothing"),
    "nothing fits in nothing": ("nothing", "nothing", "nothing"),
    "nothing fits in anything": ("nothing", "cpu=1", "nothing"),
    "a hair too much": ("gpu=0.5001", "gpu=0.5", "gpu=0.0001"),
    "a byte too much": ("memory=1000000001B", "memory=1GB", "memory=1B"),
    "a name that is not there": ("gpu=1", "cpu=8", "gpu=1"),
    "two are short": ("cpu=3 gpu=1 disk=1GB", "cpu=1 disk=2GB", "cpu=2 gpu=1"),
}


@pytest.mark.parametrize(("asked", "free", "missing"), FITS.values(), ids=FITS)
def test_fitting_and_what_is_missing_agree(asked, free, missing):
    asked, free, missing = (Resources.parse(text) for text in (asked, free, missing))
    assert asked.shortfall(free) == missing
    assert asked.fits_in(free) is (missing == Resources())


def test_ten_thousand_tenths_come_back_to_exactly_nothing():
    tenth, held = Resources.of(cpu=0.1, gpu=0.1), Resources()
    for _ in range(10_000):
        held += tenth
    assert held == Resources.of(cpu=1000, gpu=1000)
    for _ in range(10_000):
        held -= tenth
    assert held == Resources()
    assert held.parts() == {}


def test_without_leaves_names_out():
    assert Resources.of(cpu=1, gpu=1, fpga=1).without("gpu", "fpga", "x") == Resources.of(cpu=1)


# ---- text both ways

NAMES = st.one_of(
    st.sampled_from(KNOWN), st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,62}", fullmatch=True)
).filter(lambda name: name not in ALIASES)
PARTS = st.one_of(st.integers(1, MOST), st.integers(1, 10**7), st.sampled_from([MB, GB, GIB, TIB]))
VECTORS = st.dictionaries(NAMES, PARTS, max_size=6).map(Resources)


@given(VECTORS)
def test_parsing_reads_what_printing_writes(vector):
    assert Resources.parse(str(vector)) == vector
    assert Resources.of(str(vector)) == vector
    assert eval(repr(vector), {"Resources": Resources.of}) == vector


@given(VECTORS)
@example(Resources({"cpu": MOST - 4}))
def test_a_dict_of_plain_values_is_read_back(vector):
    assert Resources.of(vector.to_dict()) == vector


@given(VECTORS, VECTORS)
def test_adding_then_taking_away_leaves_what_was_there(one, other):
    assert one + other == other + one
    assert (one + other) - other == one
    assert one.fits_in(one + other)
    assert (one.shortfall(other) == Resources()) is one.fits_in(other)
    assert one.fits_in(other + one.shortfall(other))


@given(st.dictionaries(NAMES, PARTS, max_size=6), st.randoms(use_true_random=False))
def test_equal_whatever_the_order_and_equal_hashes(parts, chance):
    items = list(parts.items())
    chance.shuffle(items)
    shuffled = Resources(dict(items))
    assert shuffled == Resources(parts)
    assert hash(shuffled) == hash(Resources(parts))
    assert list(shuffled) == sorted(parts)
    assert str(shuffled) == str(Resources(parts))


#    vector                                 as text
PRINTED = {
    "cpu=2": "cpu=2",
    "memory=4000": "memory=4GB",
    "memory=4GiB": "memory=4GiB",
    "memory=1500MB": "memory=1.5GB",
    "memory=1": "memory=1MB",
    "memory=7B": "memory=7B",
    "memory=1234567B": "memory=1234.567kB",
    "memory=1234567891B": "memory=1234567.891kB",
    "memory=1073741825B": "memory=1073741.825kB",
    "memory=1234kB": "memory=1.234MB",
    "disk=3TB": "disk=3TB",
    "disk=2PB": "disk=2PB",
    "gpu=0.5 cpu=1": "cpu=1 gpu=0.5",
    "cpu=0.0001": "cpu=0.0001",
    "cpu=1.2500": "cpu=1.25",
    "storage=5": "disk=5MB",
}


@pytest.mark.parametrize("text", PRINTED)
def test_an_amount_is_printed_in_the_unit_that_shows_it_briefly(text):
    assert str(Resources.parse(text)) == PRINTED[text]


# ---- a value


def test_different_amounts_are_not_equal():
    assert Resources.of(cpu=1) != Resources.of(cpu=2)
    assert Resources.of(cpu=1) != Resources.of(gpu=1)
    assert Resources.of(cpu=1) != {"cpu": UNIT}
    assert len({Resources.of(cpu=1), Resources.of(cpu=1.0), Resources.of(cpu=2)}) == 2


def test_it_cannot_be_changed():
    vector = Resources.of(cpu=1, memory=100)
    before = str(vector)
    with pytest.raises(TypeError):
        vector["cpu"] = 5
    with pytest.raises(TypeError):
        del vector["cpu"]
    with pytest.raises(AttributeError):
        vector.cpu = 5
    vector.parts()["cpu"] = 5
    vector.to_dict()["cpu"] = 5
    given = {"cpu": 10_000}
    made = Resources(given)
    given["cpu"] = 1
    assert made == Resources.of(cpu=1)
    assert str(vector) == before


def test_its_public_attributes_cannot_be_set():
    vector = Resources.of(cpu=1)
    for name in (name for name in dir(vector) if not name.startswith("_")):
        with pytest.raises(AttributeError):
            setattr(vector, name, ())


def test_it_copies_and_pickles():
    vector = Resources.of(cpu=1, memory="1GiB")
    for again in (copy.copy(vector), copy.deepcopy(vector), pickle.loads(pickle.dumps(vector))):
        assert again == vector
        assert hash(again) == hash(vector)


def test_a_pickle_read_by_another_process_finds_itself_in_a_dict():
    vector = Resources.of(cpu=1, memory="1GiB")
    hash(vector)
    code = (
        "import pickle, sys; from gridhand import Resources\n"
        "read = pickle.load(sys.stdin.buffer)\n"
        "assert read in {Resources.of(cpu=1, memory='1GiB'): 1}"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(vector), check=True)


def test_the_callers_decimal_context_does_not_matter():
    def read():
        return Resources.of(
            cpu=0.123456, memory="1.234567891GB", gpu=Decimal("0.33335"), fpga="123456.7891"
        )

    plain = read()
    every_signal = [decimal.Inexact, decimal.Rounded, decimal.FloatOperation, decimal.Subnormal]
    for context in (
        decimal.Context(prec=1),
        decimal.Context(prec=3, rounding=decimal.ROUND_UP),
        decimal.Context(prec=28, traps=every_signal),
        decimal.Context(Emax=1, Emin=-1),
    ):
        with decimal.localcontext(context):
            assert read() == plain
            assert str(plain) == str(read())
            with pytest.raises(InvalidAmount):
                Resources.of(cpu=math.nan)


def test_byte_like_names_are_these():
    assert frozenset({"memory", "gpu_memory", "disk"}) == BYTES
    assert KNOWN == ("cpu", "memory", "disk", "gpu", "gpu_memory", "bandwidth")


def test_random_amounts_never_drift():
    chance = random.Random(7)
    held, taken = Resources(), []
    for _ in range(2000):
        if taken and chance.random() < 0.5:
            held -= taken.pop(chance.randrange(len(taken)))
        else:
            taken.append(
                Resources.of(cpu=round(chance.random(), 3) + 0.001, memory=chance.random() + 1)
            )
            held += taken[-1]
    while taken:
        held -= taken.pop()
    assert held == Resources()


# ---- examples in docstrings


def modules(package):
    walk = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [found.name for found in walk]


@pytest.mark.parametrize("name", modules(gridhand.core) + modules(gridhand.library))
def test_the_examples_in_the_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples_in_the_docstrings():
    found = sum(
        len(test.examples)
        for name in modules(gridhand.core) + modules(gridhand.library)
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
    )
    assert found >= 8
