"""Timeline: the room that is kept free for the first jobs that cannot start.

1. The first jobs of a pass that cannot start get a claim: the node on which they can start first,
   and when, from the expected ends of what runs there. Each node has one claim at most.
2. Others may use that node if they say that they end before the claim starts, or if the job of the
   claim still fits beside them then. What does not say when it ends never crosses a claim.
3. Higher priorities need not respect claims of lower ones. Within a priority, others may pass a job
   freely while it has waited for less than `patience_ms`: before that, keeping room free costs more
   than it gains.
4. A claim whose time has come, while what was to end has not, is planned anew.

Expected ends are estimates, so nothing is granted by them: a claim only keeps others away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation, AllocationState, Lifetime
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.durations import duration_text
from gridhand.core.model.names import AllocationId, JobId, NodeName
from gridhand.core.model.requests import Request
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot, permits
from gridhand.core.placement.strategies import OwnStrategy
from gridhand.core.queue.delays import expected_ms
from gridhand.core.queue.scheduling_times import PATIENCE_MS

MOST_CLAIMS = 8
_OVERDUE_MS = 60_000  # at least, for what runs longer than expected

ExpectedMs = Callable[[Job], int]


class RoomClaim(NamedTuple):
    """The room that is kept free on a node for a job, from `start` on."""

    job: JobId
    rank: int
    node: NodeName
    asked: Request
    start: int
    since: int  # when the job began to wait
    preempts: bool = False  # others were stopped to make this room


class Caller(NamedTuple):
    """Somebody who wants room now: its priority, and when it will end as far as is known."""

    job: JobId | None
    rank: int
    ends: int | None


class Timeline:
    """The claims of one ledger. It is rebuilt by the passes after a restart."""

    def __init__(self) -> None:
        self.patience_ms = PATIENCE_MS
        self.expected_ms: ExpectedMs = expected_ms
        self._claims: dict[JobId, RoomClaim] = {}
        self._on: dict[NodeName, JobId] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[RoomClaim]:
        return iter(self._claims.values())

    def get(self, job: JobId) -> RoomClaim | None:
        return self._claims.get(job)

    def drop(self, job: JobId) -> bool:
        """Remove the claim of a job; return whether it had one."""
        claim = self._claims.pop(job, None)
        if claim is not None:
            del self._on[claim.node]
        return claim is not None

    def keep(self, wanted: Callable[[JobId], bool]) -> bool:
        """Drop the claims of jobs that no longer want one; return whether there were any."""
        ended = [job for job in self._claims if not wanted(job)]
        for job in ended:
            self.drop(job)
        return bool(ended)

    def put(self, claim: RoomClaim) -> None:
        """Add or replace a claim, also one of another job on the same node."""
        self.drop(claim.job)
        if (other := self._on.get(claim.node)) is not None:
            self.drop(other)
        self._claims[claim.job] = claim
        self._on[claim.node] = claim.job

    # ---- decisions

    def plan(self, job: Job, rank: int, asked: Request, snapshot: Snapshot, now: int) -> None:
        """Make a claim for a job that cannot start, if there may be one and a time for it."""
        known = self._claims.get(job.id)
        if known is not None and known.start > now:
            return
        if known is None and len(self._claims) >= MOST_CLAIMS and not self._drop_behind(rank):
            return
        self.drop(job.id)
        found = self._earliest(asked, rank, snapshot, now)
        if found is not None:
            start, node, choice = found
            since = max(job.submitted, job.begins or 0)
            self.put(RoomClaim(job.id, rank, node, choice, start, since))

    def _drop_behind(self, rank: int) -> bool:
        """Drop the last claim of a lower priority; return whether there was one."""
        behind = [claim for claim in self._claims.values() if claim.rank > rank]
        if not behind:
            return False
        return self.drop(max(behind, key=lambda claim: (claim.rank, claim.since)).job)

    def blocking(
        self, placed: Placement, caller: Caller, ledger: Ledger, now: int
    ) -> RoomClaim | None:
        """Return the claim that a placement would break; None if it breaks none."""
        job = self._on.get(placed.node)
        if job is None or job == caller.job:
            return None
        claim = self._claims[job]
        if caller.rank < claim.rank:
            return None
        if not claim.preempts:
            if caller.rank == claim.rank and now - claim.since < self.patience_ms:
                return None
            claim = self._on_time(claim, ledger, now)
        if caller.ends is not None and caller.ends <= claim.start:
            return None
        return None if self._fits_beside(claim, placed, ledger, now) else claim

    def _on_time(self, claim: RoomClaim, ledger: Ledger, now: int) -> RoomClaim:
        """Return the claim, planned anew on its node if its time has come."""
        if claim.start > now:
            return claim
        use = ledger.nodes.get(claim.node)
        start = None if use is None else self._start_on(claim.asked, use, ledger, now)
        claim = claim._replace(start=now + _OVERDUE_MS if start is None else max(start, now + 1))
        self._claims[claim.job] = claim
        return claim

    def _fits_beside(self, claim: RoomClaim, placed: Placement, ledger: Ledger, now: int) -> bool:
        use = ledger.nodes.get(claim.node)
        if use is None:
            return True
        then = self._usage_at(use, claim.start, ledger, now)
        if not then.admits(placed.asked.amounts, placed.devices, {}):
            return False
        then.add(pretend(placed))
        return then.room(claim.asked, {}) is not None

    # ---- expected ends

    def expected_end(self, held: Allocation, ledger: Ledger, now: int) -> int | None:
        """Return when an allocation should be free, later than now; None if nothing says so."""
        if held.lifetime is not Lifetime.JOB:
            return None if held.deadline is None else max(held.deadline, now + 1)
        ends = [self._end_of(job, now) for job in ledger.jobs.holding(held.id)]
        return max(ends, default=now + 1)

    def _end_of(self, job: Job, now: int) -> int:
        attempt = job.attempt
        if attempt is None:
            return now + 1
        if attempt.stopping is not None:
            return now + job.work.grace_ms + 1
        since = attempt.placed if attempt.started is None else attempt.started
        end = since + self.expected_ms(job)
        # It runs longer than expected, and so perhaps a while longer.
        return end if end > now else now + max(_OVERDUE_MS, (now - since) // 10)

    def _earliest(
        self, asked: Request, rank: int, snapshot: Snapshot, now: int
    ) -> tuple[int, NodeName, Request] | None:
        """Return the first time and node at which the request, or an alternative, should fit."""
        ledger, best = snapshot.ledger, None
        for choice in asked.choices():
            for use in self._candidates(choice, rank, ledger):
                start = self._start_on(choice, use, ledger, now)
                if start is not None and (best is None or start < best[0]):
                    best = start, use.node.name, choice
        return best

    def _candidates(self, asked: Request, rank: int, ledger: Ledger) -> Iterable[NodeUsage]:
        """Yield the nodes that take new work and have no claim that comes before."""
        for name in ledger.names if asked.node is None else [asked.node]:
            use = ledger.nodes.get(name)
            if use is None or not use.open or not permits(asked, use):
                continue
            other = self._claims.get(self._on.get(name, JobId("")))
            if other is None or other.rank > rank:
                yield use

    def _start_on(self, asked: Request, use: NodeUsage, ledger: Ledger, now: int) -> int | None:
        """Return when the request should fit on a node."""
        if any(amount > use.total.get(name, 0) for name, amount in asked.amounts.pairs):
            return None
        ends = {id: self.expected_end(ledger.live[id], ledger, now) for id in use.allocations}
        times = sorted({end for end in ends.values() if end is not None})
        first, last = 0, len(times)
        while first < last:  # what fits at one time fits at each later one
            middle = (first + last) // 2
            if self._room_at(asked, use, times[middle], ledger, ends):
                last = middle
            else:
                first = middle + 1
        if first == len(times):
            return None
        return times[first]

    def _room_at(
        self,
        asked: Request,
        use: NodeUsage,
        at: int,
        ledger: Ledger,
        ends: dict[AllocationId, int | None],
    ) -> bool:
        return _without_ended(use, at, ledger, ends).room(asked, {}) is not None

    def _usage_at(self, use: NodeUsage, at: int, ledger: Ledger, now: int) -> NodeUsage:
        ends = {id: self.expected_end(ledger.live[id], ledger, now) for id in use.allocations}
        return _without_ended(use, at, ledger, ends)


def place_around(
    timeline: Timeline,
    asked: Request,
    caller: Caller,
    snapshot: Snapshot,
    strategy: OwnStrategy | None,
    now: int,
) -> Placement | Refusal | RoomClaim:
    """Place a request where it breaks no claim; return the first claim if that is all it lacks."""
    placed = place(asked, snapshot, strategy)
    first: RoomClaim | None = None
    tried: list[NodeName] = []
    while isinstance(placed, Placement):
        claim = timeline.blocking(placed, caller, snapshot.ledger, now)
        if claim is None:
            return placed if first is None else placed._replace(whole=asked)
        first = first or claim
        tried.append(placed.node)
        if asked.node is not None:
            break
        placed = place(asked.avoiding(tried), snapshot, strategy)
    return first or placed


def why_kept(claim: RoomClaim, now: int) -> str:
    """Return why room on a node is refused."""
    if claim.preempts:
        return f"room on {claim.node} is being made for job {claim.job}, which is urgent"
    wait = duration_text(claim.start - now)
    return f"room on {claim.node} is kept for job {claim.job}, which should start in {wait}"


def _without_ended(
    use: NodeUsage, at: int, ledger: Ledger, ends: dict[AllocationId, int | None]
) -> NodeUsage:
    """Return the node as it should be at a time."""
    then = use.empty()
    for id, end in ends.items():
        if end is None or end > at:
            then.add(ledger.live[id])
    return then


def pretend(placed: Placement) -> Allocation:
    """Return an allocation that stands for a placement, for sums alone."""
    return Allocation(
        AllocationId(""), 0, 0, "", "", placed.node, placed.asked.amounts, placed.devices,
        AllocationState.ACTIVE, Lifetime.JOB, None, None, None, None, None, 0,
    )  # fmt: skip
