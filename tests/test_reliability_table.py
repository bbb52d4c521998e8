"""The table of faults in `docs/reliability.md` is complete, and the tests that it names exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"
UNUSED = {12}
LAST = 99  # of the rows that were there first; later ones follow without a gap
MOST_MISSING = 0  # may only go down

_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_NAMED = re.compile(rf"{_TEST.pattern}(, {_TEST.pattern})?")
_NOT_YET = re.compile(
    rf"not yet: [\w ]+(\. (On one machine|In the controller): {_NAMED.pattern})*", re.IGNORECASE
)


class Row(NamedTuple):
    number: int
    fault: str
    expected: str
    state: str


def rows() -> list[Row]:
    found = _ROW.findall(PAGE.read_text())
    return [Row(int(number), fault, expected, state) for number, fault, expected, state in found]


@functools.cache
def functions_of(path: str) -> set[str]:
    """Return the names of the test functions of a file, without the ids of their parameters."""
    if not (ROOT / path).is_file():
        return set()
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions}


AREAS = {
    "bind", "tokens", "scopes", "owners", "agents", "browser", "commands", "paths", "requests to others", "floods",
    "odd requests", "secrets", "database", "audit", "data", "metrics", "supply",
}  # fmt: skip


def test_every_security_control_has_its_tests():
    page = PAGE.read_text().partition("## Security controls")[2]
    controls = re.findall(r"^\| ([a-z ]+) \| (.+) \| (.+) \|$", page, re.MULTILINE)[1:]
    assert {area for area, _, _ in controls} == AREAS
    listed = re.compile(rf"{_TEST.pattern}(, {_TEST.pattern})*")
    assert [area for area, _, tests in controls if not listed.fullmatch(tests)] == []


def test_every_number_is_there_once_and_in_order():
    numbers = [row.number for row in rows()]
    last = max(LAST, *numbers)
    assert numbers == [number for number in range(1, last + 1) if number not in UNUSED]


def test_no_row_is_overlooked():
    lines = re.findall(r"^\| *\d.*$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == len(rows())


def test_every_named_test_exists():
    named = _TEST.findall(PAGE.read_text())
    assert len(named) > 100
    unknown = [f"{path}::{name}" for path, name in named if name not in functions_of(path)]
    assert unknown == []


def test_every_row_has_tests_or_says_why_not():
    states = (_NAMED, _NOT_YET, re.compile("missing"))
    odd = [row for row in rows() if not any(state.fullmatch(row.state) for state in states)]
    assert odd == []


def test_no_more_rows_are_without_a_test_than_before():
    missing = [row.number for row in rows() if row.state == "missing"]
    assert len(missing) <= MOST_MISSING, missing
