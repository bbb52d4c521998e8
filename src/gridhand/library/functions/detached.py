"""Detached calls, which outlive the program that made them: each is a job, and its result a file.

The function and its arguments are written into a folder that only their owner can open. The job's
command names the folder, so a later program finds the result by the job's id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gridhand.core.errors import CallFailed, GridError, InvalidInput
from gridhand.core.model.requests import Tie
from gridhand.home import Home
from gridhand.library.functions.future import NoArgument
from gridhand.library.functions.nested_futures import refuse_closure, with_values
from gridhand.library.functions.pickled_function import packed_call
from gridhand.library.job_handle import Job, poll_pauses
from gridhand.library.pool.local_workers import program
from gridhand.library.pool.slots import NAMED, how_ended
from gridhand.library.submission import RemoteSubmit, submission, with_jobs
from gridhand.worker import detached_call
from gridhand.worker.errors import raised
from gridhand.worker.old_names import loads

if TYPE_CHECKING:
    from gridhand.library.functions.function_runner import HasRunner
    from gridhand.library.functions.task import Task

R = TypeVar("R")

_KEPT_S = 30 * 86_400
_ONCE = "--once"


class DetachedCall(NoArgument, Generic[R]):
    """A call that goes on without this program. `grid.result(id)` finds it again by its `id`."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def state(self) -> str:
        """The present state: `queued`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
        return self.job.refresh().state

    def done(self) -> bool:
        return self.job.refresh().done

    def cancel(self) -> bool:
        """End the call, even if it runs; return whether it had not ended before."""
        return not self.done() and self.job.cancel() is self.job

    def cancelled(self) -> bool:
        return self.job.refresh().state == "cancelled"

    def running(self) -> bool:
        return self.job.refresh().state == "running"

    def result(self, timeout: float | None = None) -> R:
        """Wait for the call; return what the function returned, or raise its error."""
        return cast("R", result_of(self.job.wait(timeout)))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call; return the error of the function, or None if it has a result."""
        job = self.job.wait(timeout)
        try:
            result_of(job)
        except CancelledError:
            raise
        except BaseException as error:
            return error
        return None

    def add_done_callback(self, fn: Callable[[DetachedCall[R]], object]) -> None:
        """Call `fn` with this call, in a thread of its own, once it has ended."""
        threading.Thread(target=self._call_back, args=(fn,), daemon=True).start()

    def _call_back(self, fn: Callable[[DetachedCall[R]], object]) -> None:
        self.job.wait()
        fn(self)

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result. Cancelling the wait leaves the call as it is."""
        return self._awaited().__await__()

    async def _awaited(self) -> R:
        import asyncio

        for pause in poll_pauses():
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
    grid: HasRunner, task: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> DetachedCall[Any]:
    """Submit a call as a job. Wait for futures among its arguments: values are written down."""
    remote = with_jobs(grid._backend)
    if remote.client(None).remote:
        raise GridError(
            "a detached call needs the controller of this machine, which shares its folders",
            hint="On another machine, run a command: `grid run --send FILE -- python FILE`.",
        )
    name, options = task._name, task._options
    if not task.request.resources:
        raise InvalidInput("cpu", 0, "more than 0 with detach=True, which makes it a job")
    refuse_closure(task._code)
    values = with_values(args), with_values(kwargs)
    code, arguments = packed_call(task._to_send(), *values, name)
    folder = tempfile.mkdtemp(prefix="", dir=_calls())
    file = detached_call.write_call(
        folder, [one for one in sys.path if isinstance(one, str)], code, arguments
    )
    named: dict[str, Any] = {
        **NAMED,
        "name": name,
        "timeout": options.timeout,
        "retries": options.retries,
        "priority": options.priority,
    }
    command = program(_ONCE, file)
    asked = task.request.tied(Tie.CALLER)  # its files are here
    body = submission(command, asked, {}, local=True, **{**named, "detach": True})
    try:
        made = remote.run(RemoteSubmit(grid._operations.owner, None, body))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return DetachedCall(Job(made[0], remote))


def result_of(job: Job) -> Any:
    """Return what a detached call returned, or raise its error. The job must have ended."""
    folder_fd = _open_folder(job)
    try:
        how, data = detached_call.read_result(folder_fd)
    except FileNotFoundError:
        if job.state == "cancelled":
            raise CancelledError(f"job {job.id} was cancelled") from None
        raise how_ended(job.name or "", job.facts) from None
    finally:
        os.close(folder_fd)
    if how == detached_call.RETURNED:
        return loads(data)
    raise raised(data, job.name or "")


def _open_folder(job: Job) -> int:
    """Return the folder of the call of a job, open. Only files of our own user are ever read."""
    command = job.command
    if len(command) < 2 or command[-2] != _ONCE:
        raise InvalidInput("job", job.id, "one that is a call of a task with detach=True")
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        folder_fd = os.open(os.path.dirname(command[-1]), flags)
    except OSError as error:
        gone = f"the result of job {job.id} is not there any more"
        raise CallFailed(job.name or "", "forgotten", gone) from error
    found = os.fstat(folder_fd)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(folder_fd)
        raise CallFailed(job.name or "", "foreign", f"job {job.id} is another user's")
    return folder_fd


def _calls() -> str:
    """Return the folder of all detached calls; remove those that are too old."""
    folder = os.path.join(Home.find().folder, "calls")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime > _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
    return folder
