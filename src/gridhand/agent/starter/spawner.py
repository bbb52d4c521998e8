"""Start commands with `posix_spawn`.

The starter enters the job's folder, cores and cgroups itself, spawns the command, and goes back.
Nothing is forked and no code of ours runs in the child, so a start costs the same however large
this process is, and the child has what the job is given from its first instruction. It is safe
because the starter has one thread: nobody sees it while it stands elsewhere.

The commands of other users are started by `user_process`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from typing import NamedTuple

from gridhand.agent.starter.command_files import (
    INPUT,
    LOG,
    Environment,
    StartFailed,
    as_bytes,
    failed,
    find_program,
    open_file,
    refused_program,
)
from gridhand.agent.starter.message_fields import OrderUser, StarterOrder
from gridhand.agent.starter.user_process import fork_as_user
from gridhand.posix.caller_settings import VARIABLE, CallerSettings
from gridhand.posix.cgroups import CgroupMembership
from gridhand.posix.daemon import (
    PROTECTED,
    read_core_limit,
    read_oom_score,
    write_core_limit,
    write_oom_score,
)

# Python ignores some signals and the starter handles others; a command expects the defaults.
_DEFAULTS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

_SETTINGS = VARIABLE.encode()
_PROBE = "probe"
_PROBE_BYTES = 64 << 10


class SpawnedProcess(NamedTuple):
    """The process of a command that was started."""

    pid: int
    doomed: str  # why it must be killed; "" if it need not
    failure: int | None = None  # the pipe that says whether another user's command began


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

    def spawn(self, order: StarterOrder) -> SpawnedProcess:
        """Start the command; raise StartFailed if there is no process."""
        env = {as_bytes(name): as_bytes(value) for name, value in order.env.items()}
        settings = CallerSettings.read(os.fsdecode(env.pop(_SETTINGS, b"")))
        if order.user is not None:
            return self._spawn_for(order.user, order, settings, env)
        return self._spawn(order, settings, env)

    def _spawn_for(
        self, user: OrderUser, order: StarterOrder, settings: CallerSettings, env: Environment
    ) -> SpawnedProcess:
        late = self._take_on(order)
        pid, failure = fork_as_user(order, user, settings, env)
        return SpawnedProcess(pid, self._cgroups.put(pid, late), failure)

    def _spawn(
        self, order: StarterOrder, settings: CallerSettings, env: Environment
    ) -> SpawnedProcess:
        argv = [as_bytes(word) for word in order.argv]
        with contextlib.ExitStack() as opened:
            try:
                os.chdir(as_bytes(order.cwd))
            except OSError as error:
                raise failed("cannot enter the working folder", order.cwd, error) from None
            program = find_program(argv[0], env)
            stdin = self._nothing
            if order.stdin is not None:
                stdin = open_file(opened, "the standard input", order.stdin, INPUT)
            stdout = open_file(opened, "the standard output", order.stdout, LOG)
            stderr = stdout
            if order.stderr != order.stdout:
                stderr = open_file(opened, "the standard error", order.stderr, LOG)
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
                raise refused_program(program, error) from None
        settings.complete(pid)
        return SpawnedProcess(pid, self._cgroups.put(pid, late))

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
            raise failed("cannot join the cgroup", path, error) from None
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
