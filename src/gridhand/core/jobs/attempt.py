"""Attempt: one try at running a job, where it ran and how it ended."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Why an attempt, or a job that never had one, is over."""

    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    TIMEOUT = "timeout"
    START_FAILED = "start_failed"
    PREEMPTED = "preempted"
    RETURNED = "returned"  # it was lined up behind another, and never begun
    NODE_LOST = "node_lost"
    AGENT_LOST = "agent_lost"  # what stood on the node died, and with it the exit status
    DEVICE_LOST = "device_lost"
    CLIENT_GONE = "client_gone"
    DEPENDENCY = "dependency"  # what it was to run after did not end as it had to
    RELEASED = "released"  # what it ran in was given up by the one who held it
    CANCELLED = "cancelled"


class End(NamedTuple):
    """How an attempt ended, as whoever watched it tells.

    The attempt is named by its number and its allocation, so that what is told twice, late, or by
    one who never ran it, can be told from news. `short_of` is what ran out, if that was why.
    """

    attempt: int
    allocation: str
    reason: Reason
    exit_code: int | None = None
    signal: int | None = None
    peak_bytes: int | None = None
    gpu_peak_bytes: int | None = None  # on the device that used most
    short_of: str = "memory"
    message: str = ""  # a sentence for its user
    started: int | None = None  # when its process was there, if nobody has said so before

    @classmethod
    def waited(
        cls, attempt: int, allocation: str, status: int, peak_bytes: int | None = None
    ) -> End:
        """The end that a wait status tells of."""
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return cls(attempt, allocation, Reason.SIGNAL, None, -code, peak_bytes)
        return cls(attempt, allocation, Reason.EXIT, code, None, peak_bytes)


class Attempt(NamedTuple):
    """One try. Times are ledger milliseconds; `choice` says which of the request's choices it got.

    It is `placed` when its allocation was made, `started` when its process was there.
    """

    number: int
    node: str
    allocation: str
    choice: int
    placed: int
    started: int | None = None
    stopping: Reason | None = None  # what it was told to stop for
    ended: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: Reason | None = None
    peak_bytes: int | None = None
    gpu_peak_bytes: int | None = None
    short_of: str | None = None  # of what it had too little, if it ran out of something
    message: str = ""

    @property
    def succeeded(self) -> bool:
        return self.reason is Reason.EXIT and self.exit_code == 0

    @property
    def status(self) -> int | None:
        """What a shell would answer: the exit code, or 128+n for signal n; None if unknown."""
        return 128 + self.signal if self.signal is not None else self.exit_code

    def over(self, how: End, *, now: int) -> Attempt:
        """The attempt as it ended. What it was told to stop for counts, however it then went.

        A command that is warned and then exits with 0 has not done its work, and one whose node
        is lost while it is being cancelled must not come back.
        """
        reason = self.stopping or how.reason
        return self._replace(
            ended=now,
            exit_code=how.exit_code,
            signal=how.signal,
            reason=reason,
            peak_bytes=how.peak_bytes,
            gpu_peak_bytes=how.gpu_peak_bytes,
            short_of=how.short_of if reason is Reason.OOM else None,
            message=how.message,
            started=how.started if self.started is None else self.started,
        )


def outcome(status: int) -> int:
    """The code a wait status stands for: the exit code, or 128+n for signal n.

    >>> outcome(0), outcome(3 << 8), outcome(9)
    (0, 3, 137)
    """
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
