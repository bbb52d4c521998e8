"""Calls that a function makes itself, inside of a worker.

The function waits for them while it has its slot, and if all slots are of such functions there
would be no room for what they wait for, ever. So a call that finds none within a moment is run in
the slot of the one that made it, if that has what the call asks for; what the slot says nothing of,
such as memory where it has no limit, is held besides. Such a call may make others in turn: another
is taken up when those before it have got nowhere for a while, all on the cores of the slot. A call
that asks for more than could be free while its caller has its slot is refused.
"""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.core.allocations import Move
from gridhand.core.errors import CallFailed, GridError
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.library.calls import Calls
from gridhand.library.shapes import begin, lacking
from gridhand.worker import here, wire
from gridhand.worker.failing import failure
from gridhand.worker.values import dumps, load

if TYPE_CHECKING:
    from gridhand.core.allocations import Allocation
    from gridhand.core.views import Status
    from gridhand.library.pool import Pool
    from gridhand.library.remote import Remote
    from gridhand.library.shapes import Call, Shape

_MOMENT_S = 0.5
_STUCK_S = 0.1  # those that run here and have got no further for so long wait for others
_DEEPEST = 500


class Nested:
    """Helps a pool in a worker; in any other process it does nothing."""

    def __init__(self, pool: Pool, remote: Remote, owner: str) -> None:
        self._pool = pool
        self._remote = remote
        self._calls = Calls(remote, owner)
        self._lock = threading.Lock()
        self._running = 0
        self._moved = 0.0  # when one of them last began or ended

    def help(self, shape: Shape, status: Status | None) -> None:
        """Take up a call that waits in vain."""
        if here.slot is None or not shape.waiting or shape.workers:
            return
        asked_at = min(shape.asked.values(), default=None)
        moment_s = _STUCK_S if self._running else _MOMENT_S
        if asked_at is None or time.monotonic() - asked_at < moment_s:
            return
        besides = lacking(shape.request, here.slot["request"])
        if besides is not None:
            if self._may_begin():
                threading.Thread(target=self._work, args=(shape, besides), daemon=True).start()
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

    def _may_begin(self) -> bool:
        """Whether nothing runs here, or all that does seems to wait: then one more may."""
        with self._lock:
            stuck = time.monotonic() - self._moved > _STUCK_S
            if self._running and not (stuck and self._running < _DEEPEST):
                return False
            self._running += 1
            self._moved = time.monotonic()
            return True

    def _work(self, shape: Shape, besides: dict[str, int]) -> None:
        held: Allocation | None = None
        try:
            held = self._hold(besides)
            while not shape.workers and (call := self._next(shape)) is not None:
                self._pool.settle_here(call, *self._outcome(call))
                self._moved = time.monotonic()
        except GridError:
            pass  # there is no room for what is needed besides; it is tried again
        finally:
            if held is not None:
                with suppress(GridError):  # it ends with our session
                    self._remote.call(self._calls.move(held.id, Move.RELEASE, None, None))
            with self._lock:
                self._running -= 1
                self._moved = time.monotonic()

    def _hold(self, besides: dict[str, int]) -> Allocation | None:
        if not besides or here.slot is None:
            return None
        asked = Request(Resources(besides), node=here.slot["node"])
        return self._remote.call(self._calls.allocate(asked, None, None, None, {}))[0]

    def _next(self, shape: Shape) -> Call | None:
        with self._pool.lock:
            while shape.waiting:
                call = shape.waiting.popleft()
                if begin(call.future):
                    call.started = time.monotonic()
                    return call
                call.over()
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
