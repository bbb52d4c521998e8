"""Attempt: one try at running a job, where it ran and how it ended."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gridhand.core.model.names import AllocationId, NodeName

Waited = tuple[tuple[str, int], ...]  # causes of a wait, and for how many ms


class Reason(StrEnum):
    """The reason why an attempt, or a job without an attempt, ended."""

    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    TIMEOUT = "timeout"
    START_FAILED = "start_failed"
    PREEMPTED = "preempted"
    RETURNED = "returned"  # it never began: its turn did not come, or its node could start nothing
    NODE_LOST = "node_lost"
    AGENT_LOST = "agent_lost"  # the agent died, and the exit status with it
    DEVICE_LOST = "device_lost"
    GANG = "gang"  # another member of its gang ended without success
    CLIENT_GONE = "client_gone"
    DEPENDENCY = "dependency"  # a job it depends on did not end as required
    RELEASED = "released"  # the holder released the allocation it was to run in
    DEADLINE = "deadline"  # it waited until it could no longer end in time
    EXPIRED = "expired"  # it waited longer than its queue allows
    CANCELLED = "cancelled"


class AttemptEnd(NamedTuple):
    """The end of an attempt, as its node reports it.

    The attempt is identified by its number and its allocation, so that a report that is repeated,
    late, or from a node that never ran it can be recognized and ignored.
    """

    attempt: int
    allocation: AllocationId
    reason: Reason
    exit_code: int | None = None
    signal: int | None = None
    peak_bytes: int | None = None
    message: str = ""  # a sentence for the user
    ran_ms: int | None = None  # measured by its node; None if that is not known
    ended: int | None = None  # in ledger time; None if it is not known, or now


class Attempt(NamedTuple):
    """One try. `choice` is the index of the granted choice of the request.

    Times are ledger milliseconds: `placed` when the allocation was granted, `started` when the
    process started. `waited` says for what the job waited before, see `queue.wait_causes`.
    """

    number: int
    node: NodeName
    allocation: AllocationId
    choice: int
    placed: int
    started: int | None = None
    stopping: Reason | None = None  # why it was told to stop
    ended: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: Reason | None = None
    peak_bytes: int | None = None
    message: str = ""
    waited: Waited = ()
    master: str = ""  # ADDRESS:PORT at which the members of a gang meet

    @property
    def succeeded(self) -> bool:
        return self.reason is Reason.EXIT and self.exit_code == 0

    @property
    def status(self) -> int | None:
        """The status a shell would show: the exit code, or 128+n for signal n; None if unknown."""
        return 128 + self.signal if self.signal is not None else self.exit_code

    def ended_by(self, how: AttemptEnd, *, now: int) -> Attempt:
        """Return the ended attempt. The reason it was told to stop for outranks the reported one.

        A command that is told to stop and then exits with 0 has not finished its work, and a job
        whose node is lost while it is being cancelled must not come back.
        """
        started, ended = self._times(how, now)
        return self._replace(
            started=started,
            ended=ended,
            exit_code=how.exit_code,
            signal=how.signal,
            reason=self.stopping or how.reason,
            peak_bytes=how.peak_bytes,
            # A member of a gang was told what ended the others; its node does not know.
            message=self.message if self.stopping is Reason.GANG else how.message,
        )

    def _times(self, how: AttemptEnd, now: int) -> tuple[int | None, int]:
        """Return when it started and ended: it may be long ago that it did.

        How long it ran is measured; its start and its end are only known by when they were
        reported, and neither is reported too early.
        """
        ended = max(self.placed, now if how.ended is None else min(how.ended, now))
        if how.ran_ms is None:
            return self.started, ended
        started = ended - how.ran_ms
        started = max(self.placed, started if self.started is None else min(started, self.started))
        return started, min(now, started + how.ran_ms)
