"""Sessions: what clients have for as long as they are connected.

A session holds allocations, the jobs that are attached to it, and the runs of calls it reports on.
When its connection goes, and does not come back within a moment, what it holds is released, its
jobs are cancelled, and its open calls are lost. After a restart of the controller clients come back
and say what is theirs; what nobody claims is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gridhand.controller.clients import AFTER_RESTART_S, Clients
from gridhand.controller.commands import Desk, MoveOne
from gridhand.core.allocations import Allocation, Lifetime, Move

Key = tuple[str, str]  # an owner, and the id of a session, an allocation or a run

_BEFORE = "before"  # the session of all that was held before a restart


@dataclass(slots=True)
class EndWithSession(MoveOne):
    """Release what a session held, unless it is over, or has become a lease meanwhile."""

    def decide(self, desk: Desk) -> list[Allocation]:
        held = desk.find(self.id, self.owner)
        if not held.live or held.lifetime is not Lifetime.SESSION:
            return [held]
        why = "the session that held it has ended"
        return [desk.ledger.move(self.id, Move.RELEASE, now=desk.now, why=why)]


class Sessions:
    """Who is connected, and what ends with each of them."""

    def __init__(
        self,
        release: Callable[[list[EndWithSession]], Awaitable[None]],
        attached: Clients,
        lose: Callable[[list[Key]], Awaitable[None]],
    ) -> None:
        self._release = release
        self._lose = lose
        self._attached = attached
        self._clients = Clients(self._gone)
        self._open: dict[str, asyncio.Event] = {}  # set when it is ended before its connection
        self._held: dict[str, set[Key]] = {}
        self._holding: dict[Key, str] = {}  # the session of each allocation
        self._jobs: dict[str, set[str]] = {}
        self._following: dict[str, str] = {}  # the session of each job
        self._runs: dict[Key, str] = {}  # the session that reports on each
        self._closed = False

    @contextmanager
    def connected(self, owner: str, id: str) -> Iterator[asyncio.Event]:
        """The session lasts for as long as this does, and a moment longer, or until the event."""
        name = _name(owner, id)
        ended = self._open.setdefault(name, asyncio.Event())
        with self._clients.connected(name):
            yield ended

    def alive(self, owner: str, id: str) -> bool:
        return _name(owner, id) in self._open

    def hold(self, owner: str, session: str, id: str) -> bool:
        """Whether the session lives, and so has it now: if another had it, that one no more."""
        name = _name(owner, session)
        if name not in self._open:
            return False
        self.let_go(owner, id)
        self._held.setdefault(name, set()).add((owner, id))
        self._holding[owner, id] = name
        return True

    def let_go(self, owner: str, id: str) -> None:
        """It is over, or is to outlast its session."""
        if (name := self._holding.pop((owner, id), None)) is not None:
            self._held[name].discard((owner, id))

    def attach(self, owner: str, session: str, job: str) -> bool:
        """Whether the session lives, and so the job ends with it."""
        name = _name(owner, session)
        if name not in self._open:
            return False
        if self._following.get(job) != name:
            self._detach(job)
            self._following[job] = name
            self._jobs.setdefault(name, set()).add(job)
            self._attached.join(job)
        return True

    def report_on(self, owner: str, session: str, run: str) -> bool:
        """Whether the session lives, and so the open calls of the run are lost with it."""
        name = _name(owner, session)
        if name not in self._open:
            return False
        self._runs[owner, run] = name
        return True

    def forget_job(self, job: str) -> None:
        """It has ended."""
        self._detach(job)
        self._attached.forget(job)

    def _detach(self, job: str) -> None:
        if (name := self._following.pop(job, None)) is not None:
            self._jobs[name].discard(job)
            self._attached.leave(job)

    def expect(self, held: Iterable[Key], runs: Iterable[Key] = ()) -> None:
        """These were of sessions before a restart; who is not back in time is gone."""
        name = _name("", _BEFORE)
        self._open[name] = asyncio.Event()
        for key in held:
            self._held.setdefault(name, set()).add(key)
            self._holding[key] = name
        self._runs.update(dict.fromkeys(runs, name))
        self._clients.expect([name], AFTER_RESTART_S)

    async def end(self, owner: str, id: str) -> None:
        """End it now, and come back when all that it held is released."""
        name = _name(owner, id)
        if name in self._open:
            self._open[name].set()
            await self._gone([name])

    def close(self) -> None:
        """The controller ends; what is held stays held, for the next one."""
        self._closed = True
        self._clients.close()

    async def _gone(self, names: list[str]) -> None:
        if self._closed:
            return
        ending: list[EndWithSession] = []
        for name in names:
            self._open.pop(name, None)
            for job in self._jobs.pop(name, set()):
                self._following.pop(job, None)
                self._attached.leave(job)
            for owner, id in sorted(self._held.pop(name, ())):
                self._holding.pop((owner, id), None)
                ending.append(EndWithSession(owner, id=id))
        lost = [key for key, name in self._runs.items() if name in names]
        for key in lost:
            del self._runs[key]
        await self._release(ending)
        await self._lose(lost)


def _name(owner: str, id: str) -> str:
    """Two owners may not share a session, whatever they call theirs."""
    return f"{owner}\n{id}"
