"""The worker: takes calls from its client, runs them one after the other, and answers.

Functions run in the main thread, as they would in a program. A second thread watches: when the
client is gone, it ends the process, whatever runs. While a long call runs, it sends the answers
that were kept back, and gives back the calls that wait behind it if the client asks for them.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter, sleep
from types import CoroutineType
from typing import Any

from gridhand.posix.peers import check_peer
from gridhand.worker import current_slot, wire
from gridhand.worker.answer_box import Box
from gridhand.worker.encoded_values import Folders, dumps_known, load
from gridhand.worker.errors import failure
from gridhand.worker.old_names import loads

_TICK_MS = 5  # while calls wait here
_LOOK_MS = 50
_SLOW_S = 0.001  # the answer to a call that took longer is sent at once
_MANY = 4096  # bytes of answers that are sent without waiting for more
_LEAVE_S = 0.3
_CANCELLED_S = 10.0  # by when the controller has noticed that the client is gone
_CHUNK = 1 << 18


def main(words: list[str]) -> None:
    """Serve the client of a folder until it says quit, or is gone; or run one detached call."""
    if words and words[0] == "--once":
        from gridhand.worker.detached_call import run_once

        sys.exit(run_once(words[1]))
    import faulthandler

    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    folder, shape, *name = words
    sys.argv = [""]
    Worker(folder, int(shape), *name).run()


class Worker:
    """The connection to the client, and the functions and calls that it has sent."""

    def __init__(self, folder: str, shape: int, name: str = "") -> None:
        self._folders: list[str] = []
        self._is_job = not name
        self._socket = _connected(folder, shape, name)
        self._frames = wire.Frames()
        self._calls: deque[tuple[int, int, int, bytes]] = deque()
        self._functions: dict[int, Callable[..., Any] | bytes] = {}
        self._reading = threading.Lock()
        self._answering = threading.Lock()
        self._ticking = self._busy = self._useless = False
        self._freed: Any = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        first, *others = self._first()
        _, number, self._folders, path, slot, setup = marshal.loads(first)
        sys.path[:] = path
        current_slot.slot = slot
        self._box = Box(os.path.join(self._folders[0], f"w{number}"))
        self._values = Folders(self._folders, f"w{number}", slot["request"].get("memory"))
        threading.Thread(target=self._watch, name="gridhand-watch", daemon=True).start()
        if setup is not None:
            self._set_up(setup)
        self._obey(others)

    def run(self) -> None:
        calls = self._calls
        while self._useless:
            self._give_back()
            self._receive()
        while True:
            try:
                number, function, kind, data = calls.popleft()
            except IndexError:  # all are done, or were taken back
                self._flush()
                self._receive()
                if len(calls) > 1 and not self._ticking:
                    self._ticking = True
                    os.eventfd_write(self._wake, 1)
                continue
            self._call(number, function, kind, data)

    # ---- calls

    def _call(self, number: int, function: int, kind: int, data: bytes) -> None:
        with self._answering:
            self._box.begin(number)
        self._busy = True
        start = perf_counter()
        how, reply = self._outcome(function, kind, data)
        seconds = perf_counter() - start
        self._busy = False
        self._answer(number, how, seconds, reply)
        if seconds > _SLOW_S or self._box.used > _MANY:
            self._flush()
        self._freed = None  # not before the answer is out: to give back much memory takes long

    def _outcome(self, function: int, kind: int, data: bytes) -> tuple[int, bytes]:
        try:
            code = self._functions[function]
            if isinstance(code, bytes):
                code = self._functions[function] = loads(code)
            args, kwargs = load(kind, data)
        except BaseException as error:
            return wire.RAISED, failure(error, "it could not be loaded in its worker: ")
        try:
            value = code(*args, **kwargs) if kwargs else code(*args)
            self._freed = args, kwargs, value
            if type(value) is CoroutineType:
                value = _awaited(value)
        except BaseException as error:
            return wire.RAISED, failure(error)
        try:
            return self._values.pack(value, dumps_known)
        except BaseException as error:
            because = f"what it returned, a {type(value).__qualname__}, cannot be sent: "
            return wire.RAISED, failure(error, because)

    def _answer(self, number: int, how: int, seconds: float, reply: bytes) -> None:
        answer = wire.ANSWER.pack(number, how, seconds, len(reply)) + reply
        with self._answering:
            if self._box.add(number, answer):
                return
            self._send()
            if not self._box.add(number, answer):
                self._socket.sendall(wire.LENGTH.pack(len(answer)) + answer)
                self._box.begin(0)

    def _flush(self) -> None:
        if self._box.used:
            with self._answering:
                self._send()

    def _send(self) -> None:
        if self._box.used:
            try:
                self._socket.sendall(wire.LENGTH.pack(self._box.used) + self._box.answers())
            except OSError:
                self._leave()
            self._box.clear()

    def _set_up(self, setup: bytes) -> None:
        """Call the initializer."""
        try:
            code, args = loads(setup)
            code(*args)
        except BaseException as error:
            self._useless = True
            self._answer(0, wire.NO_SETUP, 0.0, failure(error))

    # ---- messages of the client

    def _first(self) -> list[bytes]:
        while not (found := self._frames.take(self._some())):
            pass
        return found

    def _receive(self) -> None:
        """Wait for a message of the client, and obey it."""
        with self._reading:
            if not self._calls:  # they may have come meanwhile
                self._obey(self._frames.take(self._some()))

    def _some(self) -> bytes:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._leave()
        return data

    def _obey(self, bodies: list[bytes]) -> None:
        for body in bodies:
            message = marshal.loads(body)
            if message[0] == wire.CALLS:
                _, path, functions, calls = message
                if path is not None:
                    sys.path[:] = path
                self._learn(functions)
                self._calls.extend(calls)
            elif message[0] == wire.RECALL:
                self._give_back()
            else:
                self._flush()
                atexit._run_exitfuncs()
                _exit(0)

    def _learn(self, functions: list[tuple[int, bytes]]) -> None:
        if functions and functions[0][0] == wire.FORGET:
            needed = {call[1] for call in list(self._calls)}
            for number in [one for one in self._functions if one not in needed]:
                del self._functions[number]
        self._functions.update(functions)

    def _give_back(self) -> None:
        """Give the calls back that have not begun."""
        with contextlib.suppress(IndexError):
            while True:
                self._answer(self._calls.pop()[0], wire.TAKEN_BACK, 0.0, b"")
        self._flush()

    # ---- the second thread

    def _watch(self) -> None:
        gone = select.poll()
        gone.register(self._socket, select.POLLRDHUP)
        gone.register(self._wake, select.POLLIN)
        said = select.poll()
        said.register(self._socket, select.POLLIN)
        while True:
            for fd, _ in gone.poll(_TICK_MS if self._ticking else _LOOK_MS):
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    if not self._busy:
                        sleep(_LEAVE_S)  # the other thread hears why
                    self._leave()
            if self._ticking or self._busy:
                self._tick(said)

    def _tick(self, said: select.poll) -> None:
        last = not self._calls  # before the rest is sent: an answer may come right after that
        self._flush()
        if said.poll(0) and self._reading.acquire(blocking=False):
            try:
                if said.poll(0):
                    self._obey(self._frames.take(self._some()))
            finally:
                self._reading.release()
        if last:
            self._ticking = False
            self._ticking = len(self._calls) > 1  # they may just have come

    def _leave(self) -> None:
        """End the process. If the client is dead, remove its folders first.

        A job waits to be ended then: the controller cancels the jobs of a client that is gone, and
        one that ended by itself just before that would count as failed.
        """
        deadline = perf_counter() + _LEAVE_S
        with contextlib.suppress(OSError):
            while self._folders and perf_counter() < deadline:
                if _remove_if_dead(self._folders):
                    sleep(_CANCELLED_S if self._is_job else 0)
                    break
                sleep(0.01)
        _exit(1)


def _awaited(value: CoroutineType[Any, Any, Any]) -> Any:
    """Run a coroutine to its end."""
    import asyncio

    return asyncio.run(value)


def _remove_if_dead(folders: list[str]) -> bool:
    """Remove the folders of a client that is gone; return whether none is left."""
    from gridhand.posix.temporary_folders import remove_temporary_folder

    for folder in folders:
        remove_temporary_folder(folder, only_if_left_behind=True)
    return not any(map(os.path.exists, folders))


def _exit(code: int) -> None:
    """End the process at once: the main thread may be in the middle of a function."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _connected(folder: str, shape: int, name: str) -> socket.socket:
    with open(os.path.join(folder, "secret"), "rb") as file:
        secret = file.read()
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.connect(os.path.join(folder, "socket"))
    check_peer(connected)
    job, attempt, node, allocation = (os.environ.get(f"GRIDHAND_{one}", "") for one in _TOLD)
    if name:  # not a job of its own, though it may run inside one
        job, attempt = name, "1"
    connected.sendall(wire.frame((secret, shape, job, attempt, node, allocation)))
    return connected


_TOLD = ("JOB_ID", "ATTEMPT", "NODE", "ALLOCATION_ID")
