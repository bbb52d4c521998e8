"""The controller's own log, on stderr, written without ever blocking the controller.

A terminal that was stopped with Ctrl-S, or a pipe that nobody reads, blocks its writer once its
buffer is full.
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

_MOST = 10_000  # records that wait to be written; more are dropped
_LAST_S = 1.0  # to write the last of them at the end


class _Writer(QueueListener):
    """Writes without a buffer and a lock: its thread may be in a write when the process ends."""

    _form = logging.Formatter("%(asctime)s %(levelname)s %(message)s")

    def handle(self, record: logging.LogRecord) -> None:
        data = f"{self._form.format(record)}\n".encode(errors="replace")
        with contextlib.suppress(OSError):  # nobody reads stderr any more
            while data:
                data = data[os.write(2, data) :]

    def enqueue_sentinel(self) -> None:
        with contextlib.suppress(queue.Full):  # the thread ends with the process
            super().enqueue_sentinel()


class _DroppingHandler(QueueHandler):
    """Drops records when the queue is full."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def log_in_thread() -> Iterator[None]:
    """Write the log in a thread of its own."""
    waiting: queue.Queue[Any] = queue.Queue(_MOST)
    writer, handler = _Writer(waiting), _DroppingHandler(waiting)
    logging.getLogger().addHandler(handler)
    writer.start()
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        ending = threading.Thread(target=writer.stop, daemon=True)
        ending.start()
        ending.join(_LAST_S)
