"""The examples of the README and the guides are programs: each page runs, and prints what it says."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- end of block --"


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _BLOCK.finditer(page.read_text())]


def expected(page: Path) -> list[str]:
    """What each Python block should print: the text block right after it, or nothing."""
    found = [*blocks(page), ("", "")]
    return [
        after if kind == "text" else ""
        for (code, _), (kind, after) in itertools.pairwise(found)
        if code == "python"
    ]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if expected(page)], ids=lambda page: page.stem
)
def test_every_example_prints_what_the_page_says(page, tmp_path):
    programs = [text for kind, text in blocks(page) if kind == "python"]
    script = "".join(f"{program}\nprint({_MARK!r})\n" for program in programs)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{_MARK}\n")[:-1]
    assert printed == expected(page)


def test_a_page_that_lies_would_be_caught(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError):
        test_every_example_prints_what_the_page_says(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_shows_what_the_command_prints():
    [console] = [text for kind, text in blocks(ROOT / "README.md") if kind == "console"]
    command, printed = console.strip().split("\n")
    assert command == "$ ./grid --version"
    grid = Path(sys.executable).with_name("grid")
    done = subprocess.run([grid, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed
