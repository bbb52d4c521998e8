"""Back-pressure: a job pauses while the client that is attached to it reads too slowly.

A job writes to files, so nothing makes it wait for its reader as a pipe would. Its log is never cut
where an attached reader has not been yet; instead its processes are stopped (SIGSTOP) while the
reader is far behind, and continued (SIGCONT) when it has caught up or is gone.
"""

from __future__ import annotations

import signal

from gridhand.agent.jobs.running_attempt import RunningAttempt
from gridhand.agent.jobs.stopper import members
from gridhand.posix import procfs

_PASSES = 3  # a process may have been born while the others were stopped


def press(run: RunningAttempt) -> None:
    """Pause the attempt if its reader is over half a log behind, and resume it at a quarter.

    One that is being stopped is resumed: it must be able to handle SIGTERM.
    """
    behind = [log.behind() / log.cap for log in run.logs]
    if run.paused and (run.stopping or max(behind) < 1 / 4):
        run.paused = False
        _signal(run, signal.SIGCONT)
    elif not run.stopping and max(behind) > 1 / 2:
        run.paused = True
        for _ in range(_PASSES):
            _signal(run, signal.SIGSTOP)


def _signal(run: RunningAttempt, signum: int) -> None:
    for process in members(run):
        procfs.send_signal(process, signum)
