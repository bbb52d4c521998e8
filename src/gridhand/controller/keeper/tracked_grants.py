"""A user's own tracker beside the ledger: asked before each grant, and told of each end.

The ledger chooses the node; the tracker may refuse it, and then another one is tried. It is called
in the keeper's thread, so that it and the ledger never differ. It is told of an end once that is
durable, and only once, however the allocation has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from typing import Any, Protocol, runtime_checkable

from gridhand.core.errors import GridError, InvalidInput, NoRoom, short_repr
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.ledger import Placement
from gridhand.core.model.names import AllocationId
from gridhand.core.model.resources import Resources

RETRY_MS = 500  # after which a tracker that refused is asked again for those who wait

_log = logging.getLogger(__name__)


@runtime_checkable
class Tracker(Protocol):
    """The interface of a resource tracker: any object with these methods. `Grid` is one."""

    def fits(self, node: str, resources: Any = None, **named: Any) -> bool: ...

    def allocate(self, resources: Any = None, **named: Any) -> Any: ...

    def release(self, allocation: Any) -> Any: ...


def read_tracker(given: object) -> Tracker:
    """Return the tracker, or raise InvalidInput if it lacks a method."""
    if isinstance(given, Tracker) and not isinstance(given, type):
        return given
    raise InvalidInput("tracker", given, "an object with the methods fits, allocate and release")


class TrackedGrants:
    """The grants of a tracker for the allocations of a ledger, by their ids."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._held: dict[AllocationId, Any] = {}

    def take(
        self, made: Sequence[Allocation], placed: Sequence[Placement]
    ) -> tuple[NoRoom, int] | None:
        """Ask the tracker for each of these; return its refusal of one with its index, if any.

        After a refusal the caller undoes the grants, and calls `let_go`.
        """
        for index, (held, placement) in enumerate(zip(made, placed, strict=True)):
            refused = self._take(held, placement.asked.resources)
            if refused is not None:
                return refused, index
        return None

    def _take(self, held: Allocation, resources: Resources) -> NoRoom | None:
        try:
            if not self._tracker.fits(held.node, resources):
                return NoRoom(f"the tracker has no room for {resources} on {held.node}")
            self._held[held.id] = self._tracker.allocate(resources, node=held.node)
        except NoRoom as refused:
            return refused
        except (Exception, SystemExit) as error:
            raise self._failed(error) from error
        return None

    def fits(self, node: str, resources: Resources) -> bool:
        try:
            return bool(self._tracker.fits(node, resources))
        except (Exception, SystemExit) as error:
            raise self._failed(error) from error

    def let_go(self, live: Container[AllocationId]) -> None:
        """Release what the tracker holds for allocations that are not live any more."""
        for id in [id for id in self._held if id not in live]:
            try:
                self._tracker.release(self._held.pop(id))
            except (Exception, SystemExit):
                _log.exception("the tracker could not release what it held for %s", id)

    def _failed(self, error: BaseException) -> GridError:
        name = type(self._tracker).__name__
        return GridError(
            f"tracker: {name} raised {short_repr(error)}",
            hint="A tracker returns False from fits, or raises NoRoom, if there is no room.",
        )
