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
        # Higher than the numbers of controllers before, whose orders a worker may still remember.
        self._number = time.time_ns() // 1000
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, what: tuple[object, ...], order: Order, size: int = 0) -> int:
        """Add an order in place of an earlier one of the same kind; return its number."""
        for waiting in [one for one in self._waiting.values() if one.what == what]:
            del self._waiting[waiting.number]
        self._number += 1
        number = self._number
        self._waiting[number] = WaitingOrder(number, what, {"number": number, **order}, size)
        self._news.set()
        return number

    def done(self, numbers: Collection[int]) -> None:
        """Remove orders that were carried out."""
        for number in numbers:
            self._waiting.pop(number, None)

    def withdraw_start(self, key: Key) -> bool:
        """Remove the order to start an attempt; return whether no worker can have got it."""
        for waiting in list(self._waiting.values()):
            if waiting.what == ("start", *key):
                del self._waiting[waiting.number]
                return not waiting.given_out
        return False

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
