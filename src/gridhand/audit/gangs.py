"""Checks gangs: their members run together, each on a node of its own, or not at all (I6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gridhand.audit.rows import Violation

if TYPE_CHECKING:
    from gridhand.audit.jobs import AuditedJob


def check_gangs(jobs: Iterable[AuditedJob]) -> list[Violation]:
    """Return the violations between the open members of each gang."""
    gangs: dict[str, list[AuditedJob]] = {}
    for job in jobs:
        if job.nodes is not None:
            gangs.setdefault(job.array or job.id, []).append(job)
    return [
        Violation("I6", gang, message)
        for gang, members in gangs.items()
        for message in _wrong(members)
    ]


def _wrong(members: list[AuditedJob]) -> list[str]:
    wrong = []
    nodes = members[0].nodes or 0
    if any((job.array_index or 0) >= nodes or job.nodes != nodes for job in members):
        wrong.append(f"is a gang of {nodes}, but its members do not say so")
    running = [attempt for job in members if (attempt := job.attempt) is not None]
    places = Counter(attempt.node for attempt in running)
    wrong += [f"has {count} members on {node}" for node, count in places.items() if count > 1]
    going_on = [attempt for attempt in running if attempt.stopping is None]
    queued = [job.id for job in members if job.state == "queued"]
    if going_on and queued:
        wrong.append(f"runs, but its member {queued[0]} is queued")
    if len({attempt.number for attempt in going_on}) > 1:
        wrong.append("has members that run for a different number of times")
    return wrong
