"""Forecast: when a waiting job should start, from what is expected of all that runs and waits.

1. A job for which room is kept starts when its claim says so.
2. For any other, the claims that come before it are booked, then the jobs before it in the queue,
   each on the node and at the time at which it should fit first, for as long as it is expected to
   run, and then the job itself. What is booked counts as held from now on, so that the forecast is
   rather too late than too early.
3. If that takes too long, or something has no expected end, the start is not known.

An estimate for people: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.ledger import Placement
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import Request
from gridhand.core.placement.snapshot import Snapshot, permits
from gridhand.core.queue.delays import USUAL_MS, current_request
from gridhand.core.queue.timeline import RoomClaim, Timeline, pretend

_MOST_WORK = 20_000  # allocations that are added up for one forecast: some 20 ms

_Held = tuple[int | None, Allocation]  # until when


class ExpectedStart(NamedTuple):
    """When and where a job should start."""

    at: int
    node: NodeName


class TooMuchWork(Exception):
    """The forecast would take too long."""


def expected_start(
    job: Job, rank: int, ahead: Iterable[Job], timeline: Timeline, snapshot: Snapshot, now: int
) -> ExpectedStart | None:
    """Return when a job should start that is behind these others; None if that is not known."""
    claim = timeline.get(job.id)
    if claim is not None:
        return ExpectedStart(max(claim.start, now), claim.node)
    forecast = Forecast(timeline, snapshot, now)
    try:
        for other in sorted(timeline, key=lambda claim: claim.start):
            if other.rank <= rank:
                forecast.book_claim(other)
        for one in ahead:
            if timeline.get(one.id) is None:
                forecast.book(one)
        return forecast.book(job)
    except TooMuchWork:
        return None


class Forecast:
    """The nodes as they should be, with what was booked on them."""

    def __init__(self, timeline: Timeline, snapshot: Snapshot, now: int) -> None:
        self._timeline, self._snapshot, self._now = timeline, snapshot, now
        self._held: dict[NodeName, list[_Held]] = {}
        self._work = 0

    def book_claim(self, claim: RoomClaim) -> None:
        """Book the room that is kept for a job, or for an allocation that waits."""
        use = self._snapshot.ledger.nodes.get(claim.node)
        job = self._snapshot.ledger.jobs.open.get(claim.job)
        lasts_ms = USUAL_MS if job is None else self._timeline.expected_ms(job)
        if use is not None:
            self._add(claim.asked, use, max(claim.start, self._now), lasts_ms)

    def book(self, job: Job) -> ExpectedStart | None:
        """Book room for a job at the first time and node at which it should fit.

        A gang is booked with its first member, on as many nodes from the same time.
        """
        if job.work.nodes is not None:
            return None if job.array_index else self._book_gang(job, job.work.nodes)
        asked, best = current_request(job, self._now), None
        if asked.names_allocations:
            return None
        for choice in asked.choices():
            for use in self._candidates(choice):
                at = self._start_on(choice, use)
                if at is not None and (best is None or at < best[0]):
                    best = at, use, choice
        if best is None:
            return None
        at, use, choice = best
        self._add(choice, use, at, self._timeline.expected_ms(job))
        return ExpectedStart(at, use.node.name)

    def _book_gang(self, job: Job, nodes: int) -> ExpectedStart | None:
        asked = replace(current_request(job, self._now), alternatives=())
        if asked.names_allocations:
            return None
        times = ((self._start_on(asked, use), use) for use in self._candidates(asked))
        found = [(at, use.node.name, use) for at, use in times if at is not None]
        first = sorted(found, key=lambda one: one[:2])[:nodes]
        if len(first) < nodes:
            return None
        start, lasts_ms = first[-1][0], self._timeline.expected_ms(job)
        for _, _, use in first:
            self._add(asked, use, start, lasts_ms)
        return ExpectedStart(start, first[0][1])

    def _candidates(self, asked: Request) -> Iterable[NodeUsage]:
        ledger = self._snapshot.ledger
        for name in ledger.names if asked.node is None else [asked.node]:
            use = ledger.nodes.get(name)
            if use is not None and use.open and permits(asked, use):
                yield use

    def _on(self, use: NodeUsage) -> list[_Held]:
        held = self._held.get(use.node.name)
        if held is None:
            ledger, expected_end = self._snapshot.ledger, self._timeline.expected_end
            live = [ledger.live[id] for id in use.allocations]
            held = [(expected_end(one, ledger, self._now), one) for one in live]
            self._held[use.node.name] = held
        return held

    def _start_on(self, asked: Request, use: NodeUsage) -> int | None:
        if any(amount > use.total.get(name, 0) for name, amount in asked.amounts.pairs):
            return None
        times = [self._now, *sorted({end for end, _ in self._on(use) if end is not None})]
        first, last = 0, len(times)
        while first < last:  # what fits at one time fits at each later one
            middle = (first + last) // 2
            if self._at(times[middle], use).room(asked, {}) is not None:
                last = middle
            else:
                first = middle + 1
        return times[first] if first < len(times) else None

    def _at(self, at: int, use: NodeUsage) -> NodeUsage:
        then = use.empty()
        held = self._on(use)
        self._work += len(held) + 5
        if self._work > _MOST_WORK:
            raise TooMuchWork
        for end, one in held:
            if end is None or end > at:
                then.add(one)
        return then

    def _add(self, asked: Request, use: NodeUsage, at: int, lasts_ms: int) -> None:
        devices = self._at(at, use).room(asked, {})
        if devices is not None:
            placed = Placement(asked, use.node.name, devices)
            self._on(use).append((at + lasts_ms, pretend(placed)))
