"""HTTP/1.1 on a socket, as much of it as a controller speaks.

The standard library's `http.client` parses headers with its e-mail parser, and importing that takes
longer than all the rest of a `grid` command. This module sends requests whose body is complete, and
reads replies that have a length, come in chunks, or last until the connection closes.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
from select import POLLIN, poll
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SILENCE_S = 2.0  # after this it is said that nothing was heard
_LINE = 1 << 16
_MOST_HEADERS = 200


class ConnectionLost(ConnectionError):
    """The connection ended before the reply did. The request may have been processed, or not."""


class Reply(NamedTuple):
    """A reply up to its body, which is still to be read from the connection."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: io.BufferedIOBase  # reading it raises `ConnectionLost` when it ends too soon


class HttpConnection:
    """One connection, which carries one request and its reply at a time."""

    def __init__(self, connected: socket.socket, host: str) -> None:
        self._socket = connected
        self._file = connected.makefile("rb")
        self._host = host
        self.used = False  # the server may have closed a used connection in the meantime
        self.kept = False  # the server keeps the connection open after the reply

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float | None,
        on_silence: Callable[[socket.socket], object] | None = None,
    ) -> Reply:
        """Send a request and return the reply, read up to its body.

        `on_silence` is called if the reply has not begun after a while.
        """
        lines = [f"{method} {target} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"content-length: {len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            self._socket.settimeout(timeout_s)
            with contextlib.suppress(BrokenPipeError):  # refused before the body was read
                self._socket.sendall(head + (body or b""))
            if on_silence is not None and not self._hears_within(SILENCE_S):
                on_silence(self._socket)
            return self._reply()
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def _hears_within(self, seconds: float) -> bool:
        waiting = poll()  # `select` cannot watch a file with a number above 1023
        waiting.register(self._socket, POLLIN)
        return bool(waiting.poll(1000 * seconds))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def shut_down(self) -> None:
        """Wake the thread that reads this connection: it finds the connection at its end."""
        with contextlib.suppress(OSError):  # it has been closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Close the file descriptor in a forked child, so that the connection does not outlive
        the parent. `close` could wait for a lock that a thread of the parent held.
        """
        if (fd := self._socket.detach()) >= 0:
            os.close(fd)

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
            raise ConnectionLost("the reply is not HTTP")
        headers: dict[str, str] = {}
        while text := _line(self._file):
            name, _, value = text.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > _MOST_HEADERS:
                raise ConnectionLost("the reply has too many headers")
        if words[0] != b"HTTP/1.1":
            headers.setdefault("connection", "close")
        return int(words[1]), headers


def _line(file: io.BufferedIOBase) -> bytes:
    text = file.readline(_LINE)
    if not text.endswith(b"\n"):
        raise ConnectionLost("the connection ended")
    return text.rstrip(b"\r\n")


def _framing(status: int, headers: Mapping[str, str]) -> tuple[int | None, bool]:
    """Return the length of the body, if it is known, and whether it comes in chunks."""
    if status in (204, 304):
        return 0, False
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return 0, True
    length = headers.get("content-length")
    if length is None:
        return None, False
    if not length.isdecimal():
        raise ConnectionLost("the reply has an invalid length")
    return int(length), False


class _Body(io.RawIOBase):
    """The body of one reply. Reading raises `ConnectionLost` if it ends before its length."""

    def __init__(self, file: io.BufferedIOBase, left: int | None, chunked: bool) -> None:
        self._file = file
        self._chunked = chunked
        self._begun = False
        self.left = left  # bytes of this chunk or of the body; None: until the connection ends

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
                raise ConnectionLost("the connection ended")
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
            raise ConnectionLost("the reply has a chunk of invalid size") from None
        if self.left == 0:
            self._chunked = False
            while _line(self._file):
                pass
