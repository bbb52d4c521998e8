"""A stand-in for a controller: speaks HTTP on a unix socket as the tests tell it to.

As a script it is what `grid serve` is to the client: it takes the home for itself, listens, says
that it is ready and ends when asked to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit


class Asked(NamedTuple):
    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


FAKE = Path(__file__)


def started(home):
    """The pids of the controllers that were started in this home."""
    file = home / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


DROP = object()  # in place of a reply, or among its parts: the connection breaks here
Answer = Callable[[Asked], object]


def reply(content=b"", status=200, headers=(), kind="application/json") -> bytes:
    """A reply with a length; what is not bytes becomes JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def problem(status, **told) -> bytes:
    return reply({"status": status, **told}, status, kind="application/problem+json")


def chunked(parts: Iterable[object]) -> Iterable[object]:
    """A reply in chunks, each of them sent by itself."""
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for part in parts:
        if part is DROP:
            yield DROP
            return
        yield b"%x\r\n%s\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def frame(event, data=b"", **told) -> bytes:
    if event == "output":
        told["bytes"] = len(data)
    return json.dumps({"event": event, **told}).encode() + b"\n" + data


class FakeController:
    """Answers every request with what `answer` says: bytes, parts of them, or `DROP`."""

    def __init__(self, path: str, answer: Answer, *, family=socket.AF_UNIX) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self._answer = answer
        self._open: set[socket.socket] = set()
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.suppress(TypeError, FileNotFoundError):
            os.unlink(path)
        self._listening.bind(path)
        self._listening.listen(1024)
        self.address = self._listening.getsockname()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """As a controller that is killed: the socket stays, and every connection breaks."""
        with contextlib.suppress(OSError):  # it was closed before
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Close the connections that are open, as a server does with idle ones."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> FakeController:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connected)
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, connected.makefile("rb") as file, contextlib.suppress(OSError, EOFError):
            while (asked := _read(file)) is not None:
                self.asked.append(asked)
                if not _send(connected, self._answer(asked)):
                    break
        self._open.discard(connected)


def _read(file) -> Asked | None:
    first = file.readline()
    if not first:
        return None
    method, target, _ = first.decode().split()
    headers = {}
    while (line := file.readline().strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = file.read(int(headers.get("content-length", 0)))
    split = urlsplit(target)
    return Asked(method, unquote(split.path), parse_qsl(split.query), headers, body)


def _send(connected: socket.socket, answer: object) -> bool:
    parts = [answer] if isinstance(answer, bytes) or answer is DROP else answer
    for part in parts:
        if part is DROP:
            return False
        connected.sendall(part)
    return True


def main() -> None:
    ready_fd = int(sys.argv[sys.argv.index("--ready-fd") + 1])
    home = os.environ["GRIDHAND_HOME"]
    with open(os.path.join(home, "starts"), "a") as file:
        file.write(f"{os.getpid()}\n")
    with open(os.path.join(home, "environment"), "w") as file:
        json.dump(
            {**os.environ, "cwd": os.getcwd(), "sid": os.getsid(0), "pgid": os.getpgrp()}, file
        )
    time.sleep(float(os.environ.get("FAKE_DELAY_S", "0")))
    if words := os.environ.get("FAKE_DIES"):
        print(words, flush=True)
        sys.exit(3)
    owned = open(os.path.join(home, "owned"), "w")  # noqa: SIM115
    try:
        fcntl.lockf(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.write(ready_fd, b"error: the store is owned by process 1\nhint: Wait.\n")
        sys.exit(4)
    ended = threading.Event()

    def answer(asked: Asked) -> object:
        if asked.path.endswith("/stop"):
            ended.set()
            return reply({})
        if asked.path.endswith("/follow"):  # a job that writes six letters, and has ended
            offset = int(dict(asked.query)["stdout"])
            rest = frame("output", b"abcdef"[offset:], stream="stdout", offset=offset)
            return chunked([rest, frame("end", job={"id": "17", "state": "succeeded"})])
        version = os.environ.get("FAKE_VERSION", "0.1.0")
        idle = "FAKE_BUSY" not in os.environ
        return reply({"version": version, "pid": os.getpid(), "protocol": 1, "idle": idle})

    with FakeController(os.path.join(home, "socket"), answer):
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
        ended.wait(60)


if __name__ == "__main__":
    main()
