"""The answer box of a worker: answers that it has not sent yet, and the call that it runs.

It is a file in shared memory, so it outlives a worker that is killed. Answers to short calls are
sent many at a time, and none is lost; and it shows which call was running, which is the only one
that has failed.
"""

from __future__ import annotations

import mmap
import os
import struct

SIZE = 1 << 16
_HEAD = struct.Struct("<QQ")  # the call that runs, or 0; how many bytes of answers follow


class Box:
    """The worker's side of the box."""

    __slots__ = ("_call", "_contents", "used")

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, SIZE)
            self._contents = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self.used = self._call = 0

    def begin(self, call: int) -> None:
        self._call = call
        _HEAD.pack_into(self._contents, 0, call, self.used)

    def add(self, call: int, answer: bytes) -> bool:
        """Add an answer; return whether there was room. The running call ends with its answer."""
        start = _HEAD.size + self.used
        end = start + len(answer)
        if end > SIZE:
            return False
        self._contents[start:end] = answer
        self.used += len(answer)
        if call == self._call:
            self._call = 0
        _HEAD.pack_into(self._contents, 0, self._call, self.used)
        return True

    def answers(self) -> bytes:
        return self._contents[_HEAD.size : _HEAD.size + self.used]

    def clear(self) -> None:
        """Empty the box after all of it was sent. What runs meanwhile goes on."""
        self.used = 0
        _HEAD.pack_into(self._contents, 0, self._call, 0)


def look(path: str) -> tuple[int, bytes]:
    """Return which call a worker that is gone was running, and the answers it had not sent."""
    try:
        with open(path, "rb") as file:
            contents = file.read()
        call, used = _HEAD.unpack_from(contents)
    except (OSError, struct.error):  # the worker had not begun
        return 0, b""
    return call, contents[_HEAD.size : _HEAD.size + used]
