"""Predictions from the stored jobs, read on the store's reading side: no commit waits for them."""

from __future__ import annotations

from gridhand.controller.jobs.job_reader import JobReader
from gridhand.core.jobs.job import Job, JobState
from gridhand.core.jobs.task_kind import task_kind
from gridhand.core.prediction.task_model import TaskModel, TaskPrediction
from gridhand.store.base import Store

MOST_READ = 20_000  # of the newest jobs, among which those of one kind are sought
_PAGE = 2_000
_ENOUGH = 1_000  # jobs of a kind; older ones say little
_ENDED = (str(JobState.SUCCEEDED), str(JobState.FAILED))


async def predict_task(reader: JobReader, kind: str, owner: str | None) -> TaskPrediction:
    """Predict the next run of a kind of task, from the jobs of one owner or of all."""
    jobs = await reader.read_store(lambda store: _newest(store, kind, owner))
    model = TaskModel()
    for job in sorted(jobs, key=lambda job: (job.ended or 0, job.number)):
        model.learn(job)
    return model.predict()


def _newest(store: Store, kind: str, owner: str | None) -> list[Job]:
    found: list[Job] = []
    before: int | None = None
    for _ in range(MOST_READ // _PAGE):
        page = store.jobs(states=_ENDED, owner=owner, before=before, limit=_PAGE)
        found += [job for job in page if task_kind(job.work) == kind]
        if len(page) < _PAGE or len(found) >= _ENOUGH:
            break
        before = page[-1].number
    return found[:_ENOUGH]
