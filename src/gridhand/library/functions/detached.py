"""Calls that outlive the program that made them: each is a job, and its result a file.

The function and its arguments are written into a folder that only their owner can open. The job's
command names it, so whoever knows the job's id finds the result, in any later program.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from gridhand.core.errors import CallFailed, GridError, InvalidInput
from gridhand.home import Home
from gridhand.library.children import program
from gridhand.library.functions import unsendable
from gridhand.library.jobs import Job, pauses
from gridhand.library.slots import NAMED, how_ended
from gridhand.library.submitting import Submitting, submission, with_jobs
from gridhand.library.taskfuture import NoArgument, with_values
from gridhand.worker import once
from gridhand.worker.failing import raised
from gridhand.worker.values import dumps

if TYPE_CHECKING:
    from gridhand.library.calling import HasCaller
    from gridhand.library.tasks import Task

_KEPT_S = 30 * 86_400
_ONCE = "--once"


class DetachedCall(NoArgument):
    """A call that goes on without this program. Its `id` is all that is needed to find it again."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def state(self) -> str:
        """As of now: `queued`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
        return self.job.refresh().state

    def done(self) -> bool:
        return self.job.refresh().done

    def cancel(self) -> bool:
        """End it, even if it runs; whether it had not ended before."""
        return not self.done() and self.job.cancel() is self.job

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned, or the error it met, once it has ended."""
        return result_of(self.job.wait(timeout))

    def __await__(self) -> Generator[Any, None, Any]:
        """The same. Whoever awaits it and is cancelled leaves the call as it is."""
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        import asyncio

        for pause in pauses():
            if await asyncio.to_thread(self.done):
                break
            await asyncio.sleep(pause)
        try:
            return await asyncio.to_thread(self.result)
        except CancelledError as error:
            raise asyncio.CancelledError(*error.args) from None

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be sent: give what its result() returns, or its id")

    def __repr__(self) -> str:
        return f"<detached call, job {self.id} {self.job.state}>"


def submit_detached(
    grid: HasCaller, task: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> DetachedCall:
    """Values of other tasks are waited for, and written down with the call."""
    remote = with_jobs(grid._backend)
    name, options = task._name, task._options
    if not task.request.resources:
        raise InvalidInput("cpu", 0, "more than 0 with detach=True, which makes it a job")
    values = with_values(args), with_values(kwargs)
    try:
        code = bytes(dumps(task._to_send()))
        arguments = bytes(dumps(values))
    except GridError:
        raise
    except Exception as error:
        raise unsendable(name, "the function or an argument", error) from error
    folder = tempfile.mkdtemp(prefix="", dir=_calls())
    file = once.write_call(
        folder, [one for one in sys.path if isinstance(one, str)], code, arguments
    )
    named: dict[str, Any] = {
        **NAMED,
        "name": name,
        "time_limit": options.timeout,
        "retries": options.retries,
    }
    command = program(_ONCE, file)
    body = submission(command, task.request, {}, local=True, **{**named, "detach": True})
    try:
        made = remote.call(Submitting(grid._calls.owner, None, body))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return DetachedCall(Job(made[0], remote))


def result_of(job: Job) -> Any:
    """What a call returned that was detached, or its error. The job must have ended."""
    file = _file_of(job)
    try:
        how, data = once.read_result(os.path.dirname(file))
    except FileNotFoundError:
        if job.state == "cancelled":
            raise CancelledError(f"job {job.id} was cancelled") from None
        raise how_ended(job.name or "", job.facts) from None
    if how == once.RETURNED:
        return pickle.loads(data)
    raise raised(data, job.name or "")


def _file_of(job: Job) -> str:
    """Where its call is. Only what is our own is ever read."""
    command = job.command
    if len(command) < 2 or command[-2] != _ONCE:
        raise InvalidInput("job", job.id, "one that is a call of a task with detach=True")
    try:
        found = os.stat(os.path.dirname(command[-1]))
    except OSError as error:
        gone = f"the result of job {job.id} is not there any more"
        raise CallFailed(job.name or "", "forgotten", gone) from error
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise CallFailed(job.name or "", "foreign", f"job {job.id} is another user's")
    return command[-1]


def _calls() -> str:
    """The folder of all such calls. Those that nobody wants to know of any more go."""
    folder = os.path.join(Home.find().folder, "calls")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime > _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
    return folder
