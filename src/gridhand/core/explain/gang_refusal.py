"""Refusals of gangs: too few nodes have room at once, or could ever have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridhand.core.errors import GridError, NeverFits, NoRoom, UnknownResource
from gridhand.core.explain.refusal import Refusal
from gridhand.core.explain.survey import could_hold
from gridhand.core.model.amount_text import request_text
from gridhand.core.model.requests import Request
from gridhand.core.placement.snapshot import permits

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot


class GangRefusal(Refusal):
    """Not so many nodes have room now. Like any refusal, it is looked into when it is read."""

    def __init__(self, asked: Request, snapshot: Snapshot, nodes: int) -> None:
        super().__init__(asked, snapshot)
        self.nodes = nodes
        self._numbers: tuple[int, int] | None = None  # nodes with room, and with enough at all

    def settled(self) -> GangRefusal:
        self._count()
        super().settled()
        return self

    @property
    def ever(self) -> bool:
        return self._count()[1] >= self.nodes

    def sentence(self) -> str:
        free, able = self._count()
        asked = request_text(self.asked.resources)
        if able < self.nodes:
            has = "node has" if able == 1 else "nodes have"
            return f"{self.nodes} nodes with {asked} each are needed, but only {able} {has} that"
        have = "node has" if free == 1 else "nodes have"
        return f"{self.nodes} nodes with room for {asked} each are needed, and {free} {have} it now"

    def hint(self) -> str:
        if self.ever:
            return "Ask for fewer nodes or less on each, or wait until more nodes have room."
        return "Waiting will not help: ask for fewer nodes or less on each, or register more nodes."

    def error(self) -> GridError:
        error = super().error()
        if isinstance(error, UnknownResource):
            return error
        return NoRoom(self) if self.ever else NeverFits(self)

    def _count(self) -> tuple[int, int]:
        if self._numbers is None:
            free, able = fitting_nodes(self.asked, self._seen())
            self._numbers = free, able
        return self._numbers


def fitting_nodes(asked: Request, snapshot: Snapshot) -> tuple[int, int]:
    """Return how many nodes have room for the request now, and how many could hold it if empty."""
    free = able = 0
    for use in snapshot.ledger.nodes.values():
        pins = None, use.node.name
        choices = [one for one in asked.choices() if one.node in pins and permits(one, use)]
        able += any(could_hold(one, use.node) for one in choices)
        if use.open:
            free += any(snapshot.room(one, use) is not None for one in choices)
    return free, able
