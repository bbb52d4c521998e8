"""Timeline: the room that is kept free for the first jobs that cannot start.

1. The first jobs of a pass that cannot start get a claim: the node on which they can start first,
   and when, from the expected ends of what runs there. Each node has one claim at most. A gang gets
   a claim for each member, on different nodes and from the same time, or none.
2. Others may use that node if they say that they end before the claim starts, or if the job of the
   claim still fits beside them then. What does not say when it ends never crosses a claim.
3. Higher priorities need not respect claims of lower ones. Within a priority, others may pass a job
   freely while it has waited for less than `patience_ms`: before that, keeping room free costs more
   than it gains.
4. A claim whose time has come, while what was to end has not, is planned anew. It is brought
   forward if something on its node ends earlier than expected.

Expected ends are estimates, so nothing is granted by them: a claim only keeps others away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs.gang import member_ids
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
from gridhand.core.queue.gang_times import earliest_together, sooner_together
from gridhand.core.queue.node_ends import NodeEnds
from gridhand.core.queue.scheduling_times import PATIENCE_MS

MOST_CLAIMS = 8
_OVERDUE_MS = 60_000  # at least, for what runs longer than expected
_AGAIN_MS = 10_000  # after a search for a time that found none
_MANY_IN_VAIN = 64  # such searches, after which there are no more for a while

ExpectedMs = Callable[[Job], int]


class RoomClaim(NamedTuple):
    """The room that is kept free on a node for a job, from `start` on."""

    job: JobId
    rank: int
    node: NodeName
    asked: Request
    start: int
    since: int  # when the job began to wait
    stops: tuple[JobId, ...] = ()  # the jobs that were stopped to make this room
    gang: str | None = None  # its members have a claim each, all or none
    number: int = 0  # of the job, in the order of submission

    @property
    def preempts(self) -> bool:
        return bool(self.stops)


class Caller(NamedTuple):
    """Somebody who wants room now: its priority, and when it will end as far as is known."""

    job: JobId | None
    rank: int
    ends: int | None
    gang: str | None = None
    comes_back: int | None = None  # the number of a job that has run before, with its old place


class Timeline:
    """The claims of one ledger. It is rebuilt by the passes after a restart."""

    def __init__(self) -> None:
        self.patience_ms = PATIENCE_MS
        self.expected_ms: ExpectedMs = expected_ms
        self._claims: dict[JobId, RoomClaim] = {}
        self._on: dict[NodeName, JobId] = {}
        self._ends = NodeEnds(self.expected_end)
        self._in_vain: dict[JobId, int] = {}  # when a search that found no time may be repeated

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[RoomClaim]:
        return iter(self._claims.values())

    def get(self, job: JobId) -> RoomClaim | None:
        return self._claims.get(job)

    def drop(self, job: JobId) -> bool:
        """Remove the claim of a job, and those of its gang; return whether it had one."""
        claim = self._claims.get(job)
        for one in () if claim is None else self.with_gang(claim):
            del self._claims[one.job], self._on[one.node]
        return claim is not None

    def with_gang(self, claim: RoomClaim) -> list[RoomClaim]:
        """Return the claim, with those of the other members if it is that of a gang."""
        if claim.gang is None:
            return [claim]
        return [one for one in self._claims.values() if one.gang == claim.gang]

    def clear(self) -> None:
        """Drop all claims: what they were made by was undone, and passes make them again."""
        for job in list(self._claims):
            self.drop(job)

    def keep(self, wanted: Callable[[JobId], bool]) -> bool:
        """Drop the claims of jobs that no longer want one; return whether there were any."""
        ended = [job for job in self._claims if not wanted(job)]
        for job in ended:
            self.drop(job)
        return bool(ended)

    def drop_closed(self, ledger: Ledger) -> None:
        """Drop the claims of gangs that lack one of their nodes: the others are kept in vain."""
        for claim in [claim for claim in self._claims.values() if claim.gang is not None]:
            use = ledger.nodes.get(claim.node)
            if use is None or not use.open:
                self.drop(claim.job)

    def put(self, *claims: RoomClaim) -> None:
        """Add or replace a claim, or those of a gang, also those of others on the same nodes."""
        for claim in claims:
            self.drop(claim.job)
        for claim in claims:
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
        if known is None and (self._tried_in_vain(job.id, now) or not self._has_place(rank)):
            return
        self.drop(job.id)
        gang = None if job.work.nodes is None else job.array
        members = [job.id] if gang is None else member_ids(job)
        if gang is None:
            found = self._earliest(asked, rank, snapshot, now)
        else:
            found = earliest_together(self, asked, len(members), rank, snapshot, now)
        if found is None:
            self._in_vain[job.id] = now + _AGAIN_MS
            return
        start, nodes, choice = found
        since = max(job.submitted, job.begins or 0)
        both = zip(members, nodes, strict=True)
        self.put(
            *(
                RoomClaim(id, rank, node, choice, start, since, gang=gang, number=job.number)
                for id, node in both
            )
        )

    def _tried_in_vain(self, job: JobId, now: int) -> bool:
        """Return whether nothing was found for the job lately: a search looks at all nodes."""
        if len(self._in_vain) > _MANY_IN_VAIN:
            self._in_vain = {id: until for id, until in self._in_vain.items() if until > now}
        return self._in_vain.get(job, 0) > now or len(self._in_vain) > _MANY_IN_VAIN

    @property
    def is_full(self) -> bool:
        """Whether there are as many claims as there may be; those of a gang count once."""
        return len({claim.gang or claim.job for claim in self._claims.values()}) >= MOST_CLAIMS

    def _has_place(self, rank: int) -> bool:
        return not self.is_full or self._drop_behind(rank)

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
        if caller.rank < claim.rank or _comes_before(caller, claim):
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
        start = None if use is None else self.start_on(claim.asked, use, ledger, now)
        claim = claim._replace(start=now + _OVERDUE_MS if start is None else max(start, now + 1))
        self._claims[claim.job] = claim
        return claim

    def sooner(self, nodes: Iterable[NodeName], ledger: Ledger, now: int) -> None:
        """Bring claims forward where something has ended earlier than expected."""
        for node in nodes:
            claim = self._claims.get(self._on.get(node, JobId("")))
            use = ledger.nodes.get(node)
            if claim is None or claim.preempts or use is None:
                continue
            start = self._sooner_on(claim, use, ledger, now)
            if start is not None:
                for one in self.with_gang(claim):
                    self._claims[one.job] = one._replace(start=start)

    def _sooner_on(self, claim: RoomClaim, use: NodeUsage, ledger: Ledger, now: int) -> int | None:
        """Return when a claim can start if that is before it was to."""
        if claim.gang is None:
            return self.start_on(claim.asked, use, ledger, now, claim.start)
        return sooner_together(self, self.with_gang(claim), ledger, now)

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

    def look_again_at(self, node: NodeName) -> None:
        """Estimate the ends on a node anew: a job there has started or is being stopped."""
        self._ends.forget(node)

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
    ) -> tuple[int, list[NodeName], Request] | None:
        """Return the first time and node at which the request, or an alternative, should fit."""
        ledger, best = snapshot.ledger, None
        for choice in asked.choices():
            for use in self.candidates(choice, rank, ledger):
                before = None if best is None else best[0]
                start = self.start_on(choice, use, ledger, now, before)
                if start is not None and (best is None or start < best[0]):
                    best = start, [use.node.name], choice
        return best

    def candidates(self, asked: Request, rank: int, ledger: Ledger) -> Iterable[NodeUsage]:
        """Yield the nodes that take new work and have no claim that comes before."""
        self._ends.sync(ledger)
        for name in ledger.names if asked.node is None else [asked.node]:
            use = ledger.nodes.get(name)
            if use is None or not use.open or not permits(asked, use):
                continue
            other = self._claims.get(self._on.get(name, JobId("")))
            if other is None or other.rank > rank:
                yield use

    def start_on(
        self, asked: Request, use: NodeUsage, ledger: Ledger, now: int, before: int | None = None
    ) -> int | None:
        """Return when the request should fit on a node; None if never, or not `before` a time."""
        ends = self._ends.on(use, ledger, now)
        first = _enough_at(asked, use, ends, ledger, before)
        if first is None or asked.gpu is None:
            return None if first is None else ends[first][0]
        times = sorted({end for end, _ in ends[first:]})
        low, high = 0, len(times)
        while low < high:  # what fits at one time fits at each later one
            middle = (low + high) // 2
            if self._usage_at(use, times[middle], ledger, now).room(asked, {}) is not None:
                high = middle
            else:
                low = middle + 1
        return times[low] if low < len(times) else None

    def _usage_at(self, use: NodeUsage, at: int, ledger: Ledger, now: int) -> NodeUsage:
        gone = {id for end, id in self._ends.on(use, ledger, now) if end <= at}
        then = use.empty()
        for id in use.allocations:
            if id not in gone:
                then.add(ledger.live[id])
        return then


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


def _comes_before(caller: Caller, claim: RoomClaim) -> bool:
    """Return whether a claim is that of the caller's own gang, or of a job behind it in its line.

    A gang that comes back has its old place, and claims made while it ran do not keep it off.
    """
    if claim.gang is not None and claim.gang == caller.gang:
        return True
    old = caller.comes_back
    return old is not None and caller.rank == claim.rank and old < claim.number


def why_kept(claim: RoomClaim, now: int) -> str:
    """Return why room on a node is refused."""
    if claim.preempts:
        return f"room on {claim.node} is being made for job {claim.job}, which is urgent"
    wait = duration_text(claim.start - now)
    return f"room on {claim.node} is kept for job {claim.job}, which should start in {wait}"


def _enough_at(
    asked: Request,
    use: NodeUsage,
    ends: Sequence[tuple[int, AllocationId]],
    ledger: Ledger,
    before: int | None,
) -> int | None:
    """Return the index of the end after which the plain amounts are free; None if never."""
    lacking = {
        name: amount - use.total.get(name, 0) + use.held.get(name, 0)
        for name, amount in asked.amounts.pairs
    }
    for index, (end, id) in enumerate(ends):
        if before is not None and end >= before:
            return None
        for name, amount in ledger.live[id].amounts.pairs:
            if name in lacking:
                lacking[name] -= amount
        if all(amount <= 0 for amount in lacking.values()):
            return index
    return None


def pretend(placed: Placement) -> Allocation:
    """Return an allocation that stands for a placement, for sums alone."""
    return Allocation(
        AllocationId(""), 0, 0, "", "", placed.node, placed.asked.amounts, placed.devices,
        AllocationState.ACTIVE, Lifetime.JOB, None, None, None, None, None, 0,
    )  # fmt: skip
