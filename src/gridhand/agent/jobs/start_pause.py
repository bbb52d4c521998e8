"""StartPause: keeps new work off a node that cannot start commands, until a probe succeeds.

Without it a node short of descriptors, memory, processes or disk would fail every queued job in
turn, as fast as the controller can send them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.agent.link_errors import LinkError

_FIRST_S = 0.25
_LONGEST_S = 10.0
_CALM_S = 60.0  # after so long without a failure the next pause is short again


class StartPause:
    """Closes the node after a failure that is its own fault; each pause doubles the next.

    `probe` returns why nothing can be started, or ""; `changed` is called after each change.
    """

    def __init__(self, probe: Callable[[], Awaitable[str]], changed: Callable[[], None]) -> None:
        self._probe, self._changed = probe, changed
        self._pause_s = _FIRST_S
        self._probing: asyncio.Task[None] | None = None
        self._reopened_s = 0.0
        self.why = ""  # why nothing can be started; "" while the node is open

    def close(self, why: str) -> None:
        """Close the node, and open it again once a probe succeeds."""
        loop = asyncio.get_running_loop()
        if self._probing is None:
            if loop.time() - self._reopened_s > _CALM_S:
                self._pause_s = _FIRST_S
            self._probing = loop.create_task(self._reopen())
        self._set(why)

    def problem(self) -> MachineProblem | None:
        if not self.why:
            return None
        hint = "Nothing new is started here until that is over. Jobs that were sent here wait again"
        return MachineProblem(f"commands cannot be started: {self.why}", f"{hint}, uncounted.")

    async def _reopen(self) -> None:
        while self.why:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(_LONGEST_S, 2 * self._pause_s)
            try:
                why = await self._probe()
            except LinkError as error:
                why = str(error)
            if not why:
                self._probing, self._reopened_s = None, asyncio.get_running_loop().time()
            self._set(why)

    def _set(self, why: str) -> None:
        before, self.why = self.why, why
        if before != why:
            self._changed()

    def stop(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
