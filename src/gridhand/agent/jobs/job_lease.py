"""JobLease: the time for which the jobs of a node may run without word from the controller.

The agent of a node elsewhere stops its jobs when the lease is over: by then the controller may be
about to start them on another node. On the machine of the controller there is no such lease.
"""

from __future__ import annotations

from gridhand.posix import boot_clock

STOP_GRACE_MS = 5000  # within KILL_MS of `core.liveness.budget`, with time for what ignores SIGTERM
MESSAGE = "its node was cut off from the controller"


class JobLease:
    """A deadline on the boot clock, which goes on while the machine sleeps; there may be none."""

    def __init__(self, for_ms: int | None = None) -> None:
        self._due: int | None = None
        if for_ms is not None:
            self.renew(for_ms)

    def renew(self, for_ms: int) -> None:
        """Let jobs run for this time from now on."""
        self._due = boot_clock.boot_ms() + for_ms

    def is_over(self) -> bool:
        return self._due is not None and boot_clock.boot_ms() >= self._due
