"""Records of calls of functions, as clients report them.

Calls go from clients straight to their workers; here they are only recorded. The keeper's thread
writes the records, as it alone may write, but they are not part of the ledger and make no events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from gridhand.controller.keeper.questions import AskStore
from gridhand.controller.store_retry import retry_while_store_is_away
from gridhand.core.errors import GridError, UnknownCall
from gridhand.core.model.call_record import CallRecord
from gridhand.core.operations import Operation
from gridhand.store.base import Store

KEPT_CALLS = 1_000_000  # ended calls
GONE = "its client is gone"
_STEP = 2000
_PAUSE_S = 0.02
_BETWEEN = 10_000  # calls written between two checks whether there are too many

_log = logging.getLogger(__name__)


class WantedCalls(NamedTuple):
    """Which calls to list, at most `limit`."""

    states: tuple[str, ...] = ()
    name: str | None = None
    run: str | None = None
    owner: str | None = None
    limit: int = 100


class CallRecorder:
    """Writes records of calls, and deletes old ones."""

    def __init__(
        self,
        ask: Callable[[Operation[Any]], Awaitable[Any]],
        in_background: Callable[[Coroutine[Any, Any, None]], None],
        kept_ms: Callable[[], int],
    ) -> None:
        self._ask = ask
        self._in_background = in_background
        self._kept_ms = kept_ms
        self._written = 0
        self._forgetting = False

    def write(self, calls: Sequence[CallRecord]) -> Awaitable[None]:
        """Send records to the store at once; await the result for when they are written."""
        self._written += len(calls)
        if self._written >= _BETWEEN and not self._forgetting:
            self._written = 0
            self._in_background(self.forget())
        return self._ask(AskStore(lambda store, now: _write(store, calls, now)))

    async def lose(self, runs: Iterable[tuple[str, str]]) -> None:
        """Mark the open calls of these runs as lost: their clients are gone."""
        for owner, run in runs:
            while await self._ask_surely(_lose_calls(owner, run)):
                pass

    async def forget(self) -> None:
        """Delete old records, and the oldest ones over the limit, a little at a time."""
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
        return store.forget_calls(
            before=store.time_ago(self._kept_ms(), now), keep=KEPT_CALLS, most=_STEP
        )

    async def open_runs(self) -> list[tuple[str, str]]:
        """Return the owners and runs of calls that have not ended."""
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

    async def _ask_surely(self, operation: Operation[Any]) -> Any:
        """Return the reply, however long the store is away; None if the store refuses."""
        try:
            return await retry_while_store_is_away(lambda: self._ask(operation))
        except GridError:
            return None


def _write(store: Store, calls: Sequence[CallRecord], now: int) -> None:
    store.write_calls([_not_in_future(call, now) for call in calls])


def _lose_calls(owner: str, run: str) -> AskStore[int]:
    return AskStore(lambda store, now: store.lose_calls(owner, run, at=now, why=GONE, most=_STEP))


def _not_in_future(call: CallRecord, now: int) -> CallRecord:
    """Cap the times of a call at now: the client's clock may be ahead of ours."""
    if (call.ended or call.started or call.submitted) <= now:
        return call
    started = None if call.started is None else min(call.started, now)
    ended = None if call.ended is None else min(call.ended, now)
    return call._replace(submitted=min(call.submitted, now), started=started, ended=ended)
