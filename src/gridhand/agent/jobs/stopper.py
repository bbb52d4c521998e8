"""How an attempt is ended: a warning to all of it, a while, and then nobody is spared.

What is left of a job whose command has ended would hold its memory and cores with nobody's
knowledge, so it is ended as well before the job counts as over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from gridhand.agent import processes, procfs
from gridhand.agent.link import LinkError, LinkRefused
from gridhand.agent.parent import Parent
from gridhand.agent.procfs import Identity
from gridhand.agent.runs import Run

_AT_ONCE = 1000
_LOOK_S = 0.05
_PAUSE_S = 0.5
_HUNT_S = 30.0  # a starter gives up on those that will not die after ten seconds


class Stopping:
    """`closed` is called when nothing of a run is left, `stuck` when that is not so for long."""

    def __init__(
        self, parent: Parent, closed: Callable[[Run], None], stuck: Callable[[], None]
    ) -> None:
        self._parent = parent
        self._closed, self._stuck = closed, stuck
        self._warnings: set[asyncio.Task[None]] = set()

    def stop(self, run: Run, reason: str, message: str, grace_ms: int) -> None:
        """End it for this reason. Asked again, the first reason stays, and the shortest grace."""
        if run.end is not None or (run.exit is not None and not run.stopping):
            return
        kill_at = processes.boot_ms() + grace_ms
        if run.stopping:
            run.kill_at = min(run.kill_at, kill_at)
        else:
            run.stopping, run.message, run.kill_at = reason, message, kill_at
        if run.waiting_since is not None:
            self.take_out([run])
        elif run.pid is not None:
            self.carry_out(run)

    def take_out(self, runs: list[Run]) -> None:
        """These are not to begin. Those that have begun meanwhile are told of as ever."""
        for first in range(0, len(runs), _AT_ONCE):
            keys = [run.key for run in runs[first : first + _AT_ONCE]]
            self._later(self._take_out({"do": "return", "attempts": keys}))

    async def _take_out(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(LinkError):  # whoever comes next has given them up
            await self._parent.ask(message)

    def carry_out(self, run: Run) -> None:
        """Do what was decided, now that it has processes."""
        left_ms = run.kill_at - processes.boot_ms()
        if left_ms <= 0:
            self.kill(run)
            return
        if not run.warned:
            run.warned = True
            self._later(self._warn(run))
        asyncio.get_running_loop().call_later(left_ms / 1000, self.kill, run)

    def kill(self, run: Run) -> None:
        if run.end is None and run.clearing is None:
            run.clearing = asyncio.create_task(self.clear(run))

    async def _warn(self, run: Run) -> None:
        """SIGTERM to the group of its leader, and to those that have left it."""
        others = [one for one in members(run) if _group_of(one.pid) != run.pid]
        message = {"do": "stop", "job": run.job, "attempt": run.number, "signal": signal.SIGTERM}
        with contextlib.suppress(LinkError):
            await self._parent.ask(message)
        for one in others:
            if one.pid != run.pid:
                _send(one, signal.SIGTERM)

    async def clear(self, run: Run) -> None:
        """Wait for those that were warned, then kill all of it, however long that takes."""
        await self._patience(run)
        message = {"do": "stop", "job": run.job, "attempt": run.number, "all": True}
        while True:
            try:
                reply = await self._parent.ask(message, _HUNT_S)
            except LinkRefused:
                self._kill_group(run)
                break  # it is not known there: its starter has lost what it knew
            except LinkError:
                await asyncio.sleep(_PAUSE_S)
                continue
            left = reply["left"] or self._kill_group(run)
            if not left and reply["attempt"]["state"] == "ended":
                run.took(reply["attempt"])
                break
            self._tell_stuck(run, reply["left"])
        self._tell_stuck(run, [])
        self._closed(run)

    def _kill_group(self, run: Run) -> list[int]:
        """Those that only its control group knows: what a starter left that was killed itself."""
        if run.groups.members() is None:
            return []
        here = (os.getpid(), self._parent.greeting.get("pid"))
        left = [one for one in members(run) if one.pid not in here]
        for one in left:
            _send(one, signal.SIGKILL)
        return [one.pid for one in left]

    async def _patience(self, run: Run) -> None:
        while run.stopping:
            if processes.boot_ms() >= run.kill_at or not members(run):
                return
            await asyncio.sleep(_LOOK_S)

    def _tell_stuck(self, run: Run, left: list[int]) -> None:
        if left != run.stuck:
            run.stuck = left
            self._stuck()

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._warnings.add(task)
        task.add_done_callback(self._warnings.discard)


def members(run: Run) -> list[Identity]:
    """Its living processes: those of its control group, or those below its leader."""
    pids = run.groups.members()
    if pids is not None:
        found = (procfs.identity(pid) for pid in pids)
        return [one for one in found if one is not None]
    return _below(run)


def _below(run: Run) -> list[Identity]:
    """The leader, its session, all below them, and what was seen to be one of them before.

    What has left all of that unseen is not found.
    """
    if run.pid is None:
        return []
    table = procfs.processes()
    found = {
        one.identity.pid: one.identity
        for one in table.values()
        if (run.pid in (one.identity.pid, one.session) and one.identity.start >= run.start)
        or one.identity in run.seen
    }
    waiting = list(found)
    children: dict[int, list[Identity]] = {}
    for one in table.values():
        children.setdefault(one.parent, []).append(one.identity)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child.pid)
    run.seen = set(found.values())
    return [one for one in found.values() if not table[one.pid].zombie]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def _send(target: Identity, signum: int) -> None:
    found = processes.process(target.pid)
    if found is not None and found.start == target.start:
        processes.send(found, signum)
