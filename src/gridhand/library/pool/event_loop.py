"""The thread that reads the answers of a pool's workers and sends them the calls that wait."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gridhand.library.functions.values import paths_held
from gridhand.library.pool.folder import PoolFolder
from gridhand.library.pool.handshake import greeted
from gridhand.library.pool.shape import PendingCall, Shape, WorkerHandle
from gridhand.library.pool.slots import timed_out
from gridhand.library.pool.worker_group import BrokenGridExecutor
from gridhand.worker import answer_box, wire
from gridhand.worker.errors import raised

if TYPE_CHECKING:
    from gridhand.library.pool.pool import Pool
    from gridhand.library.pool.state import Due, PoolState

_CHUNK = 1 << 18
_TICK_S = 0.05
_MOST_SENT = 500


class WorkerConnection:
    """The socket of a worker, and what the worker has been sent before."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.frames = wire.Frames()
        self.outbox = bytearray()
        self._path: list[str] = []
        self._sent: set[int] = set()

    def new_path(self) -> list[str]:
        """Return where modules are looked for here, which the worker is to know from now on."""
        self._path = list(sys.path)
        return [one for one in self._path if isinstance(one, str)]

    def frame(self, calls: list[PendingCall]) -> bytes:
        functions: list[tuple[int, bytes]] = []
        sent = self._sent
        if len(sent) >= _MOST_SENT:
            sent.clear()
            functions.append((wire.FORGET, b""))
        for call in calls:
            function = call.function
            if function.number not in sent:
                sent.add(function.number)
                functions.append((function.number, function.data))
        path = None if self._path == sys.path else self.new_path()
        listed = [(one.number, one.function.number, one.kind, one.data) for one in calls]
        return wire.frame((wire.CALLS, path, functions, listed))


class WorkerLoop:
    """The connections to the workers of a pool. It changes the pool's state under its lock."""

    def __init__(self, pool: Pool, state: PoolState, folder: PoolFolder) -> None:
        self._pool = pool
        self._state = state
        self._lock = state.lock
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(folder.socket)
        self._listener.listen(1024)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        for fd in (self._listener.fileno(), self._wake):
            self._epoll.register(fd, select.EPOLLIN)
        self._workers: dict[int, WorkerHandle] = {}  # by the number of their socket
        self._alarm = 0.0  # no call has a limit that ends before this
        self._ticked = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gridhand-pool", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Tell all workers to end."""
        self._closed = True
        self.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def forked(self) -> None:
        """In a child process, close the copies of the parent's connections."""
        for worker in self._workers.values():
            os.close(worker.connection.socket.detach())
        os.close(self._listener.detach())
        self._epoll.close()
        os.close(self._wake)

    # ---- with the lock held

    def pump(self, worker: WorkerHandle) -> None:
        """Send the worker what it is to do next; if there is nothing, it is idle."""
        if not worker.running and worker.shape.has_worn_out(worker):
            self._state.retire(worker)
            self._pool.look_for_more()
        if worker.retiring:
            if not worker.running:
                self._send(worker, wire.frame((wire.QUIT,)))
            return
        shape = worker.shape
        fresh = not worker.running
        calls = shape.take(worker)
        if calls:
            if fresh:
                worker.begun = time.monotonic()
            self._send(worker, worker.connection.frame(calls))
            if any(call.limit_s is not None for call in calls):
                self.wake()
        elif fresh:
            shape.rest(worker, time.monotonic())
            if len(shape.idle) == 1:
                self.wake()

    def stop(self, worker: WorkerHandle, call: PendingCall) -> None:
        """Take the call back if it has not begun, else end the worker."""
        self._do(self._state.stop(worker, call, time.monotonic()))

    def release_idle(self, is_meant: Callable[[Shape], bool]) -> None:
        """Tell the idle workers of these shapes to end."""
        self._do(self._state.release_idle(is_meant))

    def _do(self, due: Due) -> None:
        for worker in due.quit:
            self._send(worker, wire.frame((wire.QUIT,)))
        for worker in due.recall:
            self._send(worker, wire.frame((wire.RECALL,)))
        for worker in due.kill:
            self._kill(worker)

    def _kill(self, worker: WorkerHandle) -> None:
        """End the process now. What became of its calls is seen when it is gone."""
        self._state.retire(worker, doomed=True)
        if worker.pid > 0:  # known here, and its own for as long as it is connected
            with contextlib.suppress(OSError):
                os.kill(worker.pid, signal.SIGKILL)
        self._pool.end_jobs([worker.job])

    def _feed(self, shape: Shape) -> None:
        """Send idle workers the calls that are in line again."""
        while shape.waiting and shape.idle:
            self.pump(shape.idle.pop())

    def _send(self, worker: WorkerHandle, data: bytes) -> None:
        link = worker.connection
        if link.outbox:
            link.outbox += data
            return
        try:
            count = link.socket.send(data)
        except BlockingIOError:
            count = 0
        except OSError:  # it is gone, which the thread that reads will see
            return
        if count < len(data):
            link.outbox += memoryview(data)[count:]
            self._epoll.modify(link.socket, select.EPOLLIN | select.EPOLLOUT)

    # ---- the thread

    def _run(self) -> None:
        while not self._closed:
            try:
                events = self._epoll.poll(self._timeout())
            except ValueError:  # closed
                return
            for fd, event in events:
                if fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                elif fd == self._listener.fileno():
                    self._accept()
                else:
                    worker = self._workers.get(fd)
                    if worker is not None:
                        self._read_safely(worker, event)
            now = time.monotonic()
            if now - self._ticked >= _TICK_S or now >= self._alarm:
                self._ticked = now
                self._tick(now)
        self._end()

    def _timeout(self) -> float | None:
        if not self._workers:
            return None
        return max(0.001, min(_TICK_S, self._alarm - time.monotonic()))

    def _tick(self, now: float) -> None:
        with self._lock:
            due = self._state.due(now)
            self._alarm = due.alarm
            self._do(due)
        if due.short:
            self._pool.look_for_more()
        for call in due.late:
            self._pool.fail(call, timed_out(call))

    def _accept(self) -> None:
        if (found := greeted(self._listener, self._folder.secret)) is None:
            return
        connected, pid, number, told = found
        with self._lock:
            worker = self._state.welcome(number, pid, told)
            if worker is None:
                connected.close()
                return
            worker.connection = WorkerConnection(connected)
            path = worker.connection.new_path()
            setup = worker.shape.group.setup
            hello = (worker.number, self._folder.folders, path, worker.slot(), setup)
            with contextlib.suppress(OSError):
                connected.sendall(wire.frame(("hello", *hello)))
            connected.setblocking(False)
            self._workers[connected.fileno()] = worker
            self._epoll.register(connected, select.EPOLLIN)
            self.pump(worker)

    def _read_safely(self, worker: WorkerHandle, event: int) -> None:
        """Read what a worker sends, and kill it if that makes no sense: others are to be heard."""
        try:
            self._read(worker, event)
        except (ValueError, struct.error, TypeError):
            with self._lock:
                self._kill(worker)

    def _read(self, worker: WorkerHandle, event: int) -> None:
        link = worker.connection
        if event & select.EPOLLOUT:
            with self._lock:
                self._send_rest(link)
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = link.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone(worker)
            return
        with self._lock:
            answers = self._take_answers(worker, link.frames.take(data))
            if not worker.running:
                worker.recalled = False
            if not worker.recalled and worker not in worker.shape.idle:
                self.pump(worker)
        self._pool.settle(answers, worker)
        if (broken := worker.shape.group.broken) is not None:
            self._pool.fail_waiting(broken, worker.shape)

    def _send_rest(self, link: WorkerConnection) -> None:
        with contextlib.suppress(OSError):
            count = link.socket.send(link.outbox)
            del link.outbox[:count]
        if not link.outbox:
            self._epoll.modify(link.socket, select.EPOLLIN)

    def _take_answers(
        self, worker: WorkerHandle, bodies: list[bytes]
    ) -> list[tuple[PendingCall, int, bytes]]:
        answered, strays = self._state.take_answers(worker, bodies, time.monotonic())
        for how, data in strays:
            self._handle_stray(worker, how, data)
        self._feed(worker.shape)
        return answered

    def _handle_stray(self, worker: WorkerHandle, how: int, data: bytes) -> None:
        """Handle the answer to a call that was stopped, or to the initializer."""
        if how == wire.FILE:
            with contextlib.suppress(OSError):
                os.unlink(data)
        elif how == wire.NO_SETUP:
            broken = worker.shape.group.broken = BrokenGridExecutor("the initializer failed")
            broken.__cause__ = raised(data, "the initializer")
            self._state.retire(worker)
            if not worker.running:
                self._send(worker, wire.frame((wire.QUIT,)))

    def _gone(self, worker: WorkerHandle) -> None:
        """Clean up after a worker that has ended. Only the call that it was at has failed."""
        ran, left = answer_box.look(os.path.join(self._folder.folders[0], f"w{worker.number}"))
        link = worker.connection
        with self._lock:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(link.socket)
            self._workers.pop(link.socket.fileno(), None)
            link.socket.close()
            answers = self._take_answers(worker, [left]) if left else []
            lost = self._state.gone(worker, ran)
            self._feed(worker.shape)
        self._pool.settle(answers, worker)
        self._folder.remove_those_of(f"w{worker.number}", paths_held())
        if lost is not None:
            self._pool.lost(worker, lost)
        self._pool.look_for_more()

    def _end(self) -> None:
        with self._lock:
            for worker in self._workers.values():
                if worker.running:
                    self._kill(worker)
                elif not worker.retiring:
                    self._send(worker, wire.frame((wire.QUIT,)))
                worker.connection.socket.close()
            self._workers.clear()
            self._epoll.close()
            self._listener.close()
            os.close(self._wake)
            self._wake = -1
