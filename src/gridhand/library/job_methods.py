"""The methods of `Grid` that submit and find jobs. Only a grid with a controller runs jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridhand.client import routes
from gridhand.client.moments import Moment
from gridhand.client.transport import Address
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.core.operations import Operation
from gridhand.library.backend import Duration, read_count
from gridhand.library.grid_base import GridBase
from gridhand.library.job_handle import (
    Facts,
    Job,
    JobFacts,
    cancel_job,
    find_job,
    hold_job,
    unhold_job,
)
from gridhand.library.remote import Remote
from gridhand.library.remote_operations import RemoteRequest
from gridhand.library.submission import RemoteSubmit, job_id, submission, with_jobs

if TYPE_CHECKING:
    import os

Asked = Request | Resources | Mapping[str, Any] | str | None

_MOST = 10_000
_MOST_ENTRIES = 1000


class JobMethods(GridBase):
    """Submit commands as jobs, and find, cancel and await them."""

    def run(
        self,
        /,
        command: Sequence[str] | str,
        resources: Asked = None,
        *,
        name: str | None = None,
        priority: str | None = None,
        task_type: str | None = None,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
        expect: Duration | None = None,
        begin: Moment | None = None,
        deadline: Moment | None = None,
        fallback_after: Duration | None = None,
        queue: str | None = None,
        signal: str | None = None,
        retries: int = 0,
        retry_on: Iterable[str | int] | None = None,
        after: Any = (),
        within: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        anywhere: bool = False,
        stdin: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        detach: bool = False,
        op_id: str | None = None,
        **named: Any,
    ) -> Job:
        """Queue a command, to run on a node where it fits, and return its job at once.

        A command is a list of a program and its arguments; a string is split as a shell would
        split it, but no shell runs. It runs in this folder with this process's environment. It
        needs one core unless you say otherwise: amounts and placement are given as for `allocate`.

            job = grid.run("python train.py", cpu=4, memory="8GB", gpu=1, timeout="1h")
            job.wait().exit_code

        The job ends when this grid is closed or this process ends, unless `detach` is set.

        name: shown in lists.
        priority: `urgent`, `high`, `medium` (the default) or `low`.
        task_type: the kind of work, for predictions.
        timeout: seconds after which the job is stopped, or a text such as "5m". `time_limit` is
            its earlier name.
        expect: how long the job should run, for planning alone; `timeout` ends it.
        begin: when the job may start: seconds from now, a text such as "+2h", "tomorrow 09:00" or
            "2030-01-31T18:00", a `datetime` or a `timedelta`.
        deadline: when the job must have ended, given as `begin` is. It is cancelled if it waits
            until it could no longer end in time.
        fallback_after: the alternatives of the request count after the job has waited so long.
        queue: a named queue of the configuration.
        signal: a signal to send some time before the time limit, such as "TERM@60" for 60 seconds.
        retries: how often the job runs again when it fails.
        retry_on: the causes that are retried: `oom`, `timeout`, exit codes such as 75 …
        after: jobs, or ids of jobs, that must succeed first; `(job, "afterany")` waits until the
            job has ended, `(job, "afternotok")` until it has failed.
        within: an allocation, or its id. The job runs in it at once and must not ask for resources.
        env: environment variables to add. Over a network these are the only ones.
        cwd: the folder to run in.
        anywhere: let the job run on nodes of other machines, too, in a new folder there. Without
            it, `node` or `labels`, the job stays on this machine, which has the folder.
        stdin, stdout, stderr: files to read from and to write to.
        detach: let the job outlive this grid and this process.
        op_id: makes a repeat safe, as for `allocate`.
        """
        given = {key: value for key, value in locals().items() if key not in _OTHERS}
        operation = _submission(self, command, resources, named, op_id, given)
        return self._run_then(operation, lambda jobs: self._job(jobs[0]))

    def run_array(
        self,
        /,
        command: Sequence[str] | str,
        array: str,
        resources: Asked = None,
        *,
        name: str | None = None,
        priority: str | None = None,
        task_type: str | None = None,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
        expect: Duration | None = None,
        begin: Moment | None = None,
        deadline: Moment | None = None,
        fallback_after: Duration | None = None,
        queue: str | None = None,
        signal: str | None = None,
        retries: int = 0,
        retry_on: Iterable[str | int] | None = None,
        after: Any = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        anywhere: bool = False,
        stdin: str | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        detach: bool = False,
        op_id: str | None = None,
        **named: Any,
    ) -> list[Job]:
        """Queue a command once for each index of an array and return the jobs in that order.

        `array` is a range such as `1-10` or `0-20:5`, or a list such as `1,3,7`; `1-10%4` runs at
        most four at a time. Each job finds its index in `GRIDHAND_ARRAY_TASK_ID`. The other
        options are those of `run`.
        """
        given = {key: value for key, value in locals().items() if key not in _OTHERS}
        operation = _submission(self, command, resources, named, op_id, given)
        return self._run_then(operation, self._jobs)

    def run_gang(
        self,
        /,
        command: Sequence[str] | str,
        nodes: int,
        resources: Asked = None,
        *,
        name: str | None = None,
        priority: str | None = None,
        task_type: str | None = None,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
        expect: Duration | None = None,
        begin: Moment | None = None,
        deadline: Moment | None = None,
        fallback_after: Duration | None = None,
        queue: str | None = None,
        signal: str | None = None,
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
        """Queue a command as a gang, and return the jobs of its members by rank.

        One process runs on each of `nodes` nodes, with the resources on each of them. All start
        together, or none; if one fails, the others are stopped. Each finds its place in `RANK`,
        `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. The other options are those of `run`; retries
        are those of the whole gang.
        """
        given = {key: value for key, value in locals().items() if key not in _OTHERS}
        operation = _submission(self, command, resources, named, op_id, given)
        return self._run_then(operation, self._jobs)

    def jobs(
        self, *, state: str | Iterable[str] = (), owner: str | None = None, limit: int = 100
    ) -> list[Job]:
        """Return jobs, newest first. The state `open` stands for `queued` and `running`."""
        with_jobs(self._backend)
        return self._run_then(_list_jobs(state, owner, limit), self._jobs)

    def job(self, id: str) -> Job:
        """Return the job with that id; raise `UnknownJob` if there is none."""
        with_jobs(self._backend)
        return self._run_then(find_job(job_id(id)), self._job)

    def cancel(self, job: str | JobFacts) -> list[Job]:
        """Cancel a job, or every task of an array, and return them. Ended ones stay as they are."""
        with_jobs(self._backend)
        return self._run_then(cancel_job(self._operations.owner, job_id(job)), self._jobs)

    def hold(self, job: str | JobFacts) -> list[Job]:
        """Keep a queued job, or the queued tasks of an array, from starting; return the changed."""
        with_jobs(self._backend)
        return self._run_then(hold_job(self._operations.owner, job_id(job)), self._jobs)

    def unhold(self, job: str | JobFacts) -> list[Job]:
        """Let a held job, or the held tasks of an array, start; return those that this changed."""
        with_jobs(self._backend)
        return self._run_then(unhold_job(self._operations.owner, job_id(job)), self._jobs)

    def queue(self, *, owner: str | None = None, limit: int = 100) -> list[Facts]:
        """Return the first `limit` entries of the queue in the order in which they would be tried.

        An entry is a mapping as `grid queue --json` prints it: with `position`, `kind` (`job`,
        `array` or `allocation`), `id`, `owner`, `share`, `past_share`, `priority`, `request`,
        `waiting_since`, `why`, `expected_start_at` and `expected_node`.
        """
        with_jobs(self._backend)
        return self._run(_list_queue(owner, limit))

    def result(self, job: str | JobFacts, timeout: float | None = None) -> Any:
        """Wait for a detached call of a task; return its result, or raise its error.

        `TimeoutError` is raised if the call takes longer than `timeout` seconds.
        """
        return self._job_result(job_id(job), timeout)

    # ---- handles

    def _job(self, facts: Facts) -> Job:
        return Job(facts, with_jobs(self._backend))

    def _jobs(self, several: list[Facts]) -> list[Job]:
        return [self._job(facts) for facts in several]

    def _job_result(self, id: str, timeout: float | None) -> Any:
        from gridhand.library.functions.detached import result_of

        return result_of(self.job(id).wait(timeout))


_OTHERS = frozenset({"self", "command", "resources", "named", "op_id"})


def _submission(
    grid: GridBase,
    command: Sequence[str] | str,
    resources: Asked,
    named: Mapping[str, Any],
    op_id: str | None,
    given: Mapping[str, Any],
) -> RemoteSubmit:
    local = _on_this_machine(with_jobs(grid._backend))
    body = submission(command, resources, named, local=local, **given)
    return RemoteSubmit(grid._operations.owner, op_id, body)


def _on_this_machine(remote: Remote) -> bool:
    return bool(Address.parse(remote.checked().client(None).address).path)


def _list_queue(owner: str | None, limit: int) -> Operation[list[Facts]]:
    call = routes.queue(read_count(limit, "limit", 1, _MOST_ENTRIES), owner)
    return RemoteRequest(None, call._replace(pick="entries"), list)


def _list_jobs(state: str | Iterable[str], owner: str | None, limit: int) -> Operation[list[Facts]]:
    states = (state,) if isinstance(state, str) else tuple(state)
    call = routes.jobs(states, owner, None, read_count(limit, "limit", 1, _MOST))
    return RemoteRequest(None, call, list)
