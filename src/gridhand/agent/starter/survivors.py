"""Survivors: processes of jobs that the journal of a new starter does not know.

A journal may be deleted or cut off while jobs run. Every job has the starter's mark, its own name
and its attempt in its environment. The mark is kept in a file beside the journal, so that a new
starter finds them and the agent kills them before what they use is given out again.
"""

from __future__ import annotations

import contextlib
import os

from gridhand.agent.starter.attempts import Attempts, StartedAttempt
from gridhand.agent.starter.message_fields import Key
from gridhand.agent.starter.process_trees import ATTEMPT_MARK, JOB_MARK, STARTER_MARK
from gridhand.core.model.names import JobId
from gridhand.posix import procfs
from gridhand.posix.procfs import Process

_FILE = "mark"
_FENCE_MARK = b"GRIDHAND_ALLOCATION_ID"


def read_mark(folder_fd: int) -> str:
    """Return the mark of the starters of this folder; "" if there was none yet."""
    try:
        with open(f"/proc/self/fd/{folder_fd}/{_FILE}") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def write_mark(folder_fd: int, mark: str) -> None:
    """Keep the mark beside the journal; without space for it the journal alone has it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        fd = os.open(_FILE, flags, 0o600, dir_fd=folder_fd)
        with open(fd, "w") as file:
            file.write(f"{mark}\n")


def find_unknown_survivors(attempts: Attempts) -> list[StartedAttempt]:
    """Add the attempts of which only processes are left, as lost ones, and return them."""
    found: dict[Key, list[tuple[Process, str]]] = {}
    own_uid = os.geteuid()
    for process in procfs.read_processes().values():
        if process.zombie or procfs.real_uid(process.pid) != own_uid:
            continue  # another user's may claim anything; the agent clears unknown cgroups
        marks = procfs.environment(process.pid)
        job, number = marks.get(JOB_MARK), marks.get(ATTEMPT_MARK, b"")
        if job and number.isdigit() and marks.get(STARTER_MARK) == attempts.mark.encode():
            key = JobId(job.decode("utf-8", "surrogateescape")), int(number)
            fence = marks.get(_FENCE_MARK, b"").decode("utf-8", "replace")
            if key not in attempts.known:
                found.setdefault(key, []).append((process, fence))
    return [_add(attempts, key, processes) for key, processes in found.items()]


def _add(attempts: Attempts, key: Key, found: list[tuple[Process, str]]) -> StartedAttempt:
    # The leader of the session is the command; without it the oldest process stands for it.
    leader, fence = min(found, key=lambda one: (one[0].pid != one[0].session, one[0].start))
    attempt = attempts.add(*key, fence or None, [])
    attempt.pid, attempt.start, attempt.inherited = leader.pid, leader.start, True
    message = "exit status unknown: the starter has lost its journal"
    attempt.finish({"reason": "lost", "message": message})
    return attempt
