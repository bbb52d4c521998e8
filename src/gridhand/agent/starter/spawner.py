"""Starts commands: the starter takes on what a job shall have, spawns it, and steps back.

Nothing is forked and no code of ours runs in the child, so a start costs the same however large
this process is, and the child has the job's cores, folder and cgroups from its first instruction.
It is safe because one thread does everything: nobody sees the starter while it stands elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from gridhand.agent.cgroups import Cgroups
from gridhand.agent.daemon import PROTECTED, read_oom_score, write_oom_score
from gridhand.agent.orders import Order

_LOG = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
_INPUT = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC

# Python ignores some and this process handles others; a command expects none of that.
_DEFAULTS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


NOT_FOUND, NOT_RUNNABLE = 127, 126  # as shells have it
_OUT_OF = frozenset({errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE})


class StartFailed(Exception):
    """The command was not started; the words are for its user.

    `code` is what a shell would answer, where it is the command itself that is at fault.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Spawner:
    """Use as a context around one or more `spawn`: on the way out the starter stands at home."""

    def __init__(self, home_fd: int) -> None:
        self._home_fd = home_fd
        self._cores = os.sched_getaffinity(0)
        self._now_on = self._cores
        self._cgroups = Cgroups()
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._oom_score = read_oom_score()
        self._protects = write_oom_score(PROTECTED)

    def __enter__(self) -> Spawner:
        if self._protects:  # it is inherited, and jobs are not to be spared before others
            write_oom_score(self._oom_score)
        return self

    def __exit__(self, *_: object) -> None:
        self._cgroups.leave()
        self._run_on(None)
        os.fchdir(self._home_fd)
        if self._protects:
            write_oom_score(PROTECTED)

    def spawn(self, order: Order) -> tuple[int, str]:
        """The pid of the started command; and why it must be killed, if it must.

        Raises `StartFailed` when there is no process.
        """
        with contextlib.ExitStack() as opened:
            try:
                os.chdir(order.cwd)
            except OSError as error:
                raise _failed("cannot enter the working folder", order.cwd, error) from None
            program = _program(order)
            stdin = self._nothing
            if order.stdin is not None:
                stdin = _open(opened, "the standard input", order.stdin, _INPUT)
            stdout = _open(opened, "the standard output", order.stdout, _LOG)
            stderr = stdout
            if order.stderr != order.stdout:
                stderr = _open(opened, "the standard error", order.stderr, _LOG)
            late = self._stand_for(order)
            try:
                pid = os.posix_spawn(
                    program,
                    order.argv,
                    order.env,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, stdin, 0),
                        (os.POSIX_SPAWN_DUP2, stdout, 1),
                        (os.POSIX_SPAWN_DUP2, stderr, 2),
                    ],
                    setsid=True,
                    setsigmask=[],
                    setsigdef=_DEFAULTS,
                )
            except OSError as error:
                words = str(_failed("cannot start", program, error, _hint(error)))
                raise StartFailed(words, _code(error, program)) from None
        return pid, self._cgroups.put(pid, late)

    def _stand_for(self, order: Order) -> list[str]:
        try:
            late = self._cgroups.enter(order.cgroups)
        except OSError as error:
            path = error.filename or " ".join(order.cgroups)
            raise _failed("cannot join the cgroup", path, error) from None
        if order.cgroups:
            self._now_on = set()  # a cpuset may have moved us
        try:
            self._run_on(order.cores)
        except OSError as error:
            cores = ", ".join(map(str, order.cores or ()))
            raise StartFailed(f"cannot run on cores {cores}: {error.strerror}") from None
        return late

    def _run_on(self, cores: list[int] | None) -> None:
        wanted = self._cores if cores is None else set(cores)
        if wanted == self._now_on:
            return
        self._now_on = set()
        try:
            os.sched_setaffinity(0, wanted)
        except OSError:
            if cores is not None:
                raise
            return  # those we had at first are gone: what the kernel leaves us is as good
        # The kernel leaves out those it does not have, and says nothing.
        if cores is not None and os.sched_getaffinity(0) != wanted:
            raise OSError(errno.EINVAL, "not all of them are here")
        self._now_on = wanted


def _program(order: Order) -> bytes:
    """The file to run, found on the job's own PATH as `execvp` would, and never by a shell."""
    name = order.argv[0]
    if b"/" in name:
        return name
    path = order.env.get(b"PATH", os.fsencode(os.defpath))
    seen = b""
    for folder in path.split(b":"):
        candidate = os.path.join(folder or b".", name)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            seen = seen or candidate
    if seen:
        raise StartFailed(f"cannot start {os.fsdecode(seen)!r}: it is not executable", NOT_RUNNABLE)
    raise StartFailed(
        f"there is no command {os.fsdecode(name)!r} on the job's PATH ({os.fsdecode(path)})",
        NOT_FOUND,
    )


def _open(opened: contextlib.ExitStack, what: str, path: bytes, flags: int) -> int:
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise _failed(f"cannot open {what}", path, error) from None
    opened.callback(os.close, fd)
    os.set_blocking(fd, True)  # opened without waiting: nobody may hold up the starter by a pipe
    return fd


def _failed(what: str, path: bytes | str, error: OSError, hint: str = "") -> StartFailed:
    return StartFailed(f"{what} {os.fsdecode(path)!r}: {error.strerror}{hint}")


def _code(error: OSError, program: bytes) -> int | None:
    if error.errno in _OUT_OF:
        return None
    missing = error.errno == errno.ENOENT and not os.path.exists(program)
    return NOT_FOUND if missing else NOT_RUNNABLE


def _hint(error: OSError) -> str:
    if error.errno == errno.ENOEXEC:
        return " (a script needs a first line that begins with #!)"
    if error.errno == errno.ENOENT and os.path.exists(error.filename or b""):
        return " (it is there, but what runs it, after #! or its loader, is not)"
    return ""
