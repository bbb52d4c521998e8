"""The controller's own log, on stderr, without ever waiting for who reads it.

A terminal that was stopped with Ctrl-S, or a pipe that nobody reads, takes no more after a while.
Whoever writes to it then stands still, and the controller must not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Iterator
from logging.handlers import QueueHandler, QueueListener
from typing import Any

_MOST = 10_000  # records that wait to be read; more are left out
_LAST_S = 1.0  # for the last of them, when we end


class _Writer(QueueListener):
    """No buffer and no lock: its thread may be within a write when the process ends."""

    _form = logging.Formatter("%(asctime)s %(levelname)s %(message)s")

    def handle(self, record: logging.LogRecord) -> None:
        data = f"{self._form.format(record)}\n".encode(errors="replace")
        with contextlib.suppress(OSError):  # nobody reads it any more
            while data:
                data = data[os.write(2, data) :]

    def enqueue_sentinel(self) -> None:
        with contextlib.suppress(queue.Full):  # then nobody reads, and it ends with the process
            super().enqueue_sentinel()


class _LeavingOut(QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def logging_beside() -> Iterator[None]:
    """What is logged is written by a thread that has nothing else to do."""
    waiting: queue.Queue[Any] = queue.Queue(_MOST)
    writer, handler = _Writer(waiting), _LeavingOut(waiting)
    logging.getLogger().addHandler(handler)
    writer.start()
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        ending = threading.Thread(target=writer.stop, daemon=True)
        ending.start()
        ending.join(_LAST_S)
