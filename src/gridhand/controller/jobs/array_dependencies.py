"""Dependencies on arrays: a job that runs after an array runs after all of its tasks."""

from __future__ import annotations

from gridhand.controller.jobs.job_reader import JobFilter, JobReader
from gridhand.core.errors import InvalidInput
from gridhand.core.jobs.job import After

MOST_AFTER = 10_000  # jobs that one is to run after


async def expand_arrays(after: tuple[After, ...], reader: JobReader) -> tuple[After, ...]:
    """Replace each array by its tasks, which all exist from the moment it is submitted."""
    expanded: list[After] = []
    for id, condition in after:
        whole = JobFilter(array=id, limit=MOST_AFTER)
        tasks = [] if "_" in id else await reader.jobs(whole)
        ids = [view.job.id for view in reversed(tasks)] or [id]
        expanded += [After(task, condition) for task in ids]
    if len(expanded) > MOST_AFTER:
        raise InvalidInput("after", f"{len(expanded)} jobs", f"at most {MOST_AFTER} jobs")
    return tuple(expanded)
