"""The turns of attempts with the same fence: one runs at a time, in the order of arrival.

A fence names the allocation of an attempt. An attempt that arrives while another one has the fence
waits until that one and all processes it left behind are gone. So an allocation is never used by
two attempts at once, whatever anybody asks for, and short commands follow each other without a
message in between.
"""

from __future__ import annotations

from collections import deque

from gridhand.agent.starter.attempts import StartedAttempt
from gridhand.agent.starter.message_fields import Fence, Key, StarterOrder
from gridhand.agent.starter.process_trees import ProcessTrees
from gridhand.posix import boot_clock

_LOOK_MS = 20  # between looks at what an attempt has left behind


class FenceQueue:
    """The attempt that has each fence, and those that wait for it."""

    def __init__(self, trees: ProcessTrees) -> None:
        self._trees = trees
        self._holders: dict[Fence, StartedAttempt] = {}
        self._lines: dict[Fence, deque[tuple[StartedAttempt, StarterOrder]]] = {}
        self._looked_ms = 0

    def __bool__(self) -> bool:
        """Return whether any attempt waits."""
        return bool(self._lines)

    def wait_s(self) -> float | None:
        """Return after how many seconds to look again though nothing may have happened."""
        held_up = any(self._holders[fence].end is not None for fence in self._lines)
        return _LOOK_MS / 1000 if held_up else None

    def add(self, attempt: StartedAttempt, order: StarterOrder) -> bool:
        """Return whether the attempt may begin now; otherwise queue it."""
        fence = attempt.fence
        if fence is None:
            return True
        if fence not in self._lines and self._is_free(fence):
            self._holders[fence] = attempt
            return True
        attempt.waiting = True
        self._lines.setdefault(fence, deque()).append((attempt, order))
        return False

    def _is_free(self, fence: Fence) -> bool:
        holder = self._holders.get(fence)
        if holder is None:
            return True
        return holder.end is not None and not self._left_behind([holder])

    def take_due(self) -> list[tuple[StartedAttempt, StarterOrder]]:
        """Remove and return the attempts whose turn it is; they have the fences from now on."""
        ended = [
            holder for fence in self._lines if (holder := self._holders[fence]).end is not None
        ]
        left = self._left_behind(ended) if ended else set()
        return [self._take_next(holder.fence) for holder in ended if holder.key not in left]

    def _take_next(self, fence: Fence | None) -> tuple[StartedAttempt, StarterOrder]:
        assert fence is not None
        line = self._lines[fence]
        attempt, order = line.popleft()
        if not line:
            del self._lines[fence]
        self._holders[fence] = attempt
        return attempt, order

    def _left_behind(self, ended: list[StartedAttempt]) -> set[Key]:
        """Return which of these ended attempts may still have processes."""
        if not self._trees.strays():
            return set()
        now_ms = boot_clock.boot_ms()
        if now_ms - self._looked_ms < _LOOK_MS:
            return {attempt.key for attempt in ended}
        self._looked_ms = now_ms
        return set(self._trees.alive())

    def withdraw(self, attempt: StartedAttempt) -> bool:
        """Take the attempt out of its line; return whether it was in one."""
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

    def refuse(self, attempt: StartedAttempt) -> None:
        """Undo `add`: the attempt is not taken after all."""
        if not self.withdraw(attempt):
            self.forget(attempt)

    def forget(self, attempt: StartedAttempt) -> None:
        """Free the fence of an attempt that is over, with all its processes."""
        fence = attempt.fence
        if fence is not None and self._holders.get(fence) is attempt and fence not in self._lines:
            del self._holders[fence]
