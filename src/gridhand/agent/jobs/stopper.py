"""Stop attempts: SIGTERM to all processes, a grace period, then SIGKILL.

Processes that are left when a job's command has ended would hold its memory and cores unseen, so
they are killed too before the job counts as over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from gridhand.agent.jobs.running_attempt import RunningAttempt
from gridhand.agent.link_errors import LinkError, LinkRefused
from gridhand.agent.messages import Key
from gridhand.agent.starter_link import StarterLink
from gridhand.posix import boot_clock, procfs
from gridhand.posix.limit_mark import marked_alike
from gridhand.posix.procfs import ProcessIdentity

_AT_ONCE = 1000  # attempts in one message
_LOOK_S = 0.05
_PAUSE_S = 0.5
_HUNT_S = 30.0  # a starter gives up on processes that do not die after ten seconds


class Stopper:
    """Stops attempts.

    `closed` is called when no process of an attempt is left; `stuck` is called when the processes
    that do not die have changed.
    """

    def __init__(
        self,
        starter: StarterLink,
        closed: Callable[[RunningAttempt], None],
        stuck: Callable[[], None],
    ) -> None:
        self._starter = starter
        self._closed, self._stuck = closed, stuck
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self, run: RunningAttempt, reason: str, message: str, grace_ms: int) -> None:
        """Stop an attempt. If called again, the first reason stays, and the shorter grace holds."""
        if run.end is not None or (run.exit is not None and not run.stopping):
            return
        kill_at = boot_clock.boot_ms() + grace_ms
        if run.stopping:
            run.kill_at = min(run.kill_at, kill_at)
        else:
            run.stopping, run.message, run.kill_at = reason, message, kill_at
        if run.waiting_since is not None:
            self.withdraw([run])
        elif run.pid is not None:
            self.carry_out(run)

    def withdraw(self, runs: list[RunningAttempt]) -> None:
        """Keep waiting attempts from beginning; those that have begun meanwhile run on."""
        for first in range(0, len(runs), _AT_ONCE):
            self._spawn(self._withdraw([run.key for run in runs[first : first + _AT_ONCE]]))

    async def _withdraw(self, keys: list[Key]) -> None:
        with contextlib.suppress(LinkError):  # the next starter does not begin them
            await self._starter.ask({"do": "return", "attempts": keys})

    def carry_out(self, run: RunningAttempt) -> None:
        """Warn or kill an attempt that is being stopped, now that it has processes."""
        left_ms = run.kill_at - boot_clock.boot_ms()
        if left_ms <= 0:
            self.kill(run)
            return
        if not run.warned:
            run.warned = True
            self._spawn(self._warn(run))
        asyncio.get_running_loop().call_later(left_ms / 1000, self.kill, run)

    def forewarn(self, run: RunningAttempt) -> None:
        """Send the signal that the job wants some time before its time limit.

        A new agent sends it again: no note says that the previous one did.
        """
        run.forewarned = True
        if run.alive and not run.stopping:
            self._spawn(self._signal(run, run.note.warn_signal or signal.SIGTERM))

    def kill(self, run: RunningAttempt) -> None:
        if run.end is None and run.clearing is None:
            run.clearing = asyncio.create_task(self.clear(run))

    async def _warn(self, run: RunningAttempt) -> None:
        """Send SIGTERM to the group of its leader, and to the processes that have left it."""
        others = [process for process in members(run) if _group_of(process.pid) != run.pid]
        await self._signal(run, signal.SIGTERM)
        for process in others:
            if process.pid != run.pid:
                procfs.send_signal(process, signal.SIGTERM)

    async def _signal(self, run: RunningAttempt, signum: int) -> None:
        """Send a signal to the group of its leader."""
        message = {"do": "stop", "job": run.job, "attempt": run.number, "signal": signum}
        with contextlib.suppress(LinkError):
            await self._starter.ask(message)

    async def clear(self, run: RunningAttempt) -> None:
        """Wait for the end of the grace, then kill all processes, however long that takes."""
        await self._wait_for_grace(run)
        message = {"do": "stop", "job": run.job, "attempt": run.number, "all": True}
        while True:
            try:
                reply = await self._starter.ask(message, _HUNT_S)
            except LinkRefused:  # the starter has lost its journal and does not know the attempt
                if not self._kill_members(run):
                    break
                await asyncio.sleep(_LOOK_S)
                continue
            except LinkError:
                await asyncio.sleep(_PAUSE_S)
                continue
            left = reply["left"] or self._kill_group(run)
            if not left and reply["attempt"]["state"] == "ended":
                run.update(reply["attempt"])
                break
            self._tell_stuck(run, reply["left"])
        self._tell_stuck(run, [])
        self._closed(run)

    def _kill_group(self, run: RunningAttempt) -> list[int]:
        """Kill and return the pids that only its control group knows: left by a killed starter."""
        return [] if run.groups.members() is None else self._kill_members(run)

    def _kill_members(self, run: RunningAttempt) -> list[int]:
        """Kill and return the pids of its control group, else of its tree."""
        spared = (os.getpid(), self._starter.greeting["pid"])
        left = [process for process in members(run) if process.pid not in spared]
        for process in left:
            procfs.send_signal(process, signal.SIGKILL)
        return [process.pid for process in left]

    async def _wait_for_grace(self, run: RunningAttempt) -> None:
        while run.stopping:
            if boot_clock.boot_ms() >= run.kill_at or not members(run):
                return
            await asyncio.sleep(_LOOK_S)

    def _tell_stuck(self, run: RunningAttempt, left: list[int]) -> None:
        if left != run.stuck:
            run.stuck = left
            self._stuck()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def members(run: RunningAttempt) -> list[ProcessIdentity]:
    """Return its living processes: those of its control group, else those of its tree."""
    pids = run.groups.members()
    if pids is not None:
        found = map(procfs.read_process, pids)
        return [process.identity for process in found if process is not None]
    return _tree(run)


def _tree(run: RunningAttempt) -> list[ProcessIdentity]:
    """Return the leader, its session, what has its mark, their descendants, and what was seen.

    A process that has left all of that unseen is not found.
    """
    if run.pid is None:
        return []
    table = procfs.read_processes()
    tree = {
        process.pid: process.identity
        for process in table.values()
        if (run.pid in (process.pid, process.session) and process.start >= run.start)
        or process.identity in run.seen
    }
    if run.pid in tree:
        left = marked_alike(table[run.pid], table.values())
        tree |= {process.pid: process.identity for process in left}
    waiting = list(tree)
    children: dict[int, list[ProcessIdentity]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.identity)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in tree:
                tree[child.pid] = child
                waiting.append(child.pid)
    run.seen = set(tree.values())
    return [identity for identity in tree.values() if not table[identity.pid].zombie]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0
