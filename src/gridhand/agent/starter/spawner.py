"""Start commands with `posix_spawn`.

The starter enters the job's folder, cores and cgroups itself, spawns the command, and goes back.
Nothing is forked and no code of ours runs in the child, so a start costs the same however large
this process is, and the child has what the job is given from its first instruction. It is safe
because the starter has one thread: nobody sees it while it stands elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from gridhand.agent.starter.message_fields import StarterOrder
from gridhand.posix.caller_settings import VARIABLE, CallerSettings
from gridhand.posix.cgroups import CgroupMembership
from gridhand.posix.daemon import (
    PROTECTED,
    read_core_limit,
    read_oom_score,
    write_core_limit,
    write_oom_score,
)

_LOG = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
_INPUT = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC

# Python ignores some signals and the starter handles others; a command expects the defaults.
_DEFAULTS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

NOT_FOUND, NOT_RUNNABLE = 127, 126  # the exit codes of shells
_OUT_OF = frozenset({errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOSPC})
_SETTINGS = VARIABLE.encode()
_PROBE = "probe"
_PROBE_BYTES = 64 << 10


class StartFailed(Exception):
    """A command was not started; the message is for its user.

    `code` is the exit code of a shell, if the command itself is at fault. `shortage` says whether
    the system was out of something, which may be the fault of the node.
    """

    def __init__(self, message: str, code: int | None = None, *, shortage: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.shortage = shortage


class Spawner:
    """Spawns commands. Use it as a context around one or more `spawn`: leaving it goes home."""

    def __init__(self, home_fd: int) -> None:
        self._home_fd = home_fd
        self._cores = os.sched_getaffinity(0)
        self._now_on: set[int] | None = self._cores  # None if not known
        self._cgroups = CgroupMembership()
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._core_limit = read_core_limit()
        write_core_limit((0, self._core_limit[1]))
        self._oom_score = read_oom_score()
        self._protects = write_oom_score(PROTECTED)

    def __enter__(self) -> Spawner:
        if self._protects:  # children inherit it, and the kernel must not spare jobs
            write_oom_score(self._oom_score)
        write_core_limit(self._core_limit)
        return self

    def __exit__(self, *_: object) -> None:
        self._cgroups.leave()
        self._run_on(None)
        os.fchdir(self._home_fd)
        write_core_limit((0, self._core_limit[1]))
        if self._protects:
            write_oom_score(PROTECTED)

    def spawn(self, order: StarterOrder) -> tuple[int, str]:
        """Return the pid of the started command, and why it must be killed ("" if it need not).

        Raises StartFailed if there is no process.
        """
        argv = [_bytes(word) for word in order.argv]
        env = {_bytes(name): _bytes(value) for name, value in order.env.items()}
        settings = CallerSettings.read(os.fsdecode(env.pop(_SETTINGS, b"")))
        with contextlib.ExitStack() as opened:
            try:
                os.chdir(_bytes(order.cwd))
            except OSError as error:
                raise _failed("cannot enter the working folder", order.cwd, error) from None
            program = _program(argv[0], env)
            stdin = self._nothing
            if order.stdin is not None:
                stdin = _open(opened, "the standard input", order.stdin, _INPUT)
            stdout = _open(opened, "the standard output", order.stdout, _LOG)
            stderr = stdout
            if order.stderr != order.stdout:
                stderr = _open(opened, "the standard error", order.stderr, _LOG)
            late = self._take_on(order)
            try:
                with settings.inherited():
                    pid = os.posix_spawn(
                        program,
                        argv,
                        env,
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
                shortage = error.errno in _OUT_OF
                raise StartFailed(words, _code(error, program), shortage=shortage) from None
        settings.complete(pid)
        return pid, self._cgroups.put(pid, late)

    def probe(self) -> str:
        """Return why no command at all could be started here now; "" if one could."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with contextlib.ExitStack() as opened:
            try:
                fd = os.open(_PROBE, flags, 0o600, dir_fd=self._home_fd)
                opened.callback(os.unlink, _PROBE, dir_fd=self._home_fd)
                opened.callback(os.close, fd)
                if os.write(fd, bytes(_PROBE_BYTES)) < _PROBE_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                for _ in range(3):  # as many as a start needs at once
                    opened.callback(os.close, os.dup(fd))
                # The file is not executable, and a process was created before that is noticed.
                os.posix_spawn(f"/proc/self/fd/{fd}", [_PROBE], {})
            except PermissionError:
                return ""
            except OSError as error:
                return error.strerror or str(error)
        return ""

    def _take_on(self, order: StarterOrder) -> list[str]:
        """Enter the cgroups and cores of the order; return the cgroups to be joined later."""
        try:
            late = self._cgroups.enter(order.cgroups)
        except OSError as error:
            path = error.filename or " ".join(order.cgroups)
            raise _failed("cannot join the cgroup", path, error) from None
        if order.cgroups:
            self._now_on = None  # a cpuset may have moved this process
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
        self._now_on = None
        try:
            os.sched_setaffinity(0, wanted)
        except OSError:
            if cores is not None:
                raise
            return  # the cores of the beginning are gone: what the kernel leaves is as good
        # The kernel silently leaves out cores that it does not have.
        if cores is not None and os.sched_getaffinity(0) != wanted:
            raise OSError(errno.EINVAL, "not all of them are here")
        self._now_on = wanted


def _bytes(text: str) -> bytes:
    """Encode a text for the kernel the way Python decoded it, whatever the locale."""
    return text.encode("utf-8", "surrogateescape")


def _program(name: bytes, env: dict[bytes, bytes]) -> bytes:
    """Return the file to run, found on the job's own PATH as `execvp` would, without a shell."""
    if b"/" in name:
        return name
    path = env.get(b"PATH", os.fsencode(os.defpath))
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


def _open(opened: contextlib.ExitStack, what: str, path: str, flags: int) -> int:
    try:
        fd = os.open(_bytes(path), flags, 0o600)
    except OSError as error:
        raise _failed(f"cannot open {what}", path, error) from None
    opened.callback(os.close, fd)
    os.set_blocking(fd, True)  # opened without blocking: a pipe must not hold up the starter
    return fd


def _failed(what: str, path: bytes | str, error: OSError, hint: str = "") -> StartFailed:
    message = f"{what} {os.fsdecode(path)!r}: {error.strerror}{hint}"
    return StartFailed(message, shortage=error.errno in _OUT_OF)


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
