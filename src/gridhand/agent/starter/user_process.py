"""Start a command as another user: fork, give up the rights of root, and only then touch anything.

Folder, input, output and program are opened by the new process with the rights of the user, so a
path or a planted link leads no further than the user could go anyway. The environment is the
user's, too, and so it is given to the command alone: a helper program that runs as root, such as
setpriv, would load whatever LD_PRELOAD names.

The starter does not wait for that, since a file system of the user's own may never answer. What
went wrong arrives in a pipe that closes when the command begins.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
from typing import NoReturn

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
from gridhand.posix.caller_settings import CallerSettings
from gridhand.posix.plain_open import open_plain
from gridhand.posix.privileges import become_user
from gridhand.posix.unix_users import UnixUser

_STREAMS = ("stdout", "stderr")
_LONGEST_REPORT = 1 << 16  # of the bytes that a pipe holds
_NEW_FILE = 0o666  # less the umask of the caller


def fork_as_user(
    order: StarterOrder, user: OrderUser, settings: CallerSettings, env: Environment
) -> tuple[int, int]:
    """Return the pid of the process, and the pipe for `read_failure`; raise StartFailed."""
    with contextlib.ExitStack() as opened:
        logs = {
            name: _open_log(opened, getattr(order, name), user)
            for name in _STREAMS
            if name not in user["own_files"]
        }
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise failed("cannot start", order.argv[0], error) from None
        opened.callback(os.close, writing)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _run(order, user, settings, env, logs, writing)
        except OSError as error:
            os.close(reading)
            raise failed("cannot start", order.argv[0], error) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid, reading


def read_failure(reading: int) -> StartFailed | None:
    """Return why the command did not begin; None if it did, or is about to."""
    try:
        report = os.read(reading, _LONGEST_REPORT)
    except BlockingIOError:
        return None
    if not report:
        return None
    message, code, shortage = json.loads(report)
    return StartFailed(message, code, shortage=shortage)


def _open_log(opened: contextlib.ExitStack, path: str, user: OrderUser) -> int:
    """Open a log in the job's folder, which only root can enter, and give it to the user.

    So the command can open it again as /dev/stdout.
    """
    fd = open_file(opened, "the log", path, LOG | os.O_NOFOLLOW)
    os.fchown(fd, user["uid"], user["gid"])
    return fd


# ---- in the new process


def _run(
    order: StarterOrder,
    user: OrderUser,
    settings: CallerSettings,
    env: Environment,
    logs: dict[str, int],
    writing: int,
) -> NoReturn:
    """Become the command, or report why not and exit. Nothing may return from here."""
    code = 126
    try:
        _become(order, user, settings, env, logs)
    except StartFailed as error:
        code = error.code or code
        _report(writing, str(error), error.code, error.shortage)
    except BaseException as error:
        _report(writing, f"it could not be started: {error}", None, False)
    finally:
        os._exit(code)


def _become(
    order: StarterOrder,
    user: OrderUser,
    settings: CallerSettings,
    env: Environment,
    logs: dict[str, int],
) -> NoReturn:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    os.setsid()
    become_user(UnixUser(user["uid"], user["gid"], tuple(user["groups"])))
    _enter(order.cwd)
    os.umask(settings.umask if settings.umask is not None else 0o022)
    with contextlib.ExitStack() as opened:
        _connect_streams(opened, order, user, logs)
    argv = [as_bytes(word) for word in order.argv]
    program = find_program(argv[0], env)
    settings.apply()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execve(program, argv, env)
    except OSError as error:
        raise refused_program(program, error) from None


def _enter(folder: str) -> None:
    try:
        fd = _open(as_bytes(folder), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fchdir(fd)
    except OSError as error:
        raise failed("cannot enter the working folder", folder, error) from None
    os.close(fd)


def _open(path: bytes, flags: int, mode: int = 0) -> int:
    """Open a path of the user: a magic link would lead to what the starter has open."""
    try:
        return open_plain(path, flags, mode)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return os.open(path, flags, mode)  # the rights of the user still hold


def _connect_streams(
    opened: contextlib.ExitStack, order: StarterOrder, user: OrderUser, logs: dict[str, int]
) -> None:
    path = order.stdin or os.devnull
    stdin = open_file(opened, "the standard input", path, INPUT, opener=_open)
    outputs = dict(logs)
    for name, how in user["own_files"].items():
        what = "the standard output" if name == "stdout" else "the standard error"
        outputs[name] = _open_own_file(opened, what, getattr(order, name), how)
    for fd, target in ((stdin, 0), (outputs["stdout"], 1), (outputs["stderr"], 2)):
        os.dup2(fd, target)


def _open_own_file(opened: contextlib.ExitStack, what: str, path: str, how: str) -> int:
    """Open a file that the user named for the output; empty it first unless it is special."""
    fd = open_file(opened, what, path, LOG, _NEW_FILE, _open)
    if how == "empty" and stat.S_ISREG(os.fstat(fd).st_mode):
        os.ftruncate(fd, 0)
    return fd


def _report(writing: int, message: str, code: int | None, shortage: bool) -> None:
    with contextlib.suppress(OSError):
        os.write(writing, json.dumps([message[:4000], code, shortage]).encode())
