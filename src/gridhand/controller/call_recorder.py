"""Calls of functions: what clients report of them, and what becomes of those nobody reports on.

Calls go from clients straight to their workers; here they are only written down. The keeper's
thread does that, as it alone may write, but no ledger and no event has a part in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from gridhand.controller.commands import AskStore
from gridhand.core.callrecords import CallRecord
from gridhand.core.calls import Call
from gridhand.core.errors import GridError, StoreUnavailable, UnknownCall
from gridhand.store.base import Store

KEPT_CALLS = 1_000_000  # that have ended
GONE = "its client is gone"
_STEP = 2000
_PAUSE_S = 0.02
_AGAIN_S = 0.5
_BETWEEN = 10_000  # calls that are written between two looks whether there are too many

_log = logging.getLogger(__name__)


class WantedCalls(NamedTuple):
    """Which calls to list, at most so many."""

    states: tuple[str, ...] = ()
    name: str | None = None
    run: str | None = None
    owner: str | None = None
    limit: int = 100


class CallBook:
    """What is written of calls, and for how long."""

    def __init__(
        self,
        ask: Callable[[Call[Any]], Awaitable[Any]],
        in_background: Callable[[Coroutine[Any, Any, None]], None],
        kept_ms: int,
    ) -> None:
        self._ask = ask
        self._in_background = in_background
        self._kept_ms = kept_ms
        self._written = 0
        self._forgetting = False

    def write(self, calls: Sequence[CallRecord]) -> Awaitable[None]:
        """Have them written: asked for at once, and to be awaited."""
        self._written += len(calls)
        if self._written >= _BETWEEN and not self._forgetting:
            self._written = 0
            self._in_background(self.forget())
        return self._ask(AskStore(lambda store, now: _write(store, calls, now)))

    async def lose(self, runs: Iterable[tuple[str, str]]) -> None:
        """Those who reported these are gone: nobody will say how what is open ended."""
        for owner, run in runs:
            while await self._surely(_losing(owner, run)):
                pass

    async def forget(self) -> None:
        """Forget what is old, and the oldest of what is too much, a little at a time."""
        self._forgetting = True
        try:
            more = True
            while more:
                more = await self._ask(AskStore(self._forget))
                await asyncio.sleep(_PAUSE_S if more else 0)
        except GridError as error:
            _log.warning("old calls cannot be forgotten now: %s", error)
        finally:
            self._forgetting = False

    def _forget(self, store: Store, now: int) -> bool:
        return store.forget_calls(before=now - self._kept_ms, keep=KEPT_CALLS, most=_STEP)

    async def open_runs(self) -> list[tuple[str, str]]:
        """The owners and runs with calls of which nobody has said yet how they ended."""
        runs: list[tuple[str, str]] = await self._ask(AskStore(lambda store, _: store.open_runs()))
        return runs

    async def call(self, run: str, number: int) -> CallRecord:
        found = await self._ask(AskStore(lambda store, _: store.find_call(run, number)))
        if found is None:
            raise UnknownCall(f"{run}.{number}")
        record: CallRecord = found
        return record

    async def calls(self, wanted: WantedCalls) -> list[CallRecord]:
        found: list[CallRecord] = await self._ask(
            AskStore(lambda store, _: store.calls(**wanted._asdict()))
        )
        return found

    async def _surely(self, call: Call[Any]) -> Any:
        """The answer once the store is there; nothing if it will not have it."""
        while True:
            try:
                return await self._ask(call)
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_S)
            except GridError:
                return None


def _write(store: Store, calls: Sequence[CallRecord], now: int) -> None:
    store.write_calls([_by_now(call, now) for call in calls])


def _losing(owner: str, run: str) -> AskStore[int]:
    return AskStore(lambda store, now: store.lose_calls(owner, run, at=now, why=GONE, most=_STEP))


def _by_now(call: CallRecord, now: int) -> CallRecord:
    """A client's clock may be ahead of ours, but what it tells of has happened."""
    if (call.ended or call.started or call.submitted) <= now:
        return call
    started = None if call.started is None else min(call.started, now)
    ended = None if call.ended is None else min(call.ended, now)
    return call._replace(submitted=min(call.submitted, now), started=started, ended=ended)
