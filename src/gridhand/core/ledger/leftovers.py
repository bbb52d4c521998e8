"""Attempts that were given up and may still have processes: their nodes take no new work.

This is observed, like the use by foreign processes, and never stored: a new controller asks the
nodes what runs there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gridhand.core.model.names import AttemptKey, NodeName

if TYPE_CHECKING:
    from gridhand.core.ledger.ledger import Ledger


class Leftovers:
    """The attempts to wait for, by node. A node is in it while there are any."""

    def __init__(self) -> None:
        self._by_node: dict[NodeName, set[AttemptKey]] = {}

    def __contains__(self, node: NodeName) -> bool:
        return node in self._by_node

    def attempts(self) -> set[AttemptKey]:
        return {attempt for attempts in self._by_node.values() for attempt in attempts}

    def items(self) -> Iterable[tuple[NodeName, set[AttemptKey]]]:
        return self._by_node.items()

    def add(self, node: NodeName, attempts: Iterable[AttemptKey]) -> None:
        if attempts := set(attempts):
            self._by_node.setdefault(node, set()).update(attempts)

    def remove(self, attempts: Iterable[AttemptKey]) -> list[NodeName]:
        """Remove attempts that have no process left; return the nodes without any other."""
        gone = set(attempts)
        for left in self._by_node.values():
            left -= gone
        done = [node for node, left in self._by_node.items() if not left]
        for node in done:
            del self._by_node[node]
        return done


def carry_over(before: Ledger, after: Ledger) -> None:
    """Wait for the same attempts in a ledger that was read again.

    An attempt that ran and no longer does may have been given up by a batch whose outcome was
    not known, so it is waited for too.
    """
    running = after.jobs.running_attempts()
    for node, attempts in before.leftovers.items():
        after.await_exit(node, attempts - running)
    for id, held in before.live.items():
        after.await_exit(held.node, set(before.jobs.attempts_in(id)) - running)
