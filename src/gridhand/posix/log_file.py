"""The log of a daemon, which is its stderr: bounded, with one older file beside it."""

from __future__ import annotations

import contextlib
import os

MOST_BYTES = 10 << 20


def rotate_log(path: str, most_bytes: int = MOST_BYTES) -> None:
    """Begin a new file if stderr goes to `path` and that has grown too large.

    The former file becomes PATH.1, but only once there is a new one: a process that is out of
    descriptors or space goes on in the one it has. Output that goes elsewhere is left alone.
    """
    with contextlib.suppress(OSError):
        found = os.fstat(2)
        if found.st_size <= most_bytes or not os.path.samestat(found, os.stat(path)):
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        fd = os.open(f"{path}.new", flags, 0o600)
        os.rename(path, f"{path}.1")
        os.rename(f"{path}.new", path)
        for target in (1, 2):
            if os.path.samestat(os.fstat(target), found):
                os.dup2(fd, target)
        os.close(fd)
