"""JobFinder: the job that a request names, if the caller may know of it."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request

from gridhand.api.auth import acts_as, check_visible, only_owner, owner_of
from gridhand.controller.controller import Controller
from gridhand.controller.jobs.job_reader import JobFilter
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.core.errors import InvalidDependency, NotYours, UnknownJob
from gridhand.core.jobs.job import After
from gridhand.core.model.names import JobId
from gridhand.core.queue.job_view import JobView

_LAST = frozenset({"@", "last"})


class JobFinder:
    """Finds jobs for callers."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def resolve(self, id: str, request: Request) -> JobId:
        """Return the id of a job; `@` and `last` are the caller's newest."""
        if id not in _LAST:
            self._controller.home.job(id)  # raises if it is not an id
            return JobId(id)
        newest = await self._controller.jobs(JobFilter(owner=owner_of(request), limit=1))
        if not newest:
            raise UnknownJob(id)
        return newest[0].job.id

    async def find(self, id: str, request: Request) -> JobView:
        """Return a job that the caller may know of."""
        view = await self._controller.job(await self.resolve(id, request))
        check_visible(request, view.job.work.owner, UnknownJob(id))
        return view

    async def check_dependencies(self, after: Sequence[After], request: Request) -> None:
        """Raise as for unknown jobs if some to run after are not the caller's to know of."""
        if (only := only_owner(request)) is None:
            return
        known = {
            view.job.id: view for view in await self._controller.find([one.id for one in after])
        }
        for id in (one.id for one in after):
            array = [] if id in known else await self._controller.jobs(JobFilter(array=id, limit=1))
            views = [known[id]] if id in known else array
            if any(view.job.work.owner != only for view in views):
                raise InvalidDependency("the new one", id)

    async def find_own(self, id: str, request: Request) -> JobView:
        """Return a job; raise `NotYours` unless the caller may read its output and end it."""
        view = await self.find(id, request)
        who = acts_as(request)
        if who not in (view.job.work.owner, ADMIN):
            raise NotYours(view.job.id, who, "job")
        return view
