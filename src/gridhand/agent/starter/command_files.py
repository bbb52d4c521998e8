"""The files of a command: its program, and what its standard streams lead to."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

LOG = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
INPUT = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC

Environment = dict[bytes, bytes]

NOT_FOUND, NOT_RUNNABLE = 127, 126  # the exit codes of shells
_OUT_OF = frozenset({errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ENOSPC})


class StartFailed(Exception):
    """A command was not started; the message is for its user.

    `code` is the exit code of a shell, if the command itself is at fault. `shortage` says whether
    the system was out of something, which may be the fault of the node.
    """

    def __init__(self, message: str, code: int | None = None, *, shortage: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.shortage = shortage


def as_bytes(text: str) -> bytes:
    """Encode a text for the kernel the way Python decoded it, whatever the locale."""
    return text.encode("utf-8", "surrogateescape")


def find_program(name: bytes, env: Environment) -> bytes:
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


def open_file(
    opened: contextlib.ExitStack,
    what: str,
    path: str,
    flags: int,
    mode: int = 0o600,
    opener: Callable[[bytes, int, int], int] = os.open,
) -> int:
    """Open a file until the end of `opened`; raise StartFailed if that fails."""
    try:
        fd = opener(as_bytes(path), flags, mode)
    except OSError as error:
        raise failed(f"cannot open {what}", path, error) from None
    opened.callback(os.close, fd)
    os.set_blocking(fd, True)  # opened without blocking: a pipe must not hold up the starter
    return fd


def failed(what: str, path: bytes | str, error: OSError, hint: str = "") -> StartFailed:
    """Return the failure of a step of the start."""
    message = f"{what} {os.fsdecode(path)!r}: {error.strerror}{hint}"
    return StartFailed(message, shortage=error.errno in _OUT_OF)


def refused_program(program: bytes, error: OSError) -> StartFailed:
    """Return the failure of a program that the kernel did not start."""
    words = str(failed("cannot start", program, error, _hint(error)))
    return StartFailed(words, _code(error, program), shortage=error.errno in _OUT_OF)


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
