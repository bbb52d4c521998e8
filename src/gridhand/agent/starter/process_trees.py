"""The process tree of each attempt: find its members, and kill them all.

A job's processes are its leader, its descendants, and those that have left it: a child whose
parent has ended becomes the starter's, and is known by its session, by the job's name in its
environment, by its cgroup or by the mark in its limits. What a killed starter left is looked for
among all processes of the machine. There neither a session nor a name is proof: the pid may belong
to another process by now, and another starter may have a job of the same name.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from gridhand.agent.starter.attempts import Attempts, StartedAttempt
from gridhand.agent.starter.message_fields import Key
from gridhand.posix import boot_clock, cgroups, procfs
from gridhand.posix.limit_mark import make_limit_mark, read_limit_mark
from gridhand.posix.procfs import Process, ProcessIdentity

JOB_MARK = b"GRIDHAND_JOB_ID"
ATTEMPT_MARK = b"GRIDHAND_ATTEMPT"
STARTER_MARK = b"GRIDHAND_STARTER"


def limit_mark_of(mark: str, job: str, attempt: int) -> int:
    """Return the mark in the limits of the processes of an attempt."""
    return make_limit_mark(mark, job, str(attempt))


class ProcessTrees:
    """The living processes of all attempts; /proc is read only if strays are possible."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._own_pid = os.getpid()

    def strays(self) -> bool:
        """Return whether there may be processes whose leader has ended."""
        mine = procfs.children(self._own_pid)
        if mine is None or not mine <= self._attempts.running.keys():
            return True
        return any(attempt.inherited for attempt in self._attempts.known.values())

    def alive(self) -> dict[Key, list[Process]]:
        """Return the living processes of every attempt that has any."""
        return _Census(self._attempts, self._own_pid).trees()


class _Census:
    """One reading of all processes, and the attempt that each of them belongs to."""

    def __init__(self, attempts: Attempts, own_pid: int) -> None:
        self._own_pid, self._own_uid = own_pid, os.geteuid()
        self._running = attempts.running
        known = [attempt for attempt in attempts.known.values() if attempt.boot == attempts.boot]
        self._known = known
        self._inherited = any(attempt.inherited for attempt in known)
        # Our own tree is read much faster than all processes, which those that fork can outrun.
        below = None if self._inherited else procfs.descendants(own_pid)
        found = map(procfs.read_process, procfs.list_pids() if below is None else below)
        self._all = {process.pid: process for process in found if process is not None}
        self._mark = attempts.mark.encode()
        self._by_session: dict[int, list[StartedAttempt]] = {}
        for attempt in known:
            if attempt.pid is not None:
                self._by_session.setdefault(attempt.pid, []).append(attempt)
        self._in_cgroup: dict[int, StartedAttempt] | None = None
        self._owners: dict[int, StartedAttempt | None] = {own_pid: None}
        self._below: dict[int, bool] = {own_pid: True, 0: False}  # whether we are its ancestor

    def trees(self) -> dict[Key, list[Process]]:
        """Return the living processes by attempt."""
        trees: dict[Key, list[Process]] = {}
        for process in self._all.values():
            owner = None if process.zombie else self._owner(process)
            if owner is not None:
                trees.setdefault(owner.key, []).append(process)
        return trees

    def _lineage(self, process: Process) -> list[Process]:
        """Return the process and its ancestors that have no known owner yet, the topmost first."""
        line: list[Process] = []
        at: Process | None = process
        while at is not None and at.pid not in self._owners and at not in line:
            line.append(at)
            at = self._all.get(at.parent)
        return line[::-1]

    def _owner(self, process: Process) -> StartedAttempt | None:
        for each in self._lineage(process):
            self._below[each.pid] = self._below.get(each.parent, False)
            self._owners[each.pid] = self._find_owner(each)
        return self._owners[process.pid]

    def _find_owner(self, process: Process) -> StartedAttempt | None:
        below = self._below[process.pid]
        if not below and not self._inherited:
            return None
        if process.pid in self._running and process.parent == self._own_pid:
            return self._running[process.pid]
        above = self._owners.get(process.parent)
        return above or self._by_session_id(process, below) or self._by_marks(process, below)

    def _by_session_id(self, process: Process, below: bool) -> StartedAttempt | None:
        fitting = [
            attempt
            for attempt in self._by_session.get(process.session, ())
            if attempt.start is not None
            and attempt.start <= process.start
            and (below or self._left_by_another(attempt))
        ]
        # If two attempts had a leader with the same pid, the later one has it now.
        return max(fitting, key=lambda attempt: attempt.start or 0, default=None)

    def _left_by_another(self, attempt: StartedAttempt) -> bool:
        """Return whether an earlier starter left the attempt, and its leader still lives."""
        leader = self._all.get(attempt.pid or 0)
        return attempt.inherited and leader is not None and leader.start == attempt.start

    def _by_marks(self, process: Process, below: bool) -> StartedAttempt | None:
        """Return the attempt that the environment names, or whose cgroup the process is in.

        The environment of another user's process is not read: it may name any attempt, and the
        memory that it is in may be a file that never answers.
        """
        user = procfs.real_uid(process.pid)
        marks = procfs.environment(process.pid) if user == self._own_uid else {}
        job = marks.get(JOB_MARK)
        # A descendant of ours is ours unless its mark says otherwise; any other process is ours
        # only if its mark says so.
        mine = marks.get(STARTER_MARK, self._mark if below else b"") == self._mark
        if job is not None and mine:
            number = marks.get(ATTEMPT_MARK)
            fitting = [
                attempt
                for attempt in self._known
                if attempt.job.encode("utf-8", "surrogateescape") == job
                and number in (None, b"%d" % attempt.attempt)
                and (below or attempt.inherited)
            ]
            if fitting:
                return max(fitting, key=lambda attempt: attempt.attempt)
        inside = self._by_cgroup().get(process.pid) if below else None
        return inside or self._by_limits(process, user, below)

    def _by_limits(self, process: Process, user: int | None, below: bool) -> StartedAttempt | None:
        """Return the attempt whose mark is in the limits of a process without an environment."""
        mark = read_limit_mark(process.pid)
        attempt = None if mark is None else self._by_limit_mark.get(mark)
        if attempt is None or not (below or attempt.inherited):
            return None
        # Every process can have this mark, so another user's means nothing.
        return attempt if attempt.uid is None or user in (attempt.uid, 0) else None

    @functools.cached_property
    def _by_limit_mark(self) -> dict[int, StartedAttempt]:
        return {limit_mark_of(self._mark.decode(), *one.key): one for one in self._known}

    def _by_cgroup(self) -> dict[int, StartedAttempt]:
        if self._in_cgroup is None:
            self._in_cgroup = {
                pid: attempt
                for attempt in self._known
                for folder in attempt.cgroups
                for pid in cgroups.members(folder)
            }
        return self._in_cgroup


class _Hunt(NamedTuple):
    attempt: StartedAttempt
    done: Callable[[int, list[int]], None]
    deadline_ms: int
    killed: set[ProcessIdentity]


class TreeKiller:
    """Kills all processes of some attempts, again and again until none is found."""

    LONGEST_MS = 10_000

    def __init__(self, attempts: Attempts) -> None:
        self._trees = ProcessTrees(attempts)
        self._hunts: list[_Hunt] = []
        self._found_empty: set[Key] = set()
        self._may_be_incomplete = False  # the last look
        self._next_ms = 0
        self._pause_ms = 1

    def __bool__(self) -> bool:
        return bool(self._hunts)

    def add(self, attempt: StartedAttempt, done: Callable[[int, list[int]], None]) -> None:
        """Hunt an attempt; call `done` with the number of killed pids and those that stayed."""
        deadline_ms = boot_clock.boot_ms() + self.LONGEST_MS
        self._hunts.append(_Hunt(attempt, done, deadline_ms, set()))
        self._next_ms, self._pause_ms = 0, 1

    def wait_s(self) -> float:
        """Return after how many seconds `step` has something to do."""
        return max(0, self._next_ms - boot_clock.boot_ms()) / 1000

    def step(self) -> None:
        """Kill what is found, and finish the hunts that are over or took too long."""
        if not self._hunts or boot_clock.boot_ms() < self._next_ms:
            return
        alive = self._look()
        while sum([self._kill_new(hunt, alive) for hunt in self._hunts]):
            alive = self._look()  # they may have had children meanwhile
        now_ms = boot_clock.boot_ms()
        for hunt in self._hunts[:]:
            left = [process.pid for process in alive.get(hunt.attempt.key, ())]
            if self._is_over(hunt, left) or now_ms >= hunt.deadline_ms:
                hunt.done(len(hunt.killed), left)
                self._hunts.remove(hunt)
                self._found_empty.discard(hunt.attempt.key)
        self._pause_ms = min(100, 2 * self._pause_ms)
        self._next_ms = now_ms + self._pause_ms

    def _is_over(self, hunt: _Hunt, left: list[int]) -> bool:
        """Return whether the last look proves that no process is left.

        It proves nothing of the children of another starter, so these are looked for twice.
        """
        attempt = hunt.attempt
        if left or attempt.end is None or self._may_be_incomplete:
            self._found_empty.discard(attempt.key)
            return False
        found_empty = attempt.key in self._found_empty
        self._found_empty.add(attempt.key)
        return found_empty or not (attempt.inherited and hunt.killed)

    def _look(self) -> dict[Key, list[Process]]:
        """Return what is alive, and note whether a process may have been missed.

        One that forks and exits while its tree is read hides its child from the reader. But
        it, or an ancestor, is then a child of ours that has ended and was not reaped yet.
        """
        ended = all(hunt.attempt.end is not None for hunt in self._hunts)
        if ended and not self._trees.strays():
            self._may_be_incomplete = False
            return {}
        alive = self._trees.alive()
        self._may_be_incomplete = _has_ended_child()
        return alive

    def _kill_new(self, hunt: _Hunt, alive: dict[Key, list[Process]]) -> int:
        """Kill the processes that were not seen before; return how many they are."""
        tree = alive.get(hunt.attempt.key, ())
        new = [process for process in tree if process.identity not in hunt.killed]
        for process in new:
            procfs.send_signal(process.identity, signal.SIGKILL)
            hunt.killed.add(process.identity)
        return len(new)


def _has_ended_child() -> bool:
    """Return whether a child of ours has ended and was not reaped yet."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False  # there are no children
