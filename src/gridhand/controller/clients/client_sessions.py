"""Sessions: what ends when a client is no longer connected.

A session has allocations, attached jobs, and the runs of calls that it reports on. When its
connection breaks and does not come back within a moment, its allocations are released, its jobs
are cancelled, and its open calls are marked lost. After a restart of the controller, clients come
back and name what is theirs; what nobody claims is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from gridhand.controller.clients.connections import AFTER_RESTART_S, ConnectionCounts
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.errors import ControllerStopping
from gridhand.core.ledger.allocations import Lifetime
from gridhand.core.model.names import AllocationId, JobId
from gridhand.core.operations import EndWithSession

OwnedAllocation = tuple[str, AllocationId]  # its owner, and its id
OwnedRun = tuple[str, str]  # its owner, and its id

_BEFORE = "before"  # the session of everything held before a restart


class Sessions:
    """The connected sessions, and what ends with each of them."""

    def __init__(
        self,
        release: Callable[[list[EndWithSession]], Awaitable[None]],
        attached: ConnectionCounts,
        lose: Callable[[list[OwnedRun]], Awaitable[None]],
    ) -> None:
        self._release = release
        self._lose = lose
        self._attached = attached
        self._clients = ConnectionCounts(self._gone)
        self._open: dict[str, asyncio.Event] = {}  # set when it is ended before its connection
        self._held: dict[str, set[OwnedAllocation]] = {}
        self._holding: dict[OwnedAllocation, str] = {}  # the session of each allocation
        self._jobs: dict[str, set[JobId]] = {}
        self._following: dict[JobId, str] = {}  # the session of each job
        self._runs: dict[OwnedRun, str] = {}  # the session that reports on each
        self._frozen = False

    @contextmanager
    def connected(self, owner: str, id: str) -> Iterator[asyncio.Event]:
        """Keep the session for the time of the block and a moment longer; yield its end event."""
        name = _name(owner, id)
        ended = self._open.setdefault(name, asyncio.Event())
        with self._clients.connected(name):
            yield ended

    def alive(self, owner: str, id: str) -> bool:
        return _name(owner, id) in self._open

    def hold(self, owner: str, session: str, id: AllocationId) -> bool:
        """Move an allocation to a session; return False if the session has ended."""
        name = _name(owner, session)
        if name not in self._open:
            return False
        self.let_go(owner, id)
        self._held.setdefault(name, set()).add((owner, id))
        self._holding[owner, id] = name
        return True

    def let_go(self, owner: str, id: AllocationId) -> None:
        """Take an allocation out of its session: it has ended, or is to outlast the session."""
        if (name := self._holding.pop((owner, id), None)) is not None:
            self._held[name].discard((owner, id))

    def attach(self, owner: str, session: str, job: JobId) -> bool:
        """Have a job end with a session; return False if the session has ended."""
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
        """Have the open calls of a run be lost with a session; return False if it has ended."""
        name = _name(owner, session)
        if name not in self._open:
            return False
        self._runs[owner, run] = name
        return True

    def forget_job(self, job: JobId) -> None:
        """Forget a job that has ended."""
        self._detach(job)
        self._attached.forget(job)

    def _detach(self, job: JobId) -> None:
        if (name := self._following.pop(job, None)) is not None:
            self._jobs[name].discard(job)
            self._attached.leave(job)

    def expect(self, held: Iterable[OwnedAllocation], runs: Iterable[OwnedRun] = ()) -> None:
        """End what sessions had before a restart, unless they claim it in time."""
        name = _name("", _BEFORE)
        self._open[name] = asyncio.Event()
        for key in held:
            self._held.setdefault(name, set()).add(key)
            self._holding[key] = name
        self._runs.update(dict.fromkeys(runs, name))
        self._clients.expect([name], AFTER_RESTART_S)

    async def end(self, owner: str, id: str) -> None:
        """End a session now; return when everything it held is released."""
        if self._frozen:
            raise ControllerStopping
        name = _name(owner, id)
        if name in self._open:
            self._open[name].set()
            await self._gone([name])

    def freeze(self) -> None:
        """Stop ending sessions: what is held stays held for the next controller."""
        self._frozen = True
        self._clients.freeze()

    async def _gone(self, names: list[str]) -> None:
        if self._frozen:
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
    """Return a key with the owner in it, so that no two owners share a session."""
    return f"{owner}\n{id}"


def still_there(
    owner: str, held: Sequence[AllocationId], jobs: Sequence[JobId]
) -> Callable[[Context], tuple[list[AllocationId], list[JobId]]]:
    """Return a question for what still exists of what a session had."""
    return lambda context: (
        _session_allocations(context, owner, held),
        _attached_jobs(context, owner, jobs),
    )


def _session_allocations(
    context: Context, owner: str, ids: Sequence[AllocationId]
) -> list[AllocationId]:
    """Return which of these the owner holds with a session."""
    live = [context.ledger.live[id] for id in ids if id in context.ledger.live]
    return [held.id for held in live if (held.owner, held.lifetime) == (owner, Lifetime.SESSION)]


def _attached_jobs(context: Context, owner: str, ids: Sequence[JobId]) -> list[JobId]:
    """Return which of these are open, and end with the client of this owner."""
    open_jobs = context.ledger.jobs.open
    found = [open_jobs[id] for id in ids if id in open_jobs]
    return [job.id for job in found if job.work.owner == owner and not job.work.detached]


def with_clients(context: Context) -> tuple[list[JobId], list[OwnedAllocation]]:
    """Return the attached jobs, and the allocations of sessions.

    Clients on other machines cannot come back to us: what they have there is left alone.
    """
    ledger = context.ledger
    away = {name for name, use in ledger.nodes.items() if use.elsewhere}
    sessions = [
        (held.owner, held.id)
        for held in ledger.live.values()
        if held.lifetime is Lifetime.SESSION and held.node not in away
    ]
    attached = [job for job in ledger.jobs.open.values() if not job.work.detached]
    return [job.id for job in attached if not job.attempt or job.attempt.node not in away], sessions
