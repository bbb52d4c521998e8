"""The log of a daemon, which is its stderr: bounded, with one older file beside it."""

from __future__ import annotations

import contextlib
import os

MOST_BYTES = 10 << 20


def rotate_log(path: str, most_bytes: int = MOST_BYTES) -> None:
    """Begin a new file if stderr goes to `path` and that has grown too large.

    The former file becomes PATH.1. Output that goes elsewhere is the user's, and is left alone.
    """
    with contextlib.suppress(OSError):
        found = os.fstat(2)
        if found.st_size <= most_bytes or not os.path.samestat(found, os.stat(path)):
            return
        os.rename(path, f"{path}.1")
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for target in (1, 2):
            if os.path.samestat(os.fstat(target), found):
                os.dup2(fd, target)
        os.close(fd)
