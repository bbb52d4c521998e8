"""PlacedJob: a job that runs according to the ledger."""

from __future__ import annotations

from typing import NamedTuple

from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.jobs.job import Job, JobState
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.model.names import NodeName
from gridhand.engines.base import Key


class PlacedJob(NamedTuple):
    """A job that runs according to the ledger, and its allocation."""

    job: Job
    held: Allocation | None

    @property
    def node(self) -> NodeName:
        assert self.job.attempt is not None
        return self.job.attempt.node

    @property
    def key(self) -> Key:
        assert self.job.attempt is not None
        return self.job.id, self.job.attempt.number


def attempts_elsewhere(context: Context) -> set[Key]:
    """Return the attempts that run on nodes of other machines, which only those can reach."""
    nodes = context.ledger.nodes
    return {
        placed.key
        for placed in placed_jobs(context)
        if placed.held is not None and nodes[placed.held.node].elsewhere
    }


def placed_jobs(context: Context) -> list[PlacedJob]:
    """Return the jobs that run according to the ledger."""
    ledger = context.ledger
    return [
        PlacedJob(job, ledger.live.get(job.attempt.allocation))
        for job in ledger.jobs.open.values()
        if job.state is JobState.RUNNING and job.attempt is not None
    ]
