"""StoreReads: reads the store on a connection and a thread of its own, so that no commit waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gridhand.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from gridhand.store.base import Store

Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


class StoreReads:
    """The reading side of an open store. `run` is called in an event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reader: Store | None = None
        self._thread = ThreadPoolExecutor(1, "gridhand-reader")

    async def open(self) -> bool:
        """Connect; return False if the store can be read by its owner alone."""
        return await self._in_thread(self._connect)

    async def run(self, ask: Callable[[Store], Answer]) -> Answer:
        """Return the answer to a question that changes nothing."""
        return await self._in_thread(lambda: self._ask(ask))

    async def reset(self) -> None:
        """Connect again at the next question: the store was written anew."""
        await self._in_thread(self._disconnect)

    async def close(self) -> None:
        await self.reset()
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _connect(self) -> bool:
        self._reader = self._store.reader()
        return self._reader is not None

    def _ask(self, ask: Callable[[Store], Answer]) -> Answer:
        """Ask, and once more on a new connection if the one there was is lost."""
        if self._reader is not None:
            try:
                return ask(self._reader)
            except StoreError:
                self._disconnect()
        try:
            self._connect()
            assert self._reader is not None, "the store could be read before"
            return ask(self._reader)
        except OutcomeUnknown as lost:  # nothing was to be written
            raise StoreUnavailable(str(lost)) from lost

    def _disconnect(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
