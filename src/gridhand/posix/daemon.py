"""Daemons: start one, become one, and be the only one in a folder.

A daemon belongs to no terminal and to no parent, and locks its folder as long as it lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator

from gridhand.posix.locks import sign_lock, wait_for_lock
from gridhand.posix.private_files import open_private_file

_SET_CHILD_SUBREAPER = 36
LOCK = "lock"  # names the process that is the daemon of the folder
_START_LOCK = "ensure.lock"
LOG = "log"
_LOCK_S = 2.0
_START_S = 20.0
_OOM_SCORE = "/proc/self/oom_score_adj"
Limit = tuple[int, int]  # soft and hard

PROTECTED = -900  # among the last to be killed when memory runs out


class DaemonFailed(Exception):
    """A daemon did not come up."""


@contextlib.contextmanager
def start_lock(folder: str) -> Iterator[None]:
    """Keep other processes and threads from starting a daemon in this folder meanwhile."""
    fd = open_private_file(os.path.join(folder, _START_LOCK))
    try:
        if not wait_for_lock(fd, _START_S, pause_s=0.01):
            raise DaemonFailed(
                f"another process has been starting one for {_START_S:.0f} s: {folder}"
            )
        yield
    finally:
        os.close(fd)


def launch(
    command: list[str],
    folder: str,
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Start a daemon, a module of ours with its arguments, and wait until it is ready.

    The process is created inside of `around`, for a caller with settings that it must not inherit.
    """
    import subprocess  # the starter uses this module and has to stay small

    # A daemon that is started inside a job is not part of that job; and a file in the current
    # folder with the name of a module must not be taken for it.
    env = {name: text for name, text in os.environ.items() if not name.startswith("GRIDHAND_")}
    with around():
        started = subprocess.Popen(
            [sys.executable, "-E", "-s", "-P", "-m", *command, "--detach"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        _, output = started.communicate(timeout=_START_S)
    except subprocess.TimeoutExpired as error:
        started.kill()
        started.communicate()
        raise DaemonFailed(f"the process started in {folder} is not ready in time") from error
    if started.returncode != 0:
        words = output.decode(errors="replace").strip() or f"see {os.path.join(folder, LOG)}"
        raise DaemonFailed(f"the process started in {folder} failed: {words[-500:]}")


def enter_private_folder(folder: str) -> int:
    """Make the folder the current one and return it open; exit unless it is ours alone."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.fstat(fd).st_mode & 0o077 or os.fstat(fd).st_uid != os.geteuid():
        raise SystemExit(f"{folder} must belong to you and be closed to others (mode 0700)")
    os.fchdir(fd)
    return fd


def become_subreaper() -> None:
    """Become the parent of descendants whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot become a subreaper: {os.strerror(code)}")


def lock(folder_fd: int) -> int | None:
    """Lock the folder as long as this process lives; return None if another process has it.

    A daemon that is about to end has stopped listening and still has the lock: wait a little.
    """
    fd = open_private_file(LOCK, dir_fd=folder_fd)
    if wait_for_lock(fd, _LOCK_S):
        with contextlib.suppress(OSError):  # the lock holds even if the disk is full
            sign_lock(fd)
        return fd
    os.close(fd)
    return None


def detach() -> Callable[[], None]:
    """Continue in a detached child; return the function with which it says that it is ready.

    The process that was started waits for that and exits with 0, or with 1 when the child ends
    before. The child's output goes to a log file in the current folder.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    if os.fork() != 0:  # no threads run this early, so a fork is safe
        os.close(writing)
        os._exit(0 if os.read(reading, 1) else 1)
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    for fd in (nothing, log):
        if fd > 2:
            os.close(fd)

    def ready() -> None:
        os.write(writing, b"1")
        os.close(writing)

    return ready


def read_oom_score() -> int:
    """Return how soon the kernel kills this process when memory runs out; children inherit it."""
    try:
        with open(_OOM_SCORE) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def write_oom_score(score: int) -> bool:
    """Return whether the score could be set; lowering it takes a privilege."""
    try:
        fd = os.open(_OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, str(score).encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


_SPARE_FILES = 64  # that starting a process may need
_before: tuple[int, Limit, Limit] | None = None


def protect() -> None:
    """Ask to be spared when memory runs out, open as many files as permitted, and dump no core.

    A core file would have the environments of jobs and the secrets of this process.
    """
    global _before
    files, core = resource.getrlimit(resource.RLIMIT_NOFILE), read_core_limit()
    _before = read_oom_score(), files, core
    write_oom_score(PROTECTED)
    _limit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    write_core_limit((0, core[1]))


@contextlib.contextmanager
def unprotected() -> Iterator[None]:
    """Undo `protect` while another process is started, which would inherit it."""
    if _before is None:
        yield
        return
    score, (soft, hard), core = _before
    used = max(map(int, os.listdir("/proc/self/fd")))
    write_oom_score(score)
    _limit(resource.RLIMIT_NOFILE, (min(hard, max(soft, used + _SPARE_FILES)), hard))
    write_core_limit(core)
    try:
        yield
    finally:
        write_oom_score(PROTECTED)
        _limit(resource.RLIMIT_NOFILE, (hard, hard))
        write_core_limit((0, core[1]))


def read_core_limit() -> Limit:
    return resource.getrlimit(resource.RLIMIT_CORE)


def write_core_limit(limit: Limit) -> None:
    _limit(resource.RLIMIT_CORE, limit)


def _limit(kind: int, limit: Limit) -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, limit)
