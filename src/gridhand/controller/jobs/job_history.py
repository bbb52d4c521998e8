"""Ended jobs of a time range, added up in groups.

They are read on the store's reading side, a page at a time, so that neither a commit nor another
reader waits for long. A request reads so many jobs and no more; the reply says where to go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gridhand.controller.jobs.job_reader import JobReader
from gridhand.core.jobs.job import Job, JobState
from gridhand.core.jobs.past_jobs import PastJobs, group_of

MOST_READ = 20_000  # ended jobs in one request
_PAGE = 1_000
_ENDED = tuple(str(state) for state in JobState if state not in (JobState.QUEUED, JobState.RUNNING))


class HistoryFilter(NamedTuple):
    """Which ended jobs count: from `since` on, before `until`, both in ledger milliseconds."""

    group_by: str
    owner: str | None = None
    task_type: str | None = None
    node: str | None = None
    since: int | None = None
    until: int | None = None

    def admits(self, job: Job) -> bool:
        ended = job.ended or 0
        if self.since is not None and ended < self.since:
            return False
        if self.until is not None and ended >= self.until:
            return False
        if self.task_type is not None and group_of(job, "type") != self.task_type:
            return False
        return self.node is None or group_of(job, "node") == self.node


async def read_history(
    reader: JobReader, wanted: HistoryFilter, before: int | None, most: int
) -> dict[str, Any]:
    """Return the figures of the newest `most` ended jobs with numbers below `before`.

    Jobs have numbers in the order of their submission, so an old one may have ended lately: none
    is left out before it was read.
    """
    groups: dict[str | None, PastJobs] = {}
    total, left, more = PastJobs(), most, False
    while left:
        asked = min(_PAGE, left)
        page = await _page(reader, wanted.owner, before, asked)
        for job in page:
            if wanted.admits(job):
                total.add(job)
                groups.setdefault(group_of(job, wanted.group_by), PastJobs()).add(job)
        left -= len(page)
        more = len(page) == asked
        if not more:
            break
        before = page[-1].number
    most_first = sorted(groups.items(), key=lambda one: (-len(one[1]), one[0] or ""))
    return {
        "group_by": wanted.group_by,
        "groups": [{wanted.group_by: name, **tally.figures()} for name, tally in most_first],
        "total": total.figures(),
        "read": most - left,
        "before": str(before) if more else None,
    }


async def _page(reader: JobReader, owner: str | None, before: int | None, most: int) -> list[Job]:
    return await reader.read_store(
        lambda store: store.jobs(states=_ENDED, owner=owner, before=before, limit=most)
    )
