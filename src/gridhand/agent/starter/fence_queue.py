"""Turns: of the attempts with one fence only one runs at a time, in the order in which they came.

A fence names what an attempt was granted. Who comes while another has it waits until that one and
all that it left behind are gone; so a grant is never used twice at once, whatever anybody asks
for, and short commands follow each other without anybody being asked.
"""

from __future__ import annotations

from collections import deque

from gridhand.agent import processes
from gridhand.agent.attempts import Attempt, Key
from gridhand.agent.families import Families
from gridhand.agent.orders import Order

_LOOK_MS = 20  # between looks at what an attempt has left behind

Fence = int | str


class Turns:
    """Who has each fence, and who comes next."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._having: dict[Fence, Attempt] = {}
        self._lines: dict[Fence, deque[tuple[Attempt, Order]]] = {}
        self._looked_ms = 0

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._lines)

    def wait_s(self) -> float | None:
        """How long until it is worth a look, though nothing may have happened."""
        held_up = any(self._having[fence].end is not None for fence in self._lines)
        return _LOOK_MS / 1000 if held_up else None

    def take(self, attempt: Attempt, order: Order) -> bool:
        """Whether it may begin now; if not, it has a place in line."""
        fence = attempt.fence
        if fence is None:
            return True
        if fence not in self._lines and self._is_free(fence):
            self._having[fence] = attempt
            return True
        attempt.waiting = True
        self._lines.setdefault(fence, deque()).append((attempt, order))
        return False

    def _is_free(self, fence: Fence) -> bool:
        before = self._having.get(fence)
        if before is None:
            return True
        return before.end is not None and not self._left_behind([before])

    def due(self) -> list[tuple[Attempt, Order]]:
        """Those whose turn it is now; they have the fences from here on."""
        over = [one for fence in self._lines if (one := self._having[fence]).end is not None]
        left = self._left_behind(over) if over else set()
        return [self._next(one.fence) for one in over if one.key not in left]

    def _next(self, fence: Fence | None) -> tuple[Attempt, Order]:
        assert fence is not None
        line = self._lines[fence]
        found = line.popleft()
        if not line:
            del self._lines[fence]
        self._having[fence] = found[0]
        return found

    def _left_behind(self, over: list[Attempt]) -> set[Key]:
        """Which of these, though over, may still have processes."""
        if not self._families.strays():
            return set()
        now_ms = processes.boot_ms()
        if now_ms - self._looked_ms < _LOOK_MS:
            return {one.key for one in over}
        self._looked_ms = now_ms
        return set(self._families.alive())

    def give_up(self, attempt: Attempt) -> bool:
        """Take it out of its line; whether it was in one."""
        line = self._lines.get(attempt.fence) if attempt.fence is not None else None
        for waiting in line or ():
            if waiting[0] is attempt:
                assert line is not None
                assert attempt.fence is not None
                line.remove(waiting)
                if not line:
                    del self._lines[attempt.fence]
                return True
        return False

    def refuse(self, attempt: Attempt) -> None:
        """It is not taken after all."""
        if not self.give_up(attempt):
            self.forget(attempt)

    def forget(self, attempt: Attempt) -> None:
        """It is over for good, all that it left included."""
        fence = attempt.fence
        if fence is not None and self._having.get(fence) is attempt and fence not in self._lines:
            del self._having[fence]
