"""The tool that plants faults: what it says of one, and that the tests find those in its table."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def plant():
    spec = importlib.util.spec_from_file_location("plant", ROOT / "tools" / "plant.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["plant"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["plant"]


CASES = {
    "found": ("return (amount * 6 + 4) // 5", "return amount"),
    "missed": ("# there is nothing to start from", "# there is nothing"),
    "stale": ("this is not in the file", ""),
}
TESTS = ["core/jobs/test_retry_policy.py"]


def test_a_fault_is_found_or_missed_and_one_that_is_not_there_is_stale(plant, tmp_path):
    lines = []
    for name, (old, new) in CASES.items():
        fields = {"name": name, "file": "core/jobs/retry_policy.py", "old": old, "new": new}
        lines += ["[[fault]]", *(f"{key} = {json.dumps(text)}" for key, text in fields.items())]
        lines += [f"tests = {json.dumps(TESTS)}", ""]
    table = tmp_path / "faults.toml"
    table.write_text("\n".join(lines))
    honest = (ROOT / "src/gridhand/core/jobs/retry_policy.py").read_text()
    outcomes = plant.plant(plant.read_table(table), quiet=True)
    assert {one.fault.name: one.verdict for one in outcomes} == {name: name for name in CASES}
    assert plant.summary(outcomes) == {
        "planted": 3, "found": 1, "missed": 1, "stale": 1, "unsound": 0,
    }  # fmt: skip
    assert (ROOT / "src/gridhand/core/jobs/retry_policy.py").read_text() == honest


def test_every_fault_of_the_table_has_a_name_of_its_own_and_changes_something(plant):
    faults = plant.read_table()
    assert len({fault.name for fault in faults}) == len(faults) >= 100
    for fault in faults:
        assert fault.old != fault.new, fault.name
        assert fault.tests, fault.name


def test_every_fault_of_the_table_can_still_be_planted(plant):
    """Its text is in the file just once, and the files of its tests are there."""
    stale = [
        fault.name
        for fault in plant.read_table()
        if (ROOT / plant.SOURCE / fault.file).read_text().count(fault.old) != 1
        or not all((ROOT / "tests" / test.partition("::")[0]).exists() for test in fault.tests)
    ]
    assert stale == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nine_of_ten_planted_faults_are_found(plant):
    outcomes = plant.plant(plant.read_table(), jobs=2)
    counts = plant.summary(outcomes)
    for outcome in outcomes:
        if outcome.verdict != "found":
            print(plant.line_of(outcome))
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    assert counts["stale"] == counts["unsound"] == 0
    assert counts["found"] >= 0.9 * counts["planted"] >= 90
