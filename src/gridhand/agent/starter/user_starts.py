"""The commands of other users that are about to begin, and the pipes that say whether they did."""

from __future__ import annotations

import os
import selectors
from typing import NamedTuple

from gridhand.agent.starter.command_files import StartFailed
from gridhand.agent.starter.user_process import read_failure


class UserStart(NamedTuple):
    """A process that is about to become a command, and its pipe."""

    pid: int
    pipe: int


class UserStarts:
    """Reads each pipe once: it has a report, or ends because the command began or is over."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._open: dict[int, UserStart] = {}
        self._failures: dict[int, StartFailed] = {}

    def add(self, pid: int, pipe: int) -> None:
        self._open[pid] = UserStart(pid, pipe)
        self._selector.register(pipe, selectors.EVENT_READ, self._open[pid])

    def read(self, start: UserStart) -> None:
        """Take in what the pipe says, and close it."""
        if self._open.pop(start.pid, None) is None:
            return
        self._selector.unregister(start.pipe)
        if (failure := read_failure(start.pipe)) is not None:
            self._failures[start.pid] = failure
        os.close(start.pipe)

    def take_failure(self, pid: int) -> StartFailed | None:
        """Return why the command of a process that has ended did not begin; None if it did."""
        if pid in self._open:
            self.read(self._open[pid])
        return self._failures.pop(pid, None)
