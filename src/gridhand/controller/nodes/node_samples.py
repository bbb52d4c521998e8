"""NodeSamples: the latest measurement of each node, kept in memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gridhand.controller.nodes.sample_check import check_usage
from gridhand.core.errors import InvalidInput
from gridhand.core.jobs.job import Job
from gridhand.core.model.names import NodeName
from gridhand.engines.base import JobUsage, ProblemReport, UsageEvent
from gridhand.posix.boot_clock import wall_ms

_log = logging.getLogger(__name__)


class NodeSamples:
    """The latest valid sample of each node, when it was heard of, and how many were invalid."""

    def __init__(self) -> None:
        self.latest: dict[NodeName, UsageEvent] = {}
        self.seen: dict[NodeName, int] = {}  # milliseconds since the epoch
        self.refused: Counter[NodeName] = Counter()
        self._why: dict[NodeName, str] = {}

    def note_seen(self, node: NodeName) -> None:
        self.seen[node] = wall_ms()

    def take(self, node: NodeName, raw: object) -> UsageEvent | None:
        """Keep a sample and return it; count it and return None if it is invalid."""
        self.note_seen(node)
        try:
            usage = check_usage(raw)
        except InvalidInput as error:
            self.refused[node] += 1
            self._why[node] = str(error)
            if self.refused[node] == 1:  # the others are counted
                _log.warning("a sample of %s is ignored: %s", node, error)
            return None
        self.latest[node] = usage
        return usage

    def with_problems(
        self, known: Mapping[NodeName, Sequence[ProblemReport]]
    ) -> dict[NodeName, Sequence[ProblemReport]]:
        """Return the problems of nodes with those of their samples."""
        found = dict(known)
        for node, count in self.refused.items():
            problem: ProblemReport = {
                "message": f"ignored samples: {count}; the last because of {self._why[node]}",
                "hint": "Restart the agent of that node; update it if that does not help.",
                "device": "",
            }
            found[node] = [*found.get(node, ()), problem]
        return found

    def of_job(self, job: Job) -> JobUsage | None:
        """Return what a running job was last measured to use."""
        usage = self.latest.get(job.attempt.node) if job.attempt is not None else None
        return None if usage is None else usage["jobs"].get(job.id)

    def facts(self, node: NodeName) -> dict[str, Any]:
        """Return the sample with when the node was last seen, for lists of nodes."""
        usage: Mapping[str, Any] = self.latest.get(node) or {}
        return {**usage, "seen_ms": self.seen.get(node), "ignored": self.refused[node]}
