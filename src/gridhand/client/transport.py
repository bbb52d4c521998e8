"""Send requests to one address: a unix socket, or a host and a port."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from gridhand.client.errors import make_error
from gridhand.client.http1 import ConnectionLost, HttpConnection, Reply
from gridhand.posix.peers import check_peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MOST_IDLE = 4
_PAUSE_S = 0.01
_LONGEST_PATH = 107
_SILENCE_S = 60.0  # a stream has a sign of life every 5 s


class Address(NamedTuple):
    """The address of a controller: a path of a unix socket, or a host and a port.

    Behind a path must be our own user or root. If the user or the administrator `chose` the path,
    it may also be the owner of its folder, provided that nobody else can write there.
    """

    path: str
    host: str = ""
    port: int = 0
    chosen: bool = False
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `unix:/PATH`, `http://HOST:PORT` or `https://HOST:PORT`."""
        kind, _, rest = text.partition(":")
        if kind == "unix" and rest.startswith("/"):
            return cls(rest)
        if "@" in text:  # perhaps with a password, which must not be shown
            message = "the address of a controller has no user in it"
            raise make_error("invalid_input", message, "Set $GRIDHAND_TOKEN to your token.")
        if kind in ("http", "https") and rest.startswith("//"):
            host, _, port = rest[2:].rstrip("/").rpartition(":")
            if host and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16:
                return cls("", host.strip("[]"), int(port), tls=kind == "https")
        message = f"{text!r} is not the address of a controller"
        hint = "Give unix:/PATH, http://HOST:PORT or https://HOST:PORT."
        raise make_error("invalid_input", message, hint)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"{'https' if self.tls else 'http'}://{self._authority()}"

    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def open(self, timeout_s: float | None) -> HttpConnection:
        """Connect; raise OSError when nothing listens there."""
        if self.path:
            return HttpConnection(self._open_path(timeout_s), "localhost")
        connected = socket.create_connection((self.host, self.port), timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls:
            connected = self._encrypted(connected)
        return HttpConnection(connected, self._authority())

    def _encrypted(self, connected: socket.socket) -> socket.socket:
        """Encrypt the connection; raise GridError if the controller cannot prove who it is."""
        import ssl  # takes long to import, and few need it

        try:
            return ssl.create_default_context().wrap_socket(connected, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            connected.close()
            message = f"the certificate of {self} cannot be trusted: {error.verify_message}"
            hint = "Set $SSL_CERT_FILE to the certificate that signed it."
            raise make_error("controller_unavailable", message, hint) from error
        except ssl.SSLError as error:
            connected.close()
            message = f"{self} does not speak TLS: {error.reason}"
            hint = "Use http:// if the controller has no certificate."
            raise make_error("controller_unavailable", message, hint) from error
        except OSError:
            connected.close()
            raise

    def _open_path(self, timeout_s: float | None) -> socket.socket:
        if len(os.fsencode(self.path)) > _LONGEST_PATH:
            message = f"the path of the socket is too long: {self.path}"
            raise make_error("invalid_input", message, f"Use one of at most {_LONGEST_PATH} bytes.")
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout_s)
            _connect(connected, self.path, timeout_s)
            self._check_peer(connected)
        except BaseException:
            connected.close()
            raise
        return connected

    def _check_peer(self, connected: socket.socket) -> None:
        owner = _sole_writer(os.path.dirname(self.path)) if self.chosen else None
        try:
            check_peer(connected, trusted_uid=owner)
        except PermissionError as error:
            hint = "Nothing was sent. If that user runs the controller, ask for its address."
            raise make_error("controller_unavailable", f"{self.path}: {error}", hint) from error


def _sole_writer(folder: str) -> int | None:
    """Return the owner of the folder, or None if others can write there."""
    found = os.stat(folder)
    return None if found.st_mode & 0o022 else found.st_uid


def _connect(connected: socket.socket, path: str, timeout_s: float | None) -> None:
    """Connect. When the socket's backlog is full the system refuses at once, so retry here."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            return connected.connect(path)
        except BlockingIOError:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("too many clients wait to connect") from None
            time.sleep(_PAUSE_S)


class ReplyStream:
    """A reply that lasts, on a connection of its own: lines, and raw bytes that follow them."""

    def __init__(self, connection: HttpConnection, reply: Reply) -> None:
        self._connection = connection
        self._body = reply.body

    def line(self) -> bytes:
        """Return the next line, or b"" when the server has ended the stream in good order."""
        text = self._body.readline()
        if text and not text.endswith(b"\n"):
            raise ConnectionLost("the stream ended within a line")
        return text

    def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        data = self._body.read(count)
        if len(data) < count:
            raise ConnectionLost("the stream ended within a frame")
        return data

    def rest(self) -> bytes:
        """Return everything up to the end of the stream."""
        return self._body.read()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Sends requests to one address. Any thread may use it, and so may a signal handler.

    A connection belongs to one request until its reply has been read, and is then kept for the
    next one.
    """

    def __init__(self, address: Address, *, timeout_s: float = 60.0) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._idle: list[HttpConnection] = []
        self._closed = False
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
        on_silence: Callable[[socket.socket], object] | None = None,
        opened: Callable[[HttpConnection], object] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and read the whole reply. `opened` gets each connection before it is used.

        The server may have closed a kept connection. A repeatable request is then sent once more
        on a new one; any other raises `ConnectionLost`, since it may have been processed.
        """
        timeout_s = timeout_s or self.timeout_s
        connection = self._take()
        while True:
            again = connection.used and repeatable
            try:
                if opened is not None:
                    opened(connection)
                reply = connection.ask(method, target, headers, body, timeout_s, on_silence)
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
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        opened: Callable[[HttpConnection], object] | None = None,
    ) -> tuple[int, ReplyStream]:
        """Open a reply that lasts, on a connection of its own, which is passed to `opened` first.

        A unix socket has no time-out: a controller may be slow, and when its process ends the
        system closes the socket. On a network only silence shows that the controller is gone.
        """
        connection = self.address.open(self.timeout_s)
        silence_s = None if self.address.path else _SILENCE_S
        try:
            if opened is not None:
                opened(connection)
            reply = connection.ask(method, target, headers, body, silence_s)
        except BaseException:
            connection.close()
            raise
        return reply.status, ReplyStream(connection, reply)

    def close(self) -> None:
        """Close the idle connections now, and those in use as soon as their replies were read."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _take(self) -> HttpConnection:
        if self._pid != os.getpid():  # these connections belong to the parent of this fork
            self._drop_idle()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self.address.open(self.timeout_s)

    def _give_back(self, connection: HttpConnection) -> None:
        if connection.kept and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:  # perhaps by another thread just now
            self._drop_idle()
