"""A real controller for the functions of each module, begun by `Grid()` itself."""

import os
import shutil
import tempfile

import pytest

from gridhand import Grid, Request
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.home import Home
from gridhand.library.functions.function_runner import FunctionCall, close_runner
from gridhand.library.pool.pool import Pool
from until import until


class Tools:
    """What the test modules share."""

    ONE = Request.of(cpu=1)
    SMALL = Request.of(cpu=0.1)

    @staticmethod
    def call(code, *args, request=None, limit=None, **kwargs):
        name = getattr(code, "__name__", "")
        return FunctionCall(code, request or Tools.SMALL, args, kwargs, name, limit)

    @staticmethod
    def value(future, timeout=60):
        return future.result(timeout).value.load()

    until = staticmethod(until)


@pytest.fixture
def tools():
    return Tools


@pytest.fixture(scope="module")
def home():
    """A folder for a controller; whatever runs there at the end is ended."""
    folder = tempfile.mkdtemp(prefix="gh")
    home = Home(os.path.join(folder, "h"))
    yield home
    with Client(Address(home.socket)) as client:
        facts = client.probe()
        if facts is not None:
            client.stop(jobs="kill")
    if facts is not None:
        Tools.until(lambda: not os.path.exists(f"/proc/{facts['pid']}"), 30)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def here(home, monkeypatch):
    monkeypatch.delenv("GRIDHAND_ADDRESS", raising=False)
    monkeypatch.setenv("GRIDHAND_HOME", home.folder)


@pytest.fixture
def grid():
    with Grid() as grid:
        yield grid
        close_runner(grid)
        assert grid.check() == []
        assert not grid.allocations()


@pytest.fixture
def pool(grid):
    pool = Pool(grid._backend, grid.owner)
    yield pool
    pool.close()
    assert not grid.allocations()
    if pool._folder is not None:
        assert not any(os.path.exists(folder) for folder in pool._folder.folders)
