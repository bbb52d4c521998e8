"""Connect a stream to the workers of its stages, through queues in this process or sockets.

A reader thread for each worker puts its messages into the stream's inbox, so that the stream's own
thread never blocks on one worker while another has an answer.
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

from gridhand.library.functions.values import FileValue, InlineValue, keep_those_in
from gridhand.library.pool.folder import PoolFolder
from gridhand.library.thread_runner.thread_call import Kept
from gridhand.worker import stage_worker, wire
from gridhand.worker.encoded_values import Folders, Packed, dumps
from gridhand.worker.errors import raised
from gridhand.worker.stage_worker import Answer, Item, StageWork

Put = Callable[[Any], None]


class Joined(NamedTuple):
    """A message: a worker of this stage has connected."""

    stage: str
    port: StagePort


class Answered(NamedTuple):
    """A message: a worker has answered items."""

    port: StagePort
    answers: list[Answer]


class Disconnected(NamedTuple):
    """A message: a worker has gone."""

    port: StagePort


class StagePort(Protocol):
    """The stream's side of the connection to one worker."""

    def send(self, items: Sequence[Item]) -> None: ...

    def close(self) -> None:
        """Tell the worker to end after the items it was sent."""


class Wiring(Protocol):
    """Turns function calls into connected stage workers."""

    def call(self, stage: str, work: StageWork) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function, and its arguments, that a worker of the stage runs throughout."""

    def pack(self, value: Any) -> Any:
        """Return `value` in the form that items carry; its `load` returns the value."""

    def close(self) -> None: ...


# ---- threads


class QueueStagePort:
    """Both sides of the connection to a worker in a thread of this process."""

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
        kept = [
            answer if answer.error is not None else answer._replace(value=Kept(answer.value))
            for answer in answers
        ]
        self._put(Answered(self, kept))

    def failure(self, error: BaseException) -> BaseException:
        return error


class ThreadWiring:
    """Connects workers that run in threads of this process."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def call(self, stage: str, work: StageWork) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._serve, (stage, work)

    def _serve(self, name: str, work: StageWork) -> None:
        port = QueueStagePort(self._put)
        self._put(Joined(name, port))
        try:
            stage_worker.serve(work, port)
        finally:
            self._put(Disconnected(port))

    def pack(self, value: Any) -> Kept:
        return Kept(value)

    def close(self) -> None:
        """Do nothing: threads leave nothing behind."""


# ---- processes


class SocketPort:
    """The stream's side of a socket connection to a worker process."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def send(self, items: Sequence[Item]) -> None:
        listed = [(number, [_packed(one) for one in values]) for number, values in items]
        with contextlib.suppress(OSError):  # its reader thread reports that it is gone
            self._connection.send_bytes(marshal.dumps(listed))

    def close(self) -> None:
        self.send([])

    def read(self) -> list[Answer]:
        return [_answer(*one) for one in marshal.loads(self._connection.recv_bytes())]

    def hang_up(self) -> None:
        """Shut the connection down; its reader thread then closes it."""
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


class SocketWiring:
    """Connects workers that run in processes of this machine."""

    def __init__(self, put: Put) -> None:
        from multiprocessing.connection import Listener

        self._put = put
        self._folder = PoolFolder()  # other processes remove it if this one is killed
        self._folders = self._folder.folders
        self._values = Folders(self._folders, "c")
        self._secret, self._address = self._folder.secret, self._folder.socket
        self._listener = Listener(self._address, family="AF_UNIX", authkey=self._secret)
        self._closed = False
        self._ports: list[SocketPort] = []
        threading.Thread(target=self._accept, name="gridhand-stages", daemon=True).start()

    def call(self, stage_id: str, work: StageWork) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return stage_worker.connect, (self._address, self._secret, stage_id, self._folders, work)

    def pack(self, value: Any) -> InlineValue | FileValue:
        kind, data = self._values.pack(value, dumps)
        return FileValue(os.fsdecode(data)) if kind == wire.FILE else InlineValue(kind, data)

    def _accept(self) -> None:
        from multiprocessing import AuthenticationError

        while not self._closed:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue  # not one of our workers
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
                self._put(Answered(port, port.read()))
        connection.close()
        self._put(Disconnected(port))

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as waking:
            waking.connect(self._address)  # closing alone does not wake the accepting thread
        self._listener.close()
        keep_those_in(self._folders)
        for port in self._ports:
            port.hang_up()
        self._folder.remove()


def error_of(sent: Any, stage_id: str) -> BaseException:
    """Return the exception that the function raised, from either kind of worker."""
    return raised(sent, stage_id) if isinstance(sent, bytes) else sent
