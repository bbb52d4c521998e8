"""The protocol between a client and its workers: frames on a socket.

A frame is a length and so many bytes. To a worker, the bytes are a marshalled tuple that begins
with the kind of message; from a worker, after its greeting, they are answers one after the other.
Both sides run the same interpreter. Many calls go in one frame, as the number of messages is what
costs.
"""

from __future__ import annotations

import marshal
import struct
from typing import Any

LENGTH = struct.Struct("<I")
ANSWER = struct.Struct("<QBfI")  # which call, how it went, in how many seconds, bytes that follow

# How a call ended, and what its bytes are. The first three are kinds of values and arguments.
INLINE = 0  # a pickle
PARTS = 1  # a pickle and the buffers that belong to it
FILE = 2  # the path of a file with both
RAISED = 3
TAKEN_BACK = 4  # it was not begun
NO_SETUP = 5  # the initializer has failed

# Kinds of messages to a worker.
CALLS = "calls"
RECALL = "recall"
QUIT = "quit"

FORGET = 0  # in the place of a function: forget those that were sent before

LARGEST_FRAME = 1 << 31


def frame(message: tuple[Any, ...]) -> bytes:
    body = marshal.dumps(message)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Splits bytes, as they arrive, into the bodies of frames."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """Add bytes; return the bodies of the frames that are complete by now."""
        kept = self._kept
        kept += data
        found: list[bytes] = []
        start, end = 0, len(kept)
        while end - start >= 4:
            (length,) = LENGTH.unpack_from(kept, start)
            if length > LARGEST_FRAME:
                raise ValueError("a frame that is too long")
            if end - start - 4 < length:
                break
            found.append(bytes(kept[start + 4 : start + 4 + length]))
            start += 4 + length
        if start:
            del kept[:start]
        return found
