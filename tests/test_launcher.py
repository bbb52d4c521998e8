"""`./grid` makes its own environment: at once, for everyone, and whatever was left behind.

These install for real, in copies of the project, because what they show (locks, kills, paths
with spaces) is in what pip, venv and the shell do together.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gridhand

ROOT = Path(__file__).parent.parent
NEEDED = ["LICENSE", "README.md", "constraints.txt", "grid", "pyproject.toml", "src", "tools"]
VERSION = f"grid {gridhand.__version__}\n"

# Room for a slow network.
pytestmark = pytest.mark.timeout(600)

# Nothing is run often enough for its bytecode to pay.
QUICK = {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}


def lean(tree: Path) -> Path:
    """Leave `grid --version` alone to be installed: the rest would take most of the time."""
    file = tree / "pyproject.toml"
    before, _, rest = file.read_text().partition("\ndependencies = [")
    after = rest.partition("\n]")[2]
    file.write_text(f'{before}\ndependencies = ["click"]{after}')
    return tree


def copy_project(folder: Path) -> Path:
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
            )
        elif source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    return folder


def start(program: Path | str, *arguments: str, env: dict[str, str] | None = None, **options):
    return subprocess.Popen(
        [program, *arguments],
        env=os.environ | QUICK | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def grid(tree: Path, **options) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `./grid --version` in that tree."""
    return ended(start(tree / "grid", "--version", **options))


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


@pytest.fixture(scope="module")
def first_uses(tmp_path_factory):
    """A fresh copy and what its first two uses, at the same moment, had to say."""
    tree = lean(copy_project(tmp_path_factory.mktemp("launcher") / "a project"))
    both = [start(tree / "grid", "--version") for _ in range(2)]
    return tree, [ended(process) for process in both]


@pytest.fixture
def tree(first_uses):
    """A copy whose environment is whole."""
    return first_uses[0]


def test_two_first_uses_at_once_make_one_environment(first_uses):
    _, uses = first_uses
    assert [(code, out) for code, out, _ in uses] == [(0, VERSION)] * 2
    lines = sorted(err for _, _, err in uses)
    assert lines == [
        "grid: setting up .venv (once, about 20 s) ...\n",
        "grid: waiting for another set-up of .venv ...\n",
    ]


def test_later_uses_say_nothing_and_start_nothing_else(tree):
    # Without a PATH the shell finds none but its own commands.
    assert grid(tree, env={"PATH": ""}) == (0, VERSION, "")


def test_it_works_through_links_and_from_elsewhere(tree, tmp_path):
    (tmp_path / "direct").symlink_to(tree / "grid")
    (tmp_path / "folder").symlink_to(tree)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "relative").symlink_to("../direct")
    for path in ("direct", "folder/grid", "links/relative"):
        assert ended(start(tmp_path / path, "--version", cwd="/")) == (0, VERSION, "")
        assert ended(start(f"./{path}", "--version", cwd=tmp_path)) == (0, VERSION, "")
    assert ended(start("sh", "grid", "--version", cwd=tree)) == (0, VERSION, "")


def test_arguments_and_exit_code_pass_through(tree):
    code, _, err = ended(start(tree / "grid", "no such", "--x"))
    assert code == 125
    assert "there is no command 'no such'" in err


def test_a_touched_file_is_not_installed_again(tree):
    stamp = (tree / ".venv" / "installed").read_text()
    for name in ("pyproject.toml", "constraints.txt"):
        (tree / name).touch()
        assert grid(tree, env=OFFLINE) == (0, VERSION, "")
        assert grid(tree, env={"PATH": ""}) == (0, VERSION, "")  # and is not looked at again
    assert (tree / ".venv" / "installed").read_text() == stamp


def test_a_changed_file_is(tree):
    with (tree / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert grid(tree) == (0, VERSION, "grid: updating .venv ...\n")
    assert grid(tree, env={"PATH": ""}) == (0, VERSION, "")


def test_a_copied_environment_is_not_used(tree, tmp_path):
    copy = shutil.copytree(tree, tmp_path / "a copy", symlinks=True)
    code, out, err = grid(copy, env=OFFLINE)
    assert (code, out) == (125, "")
    assert err.startswith("grid: setting up .venv")
    assert not (copy / ".venv" / "installed").exists()


def test_a_failure_shows_what_pip_said_and_what_to_do(tmp_path):
    tree = copy_project(tmp_path / "offline")
    code, out, err = grid(tree, env=OFFLINE)
    assert (code, out) == (125, "")
    first, *said, error, hint = err.splitlines()
    assert first.startswith("grid: setting up .venv")
    assert any("ERROR: " in line for line in said)
    assert error == "error: could not install into .venv"
    assert hint.startswith("hint: ")


def test_a_killed_first_use_is_repaired(tmp_path):
    """Even while what it had started goes on: an orphaned pip keeps the lock until it ends."""
    tree = lean(copy_project(tmp_path / "killed"))
    with socket.create_server(("127.0.0.1", 0)) as silent_index:
        host, port = silent_index.getsockname()
        slow = {"PIP_INDEX_URL": f"http://{host}:{port}/", "PIP_RETRIES": "0"}
        first = start(sys.executable, str(tree / "tools" / "bootstrap.py"), env=slow)
        with silent_index.accept()[0]:  # pip is at work, and waits for an answer
            first.kill()
            first.wait()
            with (tree / ".venv.lock").open() as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            second = start(tree / "grid", "--version")
            assert second.stderr.readline() == "grid: waiting for another set-up of .venv ...\n"
            (tree / ".venv" / "left behind").touch()
    first.stdout.close()
    first.stderr.close()
    assert ended(second) == (0, VERSION, "")
    assert not (tree / ".venv" / "left behind").exists()
    assert grid(tree, env={"PATH": ""}) == (0, VERSION, "")


def test_an_old_python_is_not_enough(tmp_path):
    tree = copy_project(tmp_path / "old")
    old = tmp_path / "bin" / "python3"
    old.parent.mkdir()
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.18\n')
    old.chmod(0o755)
    code, out, err = grid(tree, env={"PATH": str(old.parent)})
    assert (code, out) == (125, "")
    assert err.startswith(
        "error: Gridhand needs Python 3.11 or newer, and PATH has Python 3.8.18\n"
    )
    assert "hint: " in err


def test_a_newer_python_is_found_under_its_own_name(tmp_path):
    tree = copy_project(tmp_path / "found")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "python3.12").symlink_to(sys.executable)
    found = start(tree / "tools" / "python", "-c", "print('here')", env={"PATH": str(tmp_path)})
    assert ended(found) == (0, "here\n", "")
