"""JobLogs: the output of jobs, from our own files or from those that their users named."""

from __future__ import annotations

import os

from gridhand.controller.jobs.job_users import JobUsers
from gridhand.controller.jobs.start_orders import log_path
from gridhand.core.jobs.job import Job
from gridhand.engines.base import Engine
from gridhand.home import Home
from gridhand.posix.unix_users import UnixUser, UnknownUser


class JobLogs:
    """Reads the output of jobs where the engine finds it."""

    def __init__(self, engine: Engine, home: Home, users: JobUsers) -> None:
        self._engine = engine
        self._home = home
        self._users = users

    async def read(
        self, job: Job, stream: str, offset: int, limit: int
    ) -> list[tuple[int, bytes | int]]:
        """Return the output from an offset on: bytes, or how many of them were cut out."""
        path, user = self._find(job, stream)
        return await self._engine.read_log(path, offset, limit, **user)

    async def size(self, job: Job, stream: str) -> int:
        """Return how much the job has written, including what was cut out."""
        path, user = self._find(job, stream)
        return await self._engine.log_size(path, **user)

    def _find(self, job: Job, stream: str) -> tuple[str, dict[str, UnixUser]]:
        """Return where a stream goes, and the user with whose rights to read it, if not ours.

        A file that the user named may be a link to any other by now.
        """
        path = log_path(job, self._home.job(job.id), stream)
        if getattr(job.work, stream) is None:
            return path, {}
        try:
            user = self._users.find(job.work.owner)
        except UnknownUser:
            return os.devnull, {}
        return path, {} if user is None else {"user": user}
