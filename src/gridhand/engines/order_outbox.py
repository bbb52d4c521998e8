"""OrderOutbox: the orders for one node that wait until its worker has carried them out.

A worker takes all orders that it is not busy with, and says with its next request which are done.
A reply may be lost, and a worker may be killed, so an order is given out again until then. Starts
are given out only while the node may take work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gridhand.engines.base import Key

MOST_AT_ONCE = 64
MOST_WAITING = 20_000  # beyond which orders to forget are dropped
_MOST_CHARACTERS = 4 << 20  # in one reply, but for one long order

Order = dict[str, Any]  # plain data for JSON


@dataclass(slots=True)
class WaitingOrder:
    """One order. `what` is the same for orders of which only the latest counts."""

    number: int
    what: tuple[object, ...]
    order: Order
    size: int
    given_out: bool = False

    @property
    def is_start(self) -> bool:
        return self.what[0] == "start"


class OrderOutbox:
    """The orders for one node, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, WaitingOrder] = {}
        self._latest: dict[tuple[object, ...], int] = {}  # the number of each order
        # Higher than the numbers of controllers before, whose orders a worker may still remember.
        self._number = time.time_ns() // 1000
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, what: tuple[object, ...], order: Order, size: int = 0) -> int:
        """Add an order in place of an earlier one of the same kind; return its number."""
        if (earlier := self._latest.get(what)) is not None:
            self._remove(earlier)
        self._number += 1
        number = self._latest[what] = self._number
        self._waiting[number] = WaitingOrder(number, what, {"number": number, **order}, size)
        self._news.set()
        self._drop_oldest()
        return number

    def _drop_oldest(self) -> None:
        """Have a worker that does not come for its orders forget less: it tells all when it joins.

        What it is to forget piles up without end, and it can ask for any number of them.
        """
        if len(self._waiting) <= MOST_WAITING:
            return
        for waiting in list(self._waiting.values()):
            if waiting.what[0] == "forget" and len(self._waiting) > MOST_WAITING // 2:
                self._remove(waiting.number)

    def _remove(self, number: int) -> WaitingOrder | None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self._latest.pop(waiting.what, None)
        return waiting

    def done(self, numbers: Collection[int]) -> None:
        """Remove orders that were carried out."""
        for number in numbers:
            self._remove(number)

    def withdraw_start(self, key: Key) -> bool:
        """Remove the order to start an attempt; return whether no worker can have got it."""
        number = self._latest.get(("start", *key))
        waiting = None if number is None else self._remove(number)
        return waiting is not None and not waiting.given_out

    def take(self, busy: Collection[int], *, starts: bool) -> list[Order]:
        """Return the orders that the worker is not busy with; with `starts`, those too."""
        chosen: list[Order] = []
        left = _MOST_CHARACTERS
        for waiting in self._waiting.values():
            if waiting.number in busy or (waiting.is_start and not starts):
                continue
            left -= waiting.size
            if chosen and (left < 0 or len(chosen) == MOST_AT_ONCE):
                break
            waiting.given_out = True
            chosen.append(waiting.order)
        return chosen

    async def wait(self, seconds: float) -> None:
        """Wait for another order, at most for a while."""
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
