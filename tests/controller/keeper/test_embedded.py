"""Operations of this process on a keeper of its own."""

import pytest

from gridhand import Grid
from gridhand.controller.keeper.embedded import Embedded
from until import until


@pytest.mark.parametrize("when", ["before it waits", "before it returns"])
def test_an_interrupt_at_any_point_of_an_allocation_leaves_nothing_held(monkeypatch, when):
    sent = Embedded.submit

    def interrupted(self, tickets):
        sent(self, tickets)
        if when == "before it returns":
            until(lambda: tickets[0].done)
        raise KeyboardInterrupt

    with Grid.in_memory() as grid:
        grid.register_node("a", cpu=4)
        with monkeypatch.context() as patched:
            patched.setattr(Embedded, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                grid.allocate(cpu=4)
        until(lambda: grid.allocations() == [])
        assert grid.allocate(cpu=4)
