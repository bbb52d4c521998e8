"""The README and the guides are programs: their examples run, and print what the page says."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import psutil
import pytest

from gridhand.cli.commands.run import run
from gridhand.cli.main import COMMANDS, make_cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([README, *(ROOT / "docs").glob("*.md")])
PLAYED = [README, ROOT / "docs" / "jobs.md"]  # whose commands are run; others need what is not here
GRID = [sys.executable, "-m", "gridhand.cli.main"]
_BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- end of block --"
_ANY = "…"


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _BLOCK.finditer(page.read_text())]


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[dict[str, str]]:
    """Variables that lead to a controller of its own; nothing of it is left at the end."""
    home = folder / "home"
    # A page is run as a reader would run it, not measured for coverage: that is twice as slow.
    ours = ("GRIDHAND_", "COVERAGE_")
    env = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", os.defpath)])
    env |= {"GRIDHAND_HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8"}
    try:
        yield env
    finally:
        # Its jobs first, and with it agent and starter; if it hangs, there is the other way.
        with contextlib.suppress(subprocess.TimeoutExpired):
            stop = [*GRID, "stop", "--kill-jobs"]
            subprocess.run(stop, env=env, capture_output=True, timeout=30, check=False)
        left = [one for one in psutil.process_iter() if _is_of(one, str(home))]
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=10)


def _is_of(process: psutil.Process, home: str) -> bool:
    try:
        if process.environ().get("GRIDHAND_HOME") == home:
            return True
        return any(word == home or word.startswith(f"{home}/") for word in process.cmdline())
    except psutil.Error:
        return False


# ---- python


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
    with machine(tmp_path) as env:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            cwd=tmp_path,
            env=env,
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


# ---- commands


class Step(NamedTuple):
    """A command of a page, and what it should print."""

    command: str
    said: str

    def printed(self, text: str) -> bool:
        """Whether it may print this: `…` is any text in a line, alone any number of lines."""
        lines = self.said.splitlines()
        wanted = "".join(
            r"(?:.*\n)*" if line == _ANY else ".*".join(map(re.escape, line.split(_ANY))) + r"\n"
            for line in lines
        )
        text = as_elsewhere(text)
        whole = text if text.endswith("\n") or not text else f"{text}\n"
        return re.fullmatch(wanted, re.sub(r"[ \t]+$", "", whole, flags=re.MULTILINE)) is not None


def as_elsewhere(text: str) -> str:
    """Remove from printed text what differs from one machine to the next.

    Whether a job waits for a second, so that it says why, depends on how fast the machine is, and
    whether there is a warning of controllers of other users on whether it has any.
    """
    odd = r"^grid: (job \S+ waits: |warning: another controller, of user ).*\n"
    return re.sub(odd, "", text, flags=re.MULTILINE)


def steps(page: Path) -> list[Step]:
    """The commands of a page in order; what stands before the first of a block is a mistake."""
    found = []
    for text in (text for kind, text in blocks(page) if kind == "console"):
        before, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
        assert not before, f"a console block begins with a command, and not with {before!r}"
        found += [Step(*part.split("\n", 1)) for part in parts]
    return found


def play(page: Path, folder: Path, env: dict[str, str]) -> None:
    """Run the commands of a page. One that does not end with 0 must say so, by `echo $?`."""
    ended: subprocess.CompletedProcess[str] | None = None
    for step in steps(page):
        if step.command == "echo $?":
            assert ended is not None, f"{page.name}: nothing has been run before {step.command!r}"
            assert step.said == f"{ended.returncode}\n", f"{ended.args} ended {ended.returncode}"
            ended = None
            continue
        _must_have_succeeded(ended)
        program, *words = shlex.split(step.command)
        assert program in ("grid", "./grid"), f"{page.name}: {step.command!r} is not ours to run"
        ended = subprocess.run(
            [*GRID, *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # in the order in which a terminal shows them
            text=True,
            timeout=60,
            check=False,
        )
        assert step.printed(ended.stdout), (
            f"{page.name}: {step.command}\nprinted:\n{ended.stdout}\ninstead of:\n{step.said}"
        )
    _must_have_succeeded(ended)


def _must_have_succeeded(ended: subprocess.CompletedProcess[str] | None) -> None:
    assert ended is None or ended.returncode == 0, f"{ended.args} ended {ended.returncode}"


@pytest.mark.parametrize("page", PLAYED, ids=lambda page: page.stem)
def test_every_command_prints_what_the_page_says(page, tmp_path):
    with machine(tmp_path) as env:
        # The first command says that it started a controller; who reads a page may have one.
        subprocess.run([*GRID, "status"], env=env, capture_output=True, timeout=60, check=True)
        play(page, tmp_path, env)


VERSION = "$ grid --version\n"
WRONG = "$ grid nonsense\nerror: there is no command 'nonsense'\n…\n"
LIES = {
    "another output": f"{VERSION}grid 0.0.0\n",
    "no output at all": VERSION,
    "a line too many": f"{VERSION}grid …\nand more\n",
    "any text, but only within a line": "$ grid --help\nUsage: …\n",
    "a failure that is not shown": WRONG,
    "a failure before another command": f"{WRONG}{VERSION}grid …\n",
    "another exit code": f"{WRONG}$ echo $?\n1\n",
    "an exit code of nothing": "$ echo $?\n0\n",
    "a command that is not run": "$ ls\n…\n",
    "output without a command": f"hello\n{VERSION}grid …\n",
}
TRUTHS = {
    "any text": f"{VERSION}grid …\n",
    "any lines": "$ ./grid --help\nUsage: …\n…\n  run   …\n…\n",
    "any lines, and there are none": f"{VERSION}…\ngrid …\n…\n",
    "a failure and its exit code": f"{WRONG}$ echo $?\n125\n",
    "quoted words": "$ grid 'non sense'\nerror: there is no command 'non sense'\n…\n$ echo $?\n125\n",
}


def test_what_differs_between_machines_is_no_lie():
    sentence = "killed: out of memory (limit 50 MB, peak 310 MB)\n"
    waiting = "grid: job 7 waits: no room for cpu=1: …\n"
    step = Step(
        "grid run true",
        "grid: job 7: killed: out of memory (limit 50 MB, peak …)\n",
    )
    assert step.printed(f"{waiting}grid: job 7: {sentence}")
    assert not step.printed(f"grid: job 8: {sentence}")


def page_of(console: str, folder: Path) -> Path:
    page = folder / "page.md"
    page.write_text(f"Text.\n\n```console\n{console}```\n")
    return page


@pytest.mark.parametrize("console", LIES.values(), ids=LIES)
def test_a_command_that_lies_would_be_caught(console, tmp_path):
    with pytest.raises(AssertionError):
        play(page_of(console, tmp_path), tmp_path, dict(os.environ))


@pytest.mark.parametrize("console", TRUTHS.values(), ids=TRUTHS)
def test_a_command_that_tells_the_truth_is_believed(console, tmp_path):
    play(page_of(console, tmp_path), tmp_path, dict(os.environ))


def test_nothing_is_left_of_a_page_that_fails(tmp_path):
    page = page_of("$ grid run -d -q -- sleep 600\n…\n1\n$ grid run -d true\nno\n", tmp_path)
    with pytest.raises(AssertionError, match="instead of"), machine(tmp_path) as env:
        play(page, tmp_path, env)
    assert not [one for one in psutil.process_iter() if _is_of(one, env["GRIDHAND_HOME"])]


def test_the_first_command_of_the_readme_is_a_job():
    assert steps(README)[0] == Step(
        """./grid run -c 1 --mem 200MB -- python3 -c 'print("hello from the grid")'""",
        "hello from the grid\n",
    )


# ---- the rest


def options(command: click.Command) -> set[str]:
    """All that a command and those in it take."""
    found = {name for param in command.params for name in param.opts} | {"--help", "-h"}
    if isinstance(command, click.Group):
        with click.Context(command) as ctx:
            inner = [command.get_command(ctx, name) for name in command.list_commands(ctx)]
        return found.union(*(options(one) for one in inner if one is not None))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_option_that_a_page_names_is_there(page):
    cli = make_cli(COMMANDS)
    for name, words in re.findall(r"[`$] ?(?:\./)?grid ([a-z-]+)([^`\n]*)", page.read_text()):
        with click.Context(cli) as ctx:
            command = cli.get_command(ctx, name)
        assert command is not None, f"there is no `grid {name}`"
        ours = words.partition(" -- ")[0].split("'")[0]
        unknown = set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", ours, re.IGNORECASE)) - options(command)
        assert not unknown, f"`grid {name}` has no {', '.join(unknown)}"


def test_the_guide_to_jobs_and_the_help_of_run_name_the_same_options():
    """What `grid run` takes is told there, and nothing else is."""
    guide = (ROOT / "docs" / "jobs.md").read_text() + (ROOT / "docs" / "resources.md").read_text()
    missing = [
        names
        for names in (param.opts for param in run.params if isinstance(param, click.Option))
        if not any(re.search(rf"(?<![\w-]){name}(?![\w-])", guide) for name in names)
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_modules_that_contributing_names_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = [path.name for path in (ROOT / "src/gridhand").iterdir() if path.is_dir()]
    named = re.findall(rf"`((?:{'|'.join(rooms)})(?:/[\w/.]+)?)`", page)
    assert len(named) > 50
    assert [name for name in named if not (ROOT / "src/gridhand" / name).exists()] == []
