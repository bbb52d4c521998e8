"""How a stream reaches the workers of its stages: by queues in this process, or by sockets.

Whatever a worker does is put into the stream's inbox by whoever reads it, so that the stream's own
thread never waits for one worker while another has something to say.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gridhand.library.poolfolder import PoolFolder
from gridhand.library.threadcalls import Kept
from gridhand.library.values import FileValue, InlineValue, keep_those_in
from gridhand.worker import stage, wire
from gridhand.worker.failing import raised
from gridhand.worker.stage import Answer, Item, Work
from gridhand.worker.values import Folders, Packed, dumps

Put = Callable[[Any], None]


class Joined(NamedTuple):
    """A worker of that stage is there."""

    stage: str
    port: Port


class Told(NamedTuple):
    port: Port
    answers: list[Answer]


class Gone(NamedTuple):
    port: Port


class Port(Protocol):
    """One worker, as the stream has it."""

    def send(self, items: Sequence[Item]) -> None: ...

    def close(self) -> None:
        """It is to end, once it has done what it was sent."""


class Wiring(Protocol):
    """Makes workers of calls."""

    def call(self, stage: str, work: Work) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What is to be called, for as long as the stage lasts, and with what."""

    def pack(self, value: Any) -> Any:
        """A value as items have it: its `load` gives it back."""

    def close(self) -> None: ...


# ---- threads


class ThreadPort:
    """One worker in a thread of this process; both of its sides."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._items: queue.SimpleQueue[Sequence[Item]] = queue.SimpleQueue()

    def send(self, items: Sequence[Item]) -> None:
        self._items.put([(number, [one.load() for one in values]) for number, values in items])

    def close(self) -> None:
        self._items.put(())

    def take(self) -> Sequence[Item]:
        return self._items.get()

    def waiting(self) -> bool:
        return not self._items.empty()

    def answer(self, answers: list[Answer]) -> None:
        told = [
            one if one.error is not None else one._replace(value=Kept(one.value)) for one in answers
        ]
        self._put(Told(self, told))

    def failure(self, error: BaseException) -> BaseException:
        return error


class Threads:
    """For a caller that runs calls in threads."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def call(self, stage: str, work: Work) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._serve, (stage, work)

    def _serve(self, name: str, work: Work) -> None:
        port = ThreadPort(self._put)
        self._put(Joined(name, port))
        try:
            stage.serve(work, port)
        finally:
            self._put(Gone(port))

    def pack(self, value: Any) -> Kept:
        return Kept(value)

    def close(self) -> None:
        """There is nothing to give back."""


# ---- processes


class SocketPort:
    """One worker at the other end of a connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, items: Sequence[Item]) -> None:
        listed = [(number, [_packed(one) for one in values]) for number, values in items]
        with contextlib.suppress(OSError):  # it has gone, and its reader says so
            self._connection.send_bytes(marshal.dumps(listed))

    def close(self) -> None:
        self.send([])

    def read(self) -> list[Answer]:
        return [_answer(*one) for one in marshal.loads(self._connection.recv_bytes())]

    def hang_up(self) -> None:
        """Whoever reads from it finds its end, and closes it."""
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as same,
        ):
            same.shutdown(socket.SHUT_RDWR)


def _packed(value: InlineValue | FileValue) -> Packed:
    if isinstance(value, FileValue):
        return wire.FILE, os.fsencode(value.path)
    return value.packed


def _answer(number: int, packed: Packed | None, error: bytes | None, seconds: float) -> Answer:
    if packed is None:
        return Answer(number, None, error, seconds)
    kind, data = packed
    value = FileValue(os.fsdecode(data)) if kind == wire.FILE else InlineValue(kind, data)
    return Answer(number, value, None, seconds)


class Sockets:
    """For a caller that runs calls in processes of this machine."""

    def __init__(self, put: Put) -> None:
        from multiprocessing.connection import Listener

        self._put = put
        self._folder = PoolFolder()  # which is removed by others, if we are killed
        self._folders = self._folder.folders
        self._values = Folders(self._folders, "c")
        self._secret, self._address = self._folder.secret, self._folder.socket
        self._listener = Listener(self._address, family="AF_UNIX", authkey=self._secret)
        self._closed = False
        self._ports: list[SocketPort] = []
        threading.Thread(target=self._accept, name="gridhand-stages", daemon=True).start()

    def call(self, stage_id: str, work: Work) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return stage.connect, (self._address, self._secret, stage_id, self._folders, work)

    def pack(self, value: Any) -> InlineValue | FileValue:
        kind, data = self._values.pack(value, dumps)
        return FileValue(os.fsdecode(data)) if kind == wire.FILE else InlineValue(kind, data)

    def _accept(self) -> None:
        from multiprocessing import AuthenticationError

        while not self._closed:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # it was none of ours
            except OSError:
                return
            threading.Thread(
                target=self._read, args=(connection,), name="gridhand-stage", daemon=True
            ).start()

    def _read(self, connection: Any) -> None:
        port = SocketPort(connection)
        self._ports.append(port)
        with contextlib.suppress(EOFError, OSError):
            name, _, _ = marshal.loads(connection.recv_bytes())
            self._put(Joined(name, port))
            while True:
                self._put(Told(port, port.read()))
        connection.close()
        self._put(Gone(port))

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as waking:
            waking.connect(self._address)  # whoever accepts does not hear of the closing itself
        self._listener.close()
        keep_those_in(self._folders)
        for port in self._ports:
            port.hang_up()
        self._folder.remove()


def error_of(told: Any, stage_id: str) -> BaseException:
    """What the function raised, however it was sent."""
    return raised(told, stage_id) if isinstance(told, bytes) else told
