"""HTTP/1.1 on a socket, as much of it as a controller speaks.

The standard library's `http.client` reads headers with its parser for e-mail, and importing that
takes longer than all the rest of a `grid` command. Here are requests with a body that is there in
full, and replies with a length, in chunks or until the end.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_LINE = 1 << 16
_MOST_HEADERS = 200


class Lost(ConnectionError):
    """The connection ended before the reply did. What was asked may have been done, or not."""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in small letters
    body: io.BufferedIOBase  # reading it raises `Lost` when it ends too soon


class Connection:
    """One connection, and one reply at a time."""

    def __init__(self, connected: socket.socket, host: str) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")
        self._host = host
        self.used = False  # a used one may have been closed by the other side meanwhile
        self.kept = False  # whether the other side keeps it open after the reply

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float | None,
    ) -> Reply:
        """Send a request, and read the reply up to its body."""
        lines = [f"{method} {target} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            self._socket.settimeout(timeout_s)
            with contextlib.suppress(BrokenPipeError):  # it may have refused before it had read all
                self._socket.sendall(head + (body or b""))
            return self._reply()
        except TimeoutError:
            raise
        except OSError as error:
            raise Lost(str(error)) from error

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _reply(self) -> Reply:
        status, headers = self._head()
        while 100 <= status < 200:
            status, headers = self._head()
        self.used = True
        raw = _Body(self._file, *_framing(status, headers))
        self.kept = raw.left is not None and headers.get("connection", "").lower() != "close"
        return Reply(status, headers, io.BufferedReader(raw, _LINE))

    def _head(self) -> tuple[int, dict[str, str]]:
        words = _line(self._file).split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise Lost("what answers there does not speak HTTP")
        headers: dict[str, str] = {}
        while text := _line(self._file):
            name, _, value = text.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > _MOST_HEADERS:
                raise Lost("a reply with more headers than a controller sends")
        if words[0] != b"HTTP/1.1":
            headers.setdefault("connection", "close")
        return int(words[1]), headers


def _line(file: io.BufferedIOBase) -> bytes:
    text = file.readline(_LINE)
    if not text.endswith(b"\n"):
        raise Lost("the connection ended")
    return text.rstrip(b"\r\n")


def _framing(status: int, headers: Mapping[str, str]) -> tuple[int | None, bool]:
    """How long the body is, if that is known, and whether it comes in chunks."""
    if status in (204, 304):
        return 0, False
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return 0, True
    length = headers.get("content-length")
    if length is None:
        return None, False
    if not length.isdecimal():
        raise Lost("a reply of no length that can be read")
    return int(length), False


class _Body(io.RawIOBase):
    """The body of one reply. It ends where it said it would, or raises `Lost`."""

    def __init__(self, file: io.BufferedIOBase, left: int | None, chunked: bool) -> None:
        self._file = file
        self._chunked = chunked
        self._begun = False
        self.left = left  # of this chunk, or of all; None: until the connection ends

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.left == 0 and self._chunked:
            self._next_chunk()
        if self.left == 0:
            return 0
        wanted = len(buffer) if self.left is None else min(len(buffer), self.left)
        count = self._file.readinto1(memoryview(buffer)[:wanted])
        if self.left is not None:
            if not count:
                raise Lost("the connection ended")
            self.left -= count
        return count

    def _next_chunk(self) -> None:
        if self._begun:
            _line(self._file)
        self._begun = True
        size = _line(self._file).partition(b";")[0]
        try:
            self.left = int(size, 16)
        except ValueError:
            raise Lost("a chunk of no size that can be read") from None
        if self.left == 0:
            self._chunked = False
            while _line(self._file):
                pass
