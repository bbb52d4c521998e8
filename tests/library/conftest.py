"""The grid that the library's tests use: the same in memory and in a file."""

import pytest

from gridhand import Grid


@pytest.fixture(params=["in memory", "in a file"])
def grid(request, tmp_path):
    opened = (
        Grid.in_memory(owner="ann")
        if request.param == "in memory"
        else Grid.at(str(tmp_path / "grid.db"), owner="ann")
    )
    with opened:
        yield opened
        assert opened.check() == []
