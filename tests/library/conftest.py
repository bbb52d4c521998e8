"""The grid that the library's tests use: the same in memory, in a file, and at a controller."""

import pytest

from gridhand import Grid
from nodeless_controller import Running


@pytest.fixture(autouse=True)
def nobody_elses_controller(monkeypatch, tmp_path):
    """`Grid()` in a test finds no controller, and starts none, unless the test says otherwise."""
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{tmp_path}/nowhere")
    monkeypatch.setenv("GRIDHAND_HOME", str(tmp_path / "no-home"))


@pytest.fixture(params=["in memory", "in a file", "at a controller"])
def grid(request, tmp_path):
    if request.param == "at a controller":
        with (
            Running(tmp_path / "home") as server,
            Grid(backend=server.backend(), owner="ann") as it,
        ):
            yield it
            assert it.check() == []
        return
    opened = (
        Grid.in_memory(owner="ann")
        if request.param == "in memory"
        else Grid.at(str(tmp_path / "grid.db"), owner="ann")
    )
    with opened:
        yield opened
        assert opened.check() == []
