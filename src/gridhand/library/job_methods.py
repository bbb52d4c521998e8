"""The methods of `Grid` and `AsyncGrid` that are about jobs. Only a controller runs any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridhand.client import routes
from gridhand.client.transport import Address
from gridhand.core.calls import Call
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.library.asking import Asking
from gridhand.library.backend import Backend, read_count
from gridhand.library.jobs import AsyncJob, Facts, Job, cancelling, looking
from gridhand.library.remote import Remote
from gridhand.library.submitting import Submitting, job_id, submission, with_jobs

if TYPE_CHECKING:
    import os

    from gridhand.library.calls import Calls

Asked = Request | Resources | Mapping[str, Any] | str | None

_MOST = 10_000


class RunsJobs:
    """What a grid with a controller can do besides keeping a ledger."""

    _backend: Backend
    _calls: Calls

    def run(
        self,
        command: Sequence[str] | str,
        resources: Asked = None,
        *,
        name: str | None = None,
        priority: str | None = None,
        task_type: str | None = None,
        time_limit: float | None = None,
        retries: int = 0,
        retry_on: Iterable[str | int] | None = None,
        after: Any = (),
        within: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        detach: bool = False,
        op_id: str | None = None,
        **named: Any,
    ) -> Job:
        """Queue a command, to be run where it fits, and come back at once with its job.

        It needs one core unless it says otherwise; keywords are as for `allocate`. It is run in
        this folder with this environment, and `env` added to it. It ends when this grid is closed
        or this process ends, unless it is to `detach`. `after` are jobs, or ids of jobs, that must
        have succeeded before; `(job, "afterany")` is for one that must only have ended. `within` is
        something that is held: it runs in that, at once, and asks for nothing itself.
        """
        given = {key: value for key, value in locals().items() if key not in _OTHERS}
        call = _submitting(self, command, resources, named, op_id, given)
        return Job(with_jobs(self._backend).call(call)[0], with_jobs(self._backend))

    def run_array(
        self,
        command: Sequence[str] | str,
        array: str,
        resources: Asked = None,
        *,
        name: str | None = None,
        priority: str | None = None,
        task_type: str | None = None,
        time_limit: float | None = None,
        retries: int = 0,
        retry_on: Iterable[str | int] | None = None,
        after: Any = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        detach: bool = False,
        op_id: str | None = None,
        **named: Any,
    ) -> list[Job]:
        """Queue a command once for each place of an array: `1-10`, or `1-10%4` for four at once.

        Each task finds its place in `GRIDHAND_ARRAY_TASK_ID`; the rest is as for `run`.
        """
        given = {key: value for key, value in locals().items() if key not in _OTHERS}
        call = _submitting(self, command, resources, named, op_id, given)
        remote = with_jobs(self._backend)
        return [Job(facts, remote) for facts in remote.call(call)]

    def jobs(
        self, *, state: str | Iterable[str] = (), owner: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Jobs, the newest first; `open` stands for those that are queued or running."""
        remote = with_jobs(self._backend)
        return [Job(facts, remote) for facts in remote.call(_listing(state, owner, limit))]

    def job(self, id: str) -> Job:
        """The job with that id."""
        remote = with_jobs(self._backend)
        return Job(remote.call(looking(job_id(id))), remote)

    def cancel(self, job: str | Job) -> list[Job]:
        """End a job, or every task of an array; those that have ended stay as they are."""
        remote = with_jobs(self._backend)
        return [
            Job(facts, remote) for facts in remote.call(cancelling(self._calls.owner, job_id(job)))
        ]

    def result(self, job: str | Job, timeout: float | None = None) -> Any:
        """What a call of a task returned that was detached, or its error, once it has ended."""
        from gridhand.library.detached import result_of

        return result_of(self.job(job_id(job)).wait(timeout))


class RunsJobsAsync:
    """The same, to be awaited."""

    _backend: Backend
    _calls: Calls

    def _ask(self, call: Call[Any]) -> Any:
        raise NotImplementedError

    async def run(
        self,
        command: Sequence[str] | str,
        resources: Asked = None,
        *,
        name: str | None = None,
        priority: str | None = None,
        task_type: str | None = None,
        time_limit: float | None = None,
        retries: int = 0,
        retry_on: Iterable[str | int] | None = None,
        after: Any = (),
        within: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        detach: bool = False,
        op_id: str | None = None,
        **named: Any,
    ) -> AsyncJob:
        """Queue a command, as `Grid.run` does. One who is cancelled meanwhile leaves no job."""
        given = {key: value for key, value in locals().items() if key not in _OTHERS}
        call = _submitting(self, command, resources, named, op_id, given)
        return AsyncJob((await self._ask(call))[0], with_jobs(self._backend))

    async def run_array(
        self,
        command: Sequence[str] | str,
        array: str,
        resources: Asked = None,
        *,
        name: str | None = None,
        priority: str | None = None,
        task_type: str | None = None,
        time_limit: float | None = None,
        retries: int = 0,
        retry_on: Iterable[str | int] | None = None,
        after: Any = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        detach: bool = False,
        op_id: str | None = None,
        **named: Any,
    ) -> list[AsyncJob]:
        """Queue a command once for each place of an array, as `Grid.run_array` does."""
        given = {key: value for key, value in locals().items() if key not in _OTHERS}
        call = _submitting(self, command, resources, named, op_id, given)
        remote = with_jobs(self._backend)
        return [AsyncJob(facts, remote) for facts in await self._ask(call)]

    async def jobs(
        self, *, state: str | Iterable[str] = (), owner: str | None = None, limit: int = 100
    ) -> list[AsyncJob]:
        """Jobs, the newest first; `open` stands for those that are queued or running."""
        remote = with_jobs(self._backend)
        found = await self._ask(_listing(state, owner, limit))
        return [AsyncJob(facts, remote) for facts in found]

    async def job(self, id: str) -> AsyncJob:
        """The job with that id."""
        remote = with_jobs(self._backend)
        return AsyncJob(await self._ask(looking(job_id(id))), remote)

    async def cancel(self, job: str | AsyncJob) -> list[AsyncJob]:
        """End a job, or every task of an array; those that have ended stay as they are."""
        remote = with_jobs(self._backend)
        found = await self._ask(cancelling(self._calls.owner, job_id(job)))
        return [AsyncJob(facts, remote) for facts in found]

    async def result(
        self,
        job: str | AsyncJob,
        timeout: float | None = None,  # noqa: ASYNC109 - as Grid.result
    ) -> Any:
        """What a call of a task returned that was detached, or its error, once it has ended."""
        from gridhand.library.detached import result_of

        ended = await (await self.job(job_id(job))).wait(timeout)
        return result_of(Job(ended.facts, with_jobs(self._backend)))


_OTHERS = frozenset({"self", "command", "resources", "named", "op_id"})


def _submitting(
    grid: RunsJobs | RunsJobsAsync,
    command: Sequence[str] | str,
    resources: Asked,
    named: Mapping[str, Any],
    op_id: str | None,
    given: Mapping[str, Any],
) -> Submitting:
    local = _is_here(with_jobs(grid._backend))
    body = submission(command, resources, named, local=local, **given)
    return Submitting(grid._calls.owner, op_id, body)


def _is_here(remote: Remote) -> bool:
    return bool(Address.parse(remote.checked().client(None).address).path)


def _listing(state: str | Iterable[str], owner: str | None, limit: int) -> Call[list[Facts]]:
    states = (state,) if isinstance(state, str) else tuple(state)
    wanted = routes.jobs(states, owner, None, read_count(limit, "limit", 1, _MOST))
    return Asking(None, wanted, list)
