"""The thread that hears what the workers of a pool say, and gives them what waits."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from gridhand.library.pooldoor import greeted
from gridhand.library.poolfolder import PoolFolder
from gridhand.library.shapes import BrokenGridExecutor, Call, Shape, Worker
from gridhand.library.slots import timed_out
from gridhand.library.values import paths_held
from gridhand.worker import box, wire
from gridhand.worker.failing import raised

if TYPE_CHECKING:
    from gridhand.library.pool import Answered, Pool

_CHUNK = 1 << 18
_TICK_S = 0.05
_STUCK_S = 0.05  # calls that wait so long behind another are given to somebody else
_TURN_S = 0.5


class Loop:
    """The connections to the workers of a pool. What changes a shape does so under its lock."""

    def __init__(self, pool: Pool, folder: PoolFolder) -> None:
        self._pool = pool
        self._lock = pool.lock
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(folder.socket)
        self._listener.listen(1024)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        for fd in (self._listener.fileno(), self._wake):
            self._epoll.register(fd, select.EPOLLIN)
        self._workers: dict[int, Worker] = {}  # by the number of their socket
        self._count = 0
        self._alarm = 0.0  # no call has a limit that ends before this
        self._ticked = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gridhand-pool", daemon=True)
        self._thread.start()

    @staticmethod
    def now() -> float:
        return time.monotonic()

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
        """In a child: the parent's workers are not to wait for us."""
        for worker in self._workers.values():
            os.close(worker.socket.detach())
        os.close(self._listener.detach())
        self._epoll.close()
        os.close(self._wake)

    # ---- with the lock held

    def running(self) -> dict[int, float]:
        """The call that each worker is at, and since when."""
        busy = [worker for worker in self._workers.values() if worker.running]
        return {next(iter(worker.running)): worker.begun for worker in busy}

    def pump(self, worker: Worker) -> None:
        """Give the worker what it is to do next; if there is nothing, it is idle."""
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
            self._send(worker, worker.frame(calls))
            if any(call.limit_s is not None for call in calls):
                self.wake()
        elif fresh:
            worker.load_s = 0.0
            worker.since = time.monotonic()
            if worker.clears_up:  # others are quicker
                shape.idle.insert(0, worker)
            else:
                shape.idle.append(worker)
            if len(shape.idle) == 1:
                self.wake()

    def retire(self, worker: Worker) -> None:
        """Give its slot back, once it has done what it was given."""
        worker.retiring = True
        self._leave(worker)
        if not worker.running:
            self._send(worker, wire.frame((wire.QUIT,)))

    def stop(self, worker: Worker, call: Call) -> None:
        """Nobody wants this call any more: not begun it is given back, else the worker is ended.

        A worker may be further than it has said. So that no other call is ended, one that has
        only just got to this is looked at again in a moment.
        """
        head = next(iter(worker.running)) == call.number
        call.started = worker.begun if head else None
        if head and time.monotonic() - worker.begun > _STUCK_S:
            self.doom(worker)
        elif len(worker.running) > 1 and not worker.recalled:
            worker.recalled = True
            self._send(worker, wire.frame((wire.RECALL,)))

    def doom(self, worker: Worker) -> None:
        """End it now. What became of its calls is seen when it is gone."""
        worker.retiring = worker.doomed = True
        self._leave(worker)
        if worker.pid > 0:  # known here, and its own for as long as it is connected
            with contextlib.suppress(OSError):
                os.kill(worker.pid, signal.SIGKILL)
        self._pool.end_jobs([worker.job])

    def _feed(self, shape: Shape) -> None:
        """Those who have nothing to do get what has come back."""
        while shape.waiting and shape.idle:
            self.pump(shape.idle.pop())

    def _leave(self, worker: Worker) -> None:
        shape = worker.shape
        shape.workers.discard(worker)
        if worker in shape.idle:
            shape.idle.remove(worker)

    def _send(self, worker: Worker, data: bytes) -> None:
        if worker.outbox:
            worker.outbox += data
            return
        try:
            count = worker.socket.send(data)
        except BlockingIOError:
            count = 0
        except OSError:  # it is gone: whoever reads will see
            return
        if count < len(data):
            worker.outbox += memoryview(data)[count:]
            self._epoll.modify(worker.socket, select.EPOLLIN | select.EPOLLOUT)

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
                        self._surely_heard(worker, event)
            now = time.monotonic()
            if now - self._ticked >= _TICK_S or now >= self._alarm:
                self._ticked = now
                self._tick(now)
        self._end()

    def _timeout(self) -> float | None:
        if not self._workers:
            return None
        return max(0.001, min(_TICK_S, self._alarm - time.monotonic()))

    def _accept(self) -> None:
        if (found := greeted(self._listener, self._folder.secret)) is not None:
            self._welcome(*found)

    def _welcome(self, connected: socket.socket, pid: int, number: int, told: list[str]) -> None:
        with self._lock:
            shape = next((one for one in self._pool.known() if one.number == number), None)
            if shape is None or told[0] in shape.unwanted:
                connected.close()
                return
            self._count += 1
            worker = Worker(connected, pid, self._count, shape, told)
            path = worker.new_path()
            slot = _slot(worker)
            hello = (self._count, self._folder.folders, path, slot, shape.setup)
            with contextlib.suppress(OSError):
                connected.sendall(wire.frame(("hello", *hello)))
            connected.setblocking(False)
            self._workers[connected.fileno()] = worker
            self._epoll.register(connected, select.EPOLLIN)
            if shape.asked.pop(worker.job, None) is None and worker.attempt == 1:
                shape.early.add(worker.job)
            shape.failures = shape.helped = 0
            shape.no_room = False
            shape.workers.add(worker)
            self.pump(worker)

    def _surely_heard(self, worker: Worker, event: int) -> None:
        """Whatever one of them says, the others are heard."""
        try:
            self._heard(worker, event)
        except (ValueError, struct.error, TypeError):  # not what a worker says
            with self._lock:
                self.doom(worker)

    def _heard(self, worker: Worker, event: int) -> None:
        if event & select.EPOLLOUT:
            with self._lock:
                self._send_rest(worker)
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = worker.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone(worker)
            return
        with self._lock:
            answered = self._answers(worker, worker.frames.take(data))
            if not worker.running:
                worker.recalled = False
            if not worker.recalled and worker not in worker.shape.idle:
                self.pump(worker)
        self._pool.settle(answered, worker)
        if worker.shape.broken is not None:
            self._pool.fail_waiting(worker.shape.broken, worker.shape)

    def _send_rest(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):
            count = worker.socket.send(worker.outbox)
            del worker.outbox[:count]
        if not worker.outbox:
            self._epoll.modify(worker.socket, select.EPOLLIN)

    def _answers(self, worker: Worker, bodies: list[bytes]) -> Answered:
        """What was answered; the worker is without it from now on."""
        found: Answered = []
        running, shape, size = worker.running, worker.shape, wire.ANSWER.size
        unpack, load_s, seconds = wire.ANSWER.unpack_from, worker.load_s, 0.0
        now = time.monotonic()
        taken_back: list[Call] = []
        for body in bodies:
            offset, end = 0, len(body)
            while offset < end:
                number, how, seconds, length = unpack(body, offset)
                offset += size
                data = body[offset : offset + length]
                offset += length
                call = running.pop(number, None)
                if call is None:
                    self._unexpected(worker, how, data)
                    continue
                load_s -= call.expected
                if how == wire.TAKEN_BACK:
                    taken_back.append(call)
                    continue
                call.function.took(seconds)
                call.started, call.ended = now - seconds, now
                found.append((call, how, data))
        worker.load_s = load_s if running else 0.0
        worker.begun = now
        if found:
            shape.took(seconds)
            worker.clears_up = found[-1][1] == wire.FILE
        if taken_back:
            worker.recalled = bool(running)
            taken_back.sort(key=lambda call: call.number)
            shape.put_back(taken_back)
            self._feed(shape)
        return found

    def _unexpected(self, worker: Worker, how: int, data: bytes) -> None:
        """The answer to a call that was stopped; or the word that there is no use in any."""
        if how == wire.FILE:
            with contextlib.suppress(OSError):
                os.unlink(data)
        elif how == wire.NO_SETUP:
            worker.shape.broken = BrokenGridExecutor("the initializer failed")
            worker.shape.broken.__cause__ = raised(data, "the initializer")
            self.retire(worker)

    def _gone(self, worker: Worker) -> None:
        """It has ended. Only the call that it was at has failed, if it was at one."""
        ran, left = box.look(os.path.join(self._folder.folders[0], f"w{worker.number}"))
        with self._lock:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(worker.socket)
            self._workers.pop(worker.socket.fileno(), None)
            worker.socket.close()
            answered = self._answers(worker, [left]) if left else []
            call = None if worker.doomed else worker.running.pop(ran, None)
            self._leave(worker)
            worker.shape.put_back(list(worker.running.values()))
            worker.running.clear()
            self._feed(worker.shape)
            self._pool.forget_if_over(worker.shape)
        self._pool.settle(answered, worker)
        self._folder.remove_those_of(f"w{worker.number}", paths_held())
        if call is not None:
            call.started = worker.begun
            self._pool.lost(worker, call)
        self._pool.look_for_more()

    # ---- now and then

    def _tick(self, now: float) -> None:
        late: list[Call] = []
        self._alarm = now + 3600.0
        with self._lock:
            shapes = self._pool.known()
            starving = [one for one in shapes if one.starves(now)]
            for shape in shapes:
                for worker in list(shape.workers):
                    if worker.running:
                        self._check_running(worker, now, late)
                    elif (
                        shape.apart
                        or now - worker.since >= self._pool.linger_s
                        or any(one is not shape for one in starving)
                    ):
                        self.retire(worker)
            for worker in list(self._workers.values()):
                if worker.retiring and worker.running and not worker.doomed:
                    self._check_running(worker, now, late)  # it is in no shape any more
            if starving:
                self._make_room(starving[0], shapes, now)
            short = any(one.waiting or one.asked for one in shapes)
        if short:
            self._pool.look_for_more()
        for call in late:
            self._pool.fail(call, timed_out(call))

    def _check_running(self, worker: Worker, now: float, late: list[Call]) -> None:
        call = next(iter(worker.running.values()))
        ran_s = now - worker.begun
        if call.limit_s is not None:
            if ran_s >= call.limit_s:
                late.append(call)
                call.started = worker.begun
                self.doom(worker)
                return
            self._alarm = min(self._alarm, worker.begun + call.limit_s)
        if ran_s > _STUCK_S and call.future.done():  # it was stopped, and is at it now
            self.doom(worker)
        elif ran_s > _STUCK_S and len(worker.running) > 1 and not worker.recalled:
            worker.recalled = True
            self._send(worker, wire.frame((wire.RECALL,)))

    def _make_room(self, starving: Shape, shapes: list[Shape], now: float) -> None:
        """One worker of those who have most has had its turn, if that is of any use."""
        others = [
            one for one in shapes if one.workers and starving.helped < starving.would_help(one)
        ]
        if others:
            shape = max(others, key=lambda one: len(one.workers))
            worker = min(shape.workers, key=lambda one: one.number)
            if now - worker.born > _TURN_S:
                starving.helped += 1
                self.retire(worker)

    def _end(self) -> None:
        with self._lock:
            for worker in self._workers.values():
                if worker.running:
                    self.doom(worker)
                elif not worker.retiring:
                    self._send(worker, wire.frame((wire.QUIT,)))
                worker.socket.close()
            self._workers.clear()
            self._epoll.close()
            self._listener.close()
            os.close(self._wake)
            self._wake = -1


def _slot(worker: Worker) -> dict[str, Any]:
    """What it is told of what it has."""
    parts = {} if worker.shape.free else worker.shape.request.resources.parts()
    return {"request": parts, "node": worker.node, "allocation": worker.allocation}
