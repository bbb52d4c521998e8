"""Requests to one address: a unix socket, or a port of some host."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from gridhand.client.http1 import Connection, Lost, Reply
from gridhand.client.problems import make_error

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_IDLE = 4
_PAUSE_S = 0.01
_LONGEST_PATH = 107
_SILENCE_S = 60.0  # a follower hears something every five


class Address(NamedTuple):
    """Where a controller listens: a path, or a host and a port."""

    path: str
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `unix:PATH` or `http://HOST:PORT`."""
        kind, _, rest = text.partition(":")
        if kind == "unix" and rest.startswith("/"):
            return cls(rest)
        if kind == "http" and rest.startswith("//"):
            host, _, port = rest[2:].rstrip("/").rpartition(":")
            if host and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16:
                return cls("", host.strip("[]"), int(port))
        message = f"{text!r} is not an address of a controller"
        raise make_error("invalid_input", message, "Give unix:/PATH or http://HOST:PORT.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"http://{host}:{self.port}"

    def open(self, timeout_s: float | None) -> Connection:
        """Raises OSError when nobody listens there."""
        if self.path:
            return Connection(self._open_path(timeout_s), "localhost")
        connected = socket.create_connection((self.host, self.port), timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Connection(connected, str(self).removeprefix("http://"))

    def _open_path(self, timeout_s: float | None) -> socket.socket:
        if len(os.fsencode(self.path)) > _LONGEST_PATH:
            message = f"the path of the socket is too long: {self.path}"
            raise make_error("invalid_input", message, f"Use one of at most {_LONGEST_PATH} bytes.")
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout_s)
            _connect(connected, self.path, timeout_s)
        except BaseException:
            connected.close()
            raise
        return connected


def _connect(connected: socket.socket, path: str, timeout_s: float | None) -> None:
    """Connect; when too many wait there already the system says so at once, so wait here."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return connected.connect(path)
        except BlockingIOError:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("too many wait to connect") from None
            time.sleep(_PAUSE_S)


class Stream:
    """A reply that lasts, on a connection of its own: lines, and the bytes that follow them."""

    def __init__(self, connection: Connection, reply: Reply) -> None:
        self._connection = connection
        self._body = reply.body

    def line(self) -> bytes:
        """The next line, or nothing when the other side has ended the stream in good order."""
        text = self._body.readline()
        if text and not text.endswith(b"\n"):
            raise Lost("the stream ended within a line")
        return text

    def exactly(self, count: int) -> bytes:
        data = self._body.read(count)
        if len(data) < count:
            raise Lost("the stream ended within a frame")
        return data

    def rest(self) -> bytes:
        return self._body.read()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Requests to one address. Any thread may ask, and a signal handler too.

    A connection belongs to one request until the reply has been read, and is kept for the next.
    """

    def __init__(self, address: Address, *, timeout_s: float = 60.0) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._idle: list[Connection] = []
        self._pid = os.getpid()

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        repeatable: bool,
        timeout_s: float | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Ask, and read the whole reply.

        The other side may have closed a kept connection. What may be repeated is then asked once
        more on a new one; anything else raises `Lost`: it may have been done.
        """
        within = timeout_s or self.timeout_s
        connection = self._take()
        while True:
            again = connection.used and repeatable
            try:
                reply = connection.ask(method, target, headers, body, within)
                content = reply.body.read()
            except ConnectionError:
                connection.close()
                if not again:
                    raise
                connection = self.address.open(self.timeout_s)
            except BaseException:
                connection.close()
                raise
            else:
                self._give_back(connection)
                return reply.status, reply.headers, content

    def stream(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, Stream]:
        """Ask on a connection of its own for a reply that lasts.

        A process that has ended closes its unix sockets, so on these one waits for as long as it
        takes: a controller may be held up. On a network silence is all that shows it is gone.
        """
        connection = self.address.open(self.timeout_s)
        silence_s = None if self.address.path else _SILENCE_S
        try:
            reply = connection.ask(method, target, headers, body, silence_s)
        except BaseException:
            connection.close()
            raise
        return reply.status, Stream(connection, reply)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Connection:
        if self._pid != os.getpid():  # the connections of the process we were forked from
            self.close()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self.address.open(self.timeout_s)

    def _give_back(self, connection: Connection) -> None:
        if connection.kept and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
