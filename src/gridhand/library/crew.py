"""Threads for work that comes and goes: one for each piece that is in hand, kept for a while after.

`ThreadPoolExecutor` keeps a program from ending as long as something runs in it, and queues what is
more than it has threads for. Here nothing waits, and a thread that never comes back is nobody's
concern.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable

_IDLE_S = 10.0

Work = Callable[[], object]


class Crew:
    """Runs each piece of work at once, in a thread that is idle or in a new one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle = 0
        self._waiting: queue.SimpleQueue[Work] = queue.SimpleQueue()

    def run(self, work: Work) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._waiting.put(work)
                return
        threading.Thread(target=self._loop, args=(work,), name=self._name, daemon=True).start()

    def _loop(self, work: Work | None) -> None:
        while work is not None:
            work()
            work = None  # what it refers to may be large
            with self._lock:
                self._idle += 1
            work = self._next()

    def _next(self) -> Work | None:
        try:
            return self._waiting.get(timeout=_IDLE_S)
        except queue.Empty:
            pass
        with self._lock:  # somebody may just have counted on us
            try:
                return self._waiting.get_nowait()
            except queue.Empty:
                self._idle -= 1
                return None


class Alarms:
    """Things to do later, by one thread that is there while there are any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self._there = False

    def after(self, seconds: float, work: Work) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), work))
            if not self._there:
                self._there = True
                threading.Thread(target=self._loop, name=self._name, daemon=True).start()
            self._changed.notify()

    def _loop(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._there = False
                    return
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                _, _, work = heapq.heappop(self._due)
            work()
