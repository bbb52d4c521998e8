"""Where the graphs of these tests run: in threads of this process, and on real processes."""

import os
import shutil
import subprocess
import sys
import tempfile

import cloudpickle
import pytest

import graph_functions
import note_folder
from gridhand import Grid


@pytest.fixture(scope="session")
def home():
    """A folder for a controller; whatever runs there at the end is ended."""
    folder = tempfile.mkdtemp(prefix="gh")
    yield folder
    program = [sys.executable, "-m", "gridhand.cli.main", "stop", "--kill-jobs"]
    env = {**os.environ, "GRIDHAND_HOME": folder}
    env.pop("GRIDHAND_ADDRESS", None)
    subprocess.run(program, env=env, capture_output=True, timeout=60, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def processes(request, home, monkeypatch):
    """The grid of a real controller, with nothing but the two nodes to give."""
    monkeypatch.delenv("GRIDHAND_ADDRESS", raising=False)
    monkeypatch.setenv("GRIDHAND_HOME", home)
    for module in (request.module, graph_functions, note_folder):
        cloudpickle.register_pickle_by_value(module)  # workers cannot import it
    with Grid() as grid:
        for one in grid.nodes():
            if one.name not in graph_functions.TWO_NODES:
                grid.unregister(one.name)
        yield grid


@pytest.fixture(params=["in memory", "in a file", "on processes"])
def grid(request, tmp_path):
    """A grid with two nodes, which holds nothing at the end."""
    yield from furnished(request, tmp_path)


@pytest.fixture(params=["in memory", "in a file"])
def inner(request, tmp_path):
    """The same, where the ledger is kept in this process: tests look into it."""
    yield from furnished(request, tmp_path)


@pytest.fixture(params=["on processes"])
def outer(request, tmp_path):
    """The same, where functions are called in other processes."""
    yield from furnished(request, tmp_path)


def furnished(request, tmp_path):
    with opened(request, tmp_path) as found:
        graph_functions.register(found, graph_functions.TWO_NODES)
        yield found
        graph_functions.holds_nothing(found)


def opened(request, tmp_path):
    if request.param == "on processes":
        return request.getfixturevalue("processes")
    if request.param == "in a file":
        return Grid.at(str(tmp_path / "grid.db"))
    return Grid.in_memory(owner="ann")


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return note_folder.Notes(str(folder))
