"""Which processes belong to which attempt, and the hunt for all of them.

A job's processes are its leader, what is below it, and what has left it: a child whose parent has
ended becomes the starter's, and is known by its session, by the job's name in its environment or
by its cgroup. After another starter was killed, what it left is looked for among all processes,
and then neither a session nor a name is proof: the number may be another's by now, and another
starter may have a job of that name.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from gridhand.agent import cgroups, processes
from gridhand.agent.attempts import Attempt, Attempts, Key
from gridhand.agent.processes import Process

JOB_MARK = b"GRIDHAND_JOB_ID"
ATTEMPT_MARK = b"GRIDHAND_ATTEMPT"
STARTER_MARK = b"GRIDHAND_STARTER"


class Families:
    """Looks at all processes only when there are some that nobody waits for."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._own_pid = os.getpid()

    def strays(self) -> bool:
        """Whether there may be processes whose leader has ended."""
        mine = processes.children(self._own_pid)
        if mine is None or not mine <= self._attempts.running.keys():
            return True
        return any(one.inherited for one in self._attempts.known.values())

    def alive(self) -> dict[Key, list[Process]]:
        """The living processes of every attempt that has any."""
        return _Census(self._attempts, self._own_pid).families()


class _Census:
    """One look at all processes, and whose each of them is."""

    def __init__(self, attempts: Attempts, own_pid: int) -> None:
        self._own_pid = own_pid
        self._all = processes.all_processes()
        self._running = attempts.running
        known = [one for one in attempts.known.values() if one.boot == attempts.boot]
        self._known = known
        self._mark = attempts.mark.encode()
        self._by_session: dict[int, list[Attempt]] = {}
        for one in known:
            if one.pid is not None:
                self._by_session.setdefault(one.pid, []).append(one)
        self._inherited = any(one.inherited for one in known)
        self._in_cgroup: dict[int, Attempt] | None = None
        self._owners: dict[int, Attempt | None] = {own_pid: None}
        self._below: dict[int, bool] = {own_pid: True, 0: False}

    def families(self) -> dict[Key, list[Process]]:
        found: dict[Key, list[Process]] = {}
        for one in self._all.values():
            owner = None if one.dead else self._owner(one)
            if owner is not None:
                found.setdefault(owner.key, []).append(one)
        return found

    def _lineage(self, one: Process) -> list[Process]:
        """The process and those above it, up to one that is already known, the topmost first."""
        line: list[Process] = []
        at: Process | None = one
        while at is not None and at.pid not in self._owners and at not in line:
            line.append(at)
            at = self._all.get(at.parent)
        return line[::-1]

    def _owner(self, one: Process) -> Attempt | None:
        for each in self._lineage(one):
            self._below[each.pid] = self._below.get(each.parent, False)
            self._owners[each.pid] = self._find(each)
        return self._owners[one.pid]

    def _find(self, one: Process) -> Attempt | None:
        below = self._below[one.pid]
        if not below and not self._inherited:
            return None
        if one.pid in self._running and one.parent == self._own_pid:
            return self._running[one.pid]
        above = self._owners.get(one.parent)
        return above or self._by_its_session(one, below) or self._by_its_marks(one, below)

    def _by_its_session(self, one: Process, below: bool) -> Attempt | None:
        fitting = [
            attempt
            for attempt in self._by_session.get(one.session, ())
            if attempt.start is not None
            and attempt.start <= one.start
            and (below or self._left_by_another(attempt))
        ]
        # Of two that had the same number, the later one has it.
        return max(fitting, key=lambda attempt: attempt.start or 0, default=None)

    def _left_by_another(self, attempt: Attempt) -> bool:
        leader = self._all.get(attempt.pid or 0)
        return attempt.inherited and leader is not None and leader.start == attempt.start

    def _by_its_marks(self, one: Process, below: bool) -> Attempt | None:
        marks = processes.environment(one.pid)
        job = marks.get(JOB_MARK)
        # Below us it is ours unless it says otherwise; elsewhere only if it says so.
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
        return self._grouped().get(one.pid) if below else None

    def _grouped(self) -> dict[int, Attempt]:
        if self._in_cgroup is None:
            self._in_cgroup = {
                pid: one
                for one in self._known
                for folder in one.cgroups
                for pid in cgroups.members(folder)
            }
        return self._in_cgroup


class _Hunt(NamedTuple):
    attempt: Attempt
    done: Callable[[int, list[int]], None]
    deadline_ms: int
    killed: set[tuple[int, int]]


class Hunts:
    """Kill everything of some attempts, again and again until a look finds nothing left."""

    LONGEST_MS = 10_000

    def __init__(self, attempts: Attempts) -> None:
        self._families = Families(attempts)
        self._hunts: list[_Hunt] = []
        self._next_ms = 0
        self._pause_ms = 1

    def __bool__(self) -> bool:
        return bool(self._hunts)

    def add(self, attempt: Attempt, done: Callable[[int, list[int]], None]) -> None:
        """`done` is told how many were killed and which would not die."""
        deadline_ms = processes.boot_ms() + self.LONGEST_MS
        self._hunts.append(_Hunt(attempt, done, deadline_ms, set()))
        self._next_ms, self._pause_ms = 0, 1

    def wait_s(self) -> float:
        return max(0, self._next_ms - processes.boot_ms()) / 1000

    def step(self) -> None:
        if not self._hunts or processes.boot_ms() < self._next_ms:
            return
        alive = self._look()
        while sum([self._kill_new(hunt, alive) for hunt in self._hunts]):
            alive = self._look()  # they may have had children meanwhile
        now_ms = processes.boot_ms()
        for hunt in self._hunts[:]:
            left = [one.pid for one in alive.get(hunt.attempt.key, ())]
            if (not left and hunt.attempt.end is not None) or now_ms >= hunt.deadline_ms:
                hunt.done(len(hunt.killed), left)
                self._hunts.remove(hunt)
        self._pause_ms = min(100, 2 * self._pause_ms)
        self._next_ms = now_ms + self._pause_ms

    def _look(self) -> dict[Key, list[Process]]:
        ended = all(hunt.attempt.end is not None for hunt in self._hunts)
        return {} if ended and not self._families.strays() else self._families.alive()

    def _kill_new(self, hunt: _Hunt, alive: dict[Key, list[Process]]) -> int:
        found = alive.get(hunt.attempt.key, ())
        new = [one for one in found if (one.pid, one.start) not in hunt.killed]
        for one in new:
            processes.send(one, signal.SIGKILL)
            hunt.killed.add((one.pid, one.start))
        return len(new)
