"""Calls that a function makes itself, inside of a worker.

The function waits for them while it has its slot, and if all slots are of such functions there
would be no room for what they wait for, ever. So a call that finds none within a moment is run in
the slot of the one that made it, if that has what the call asks for. A call that asks for more than
could be free while its caller has its slot is refused.
"""

from __future__ import annotations

import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

from gridhand.core.errors import CallFailed
from gridhand.core.resources import Resources
from gridhand.library.shapes import begin, fits_within
from gridhand.worker import here, wire
from gridhand.worker.failing import failure
from gridhand.worker.values import dumps, load

if TYPE_CHECKING:
    from gridhand.core.views import Status
    from gridhand.library.pool import Pool
    from gridhand.library.shapes import Call, Shape

_MOMENT_S = 0.5


class Nested:
    """Helps a pool in a worker; in any other process it does nothing."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._helping = threading.Lock()

    def help(self, shape: Shape, status: Status | None) -> None:
        """Take up a call that waits in vain."""
        if here.slot is None or not shape.waiting or shape.workers:
            return
        asked_at = min(shape.asked.values(), default=None)
        if asked_at is None or time.monotonic() - asked_at < _MOMENT_S:
            return
        if fits_within(shape.request, here.slot["request"]):
            if self._helping.acquire(blocking=False):
                threading.Thread(target=self._work, args=(shape,), daemon=True).start()
        elif status is not None and self._is_hopeless(shape, status):
            held = Resources(here.slot["request"])
            asked = shape.request.resources
            error = CallFailed(
                "",
                "nested",
                f"it asks for {asked} while the function that called it holds {held}, and no node"
                " has both",
                hint="Ask for less, or call it where nothing is held.",
            )
            self._pool.fail_waiting(error, shape)

    def _is_hopeless(self, shape: Shape, status: Status) -> bool:
        """Whether it has room nowhere for as long as its caller has its slot."""
        slot = here.slot or {"request": {}, "node": ""}
        for choice in shape.request.choices():
            asked = choice.resources.parts()
            for node in status.nodes:
                held = slot["request"] if node.name == slot["node"] else {}
                left = {name: node.total[name] - held.get(name, 0) for name in asked}
                if all(left[name] >= amount for name, amount in asked.items()):
                    return False
        return True

    def _work(self, shape: Shape) -> None:
        try:
            while not shape.workers and (call := self._next(shape)) is not None:
                self._pool.settle_here(call, *self._outcome(call))
        finally:
            self._helping.release()

    def _next(self, shape: Shape) -> Call | None:
        with self._pool.lock:
            while shape.waiting:
                call = shape.waiting.popleft()
                if begin(call.future):
                    return call
        return None

    def _outcome(self, call: Call) -> tuple[int, bytes]:
        """As in a worker, and by way of bytes: what it changes is its own."""
        try:
            code = pickle.loads(call.function.data)
            args, kwargs = load(call.kind, call.data)
            value: Any = code(*args, **(kwargs or {}))
        except BaseException as error:
            return wire.RAISED, failure(error)
        try:
            return self._pool.packed(value, dumps)
        except Exception as error:
            return wire.RAISED, failure(error, "what it returned cannot be sent: ")
