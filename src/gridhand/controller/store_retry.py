"""Repeat an operation while the store is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gridhand.core.errors import StoreError, StoreFenced, StoreUnavailable

PAUSE_S = 0.5

Reply = TypeVar("Reply")


async def retry_while_store_is_away(
    attempt: Callable[[], Awaitable[Reply]],
    *,
    kind: type[StoreError] = StoreUnavailable,
    give_up: Callable[[], bool] | None = None,
    report: Callable[[StoreError], object] | None = None,
) -> Reply:
    """Return the reply of `attempt`, repeated every half second while it raises `kind`.

    The error is raised if `give_up` returns true before the next attempt, or if another controller
    has taken the store.
    """
    while True:
        try:
            return await attempt()
        except StoreFenced:
            raise
        except kind as error:
            if report is not None:
                report(error)
            await asyncio.sleep(PAUSE_S)
            if give_up is not None and give_up():  # just before the next attempt
                raise
