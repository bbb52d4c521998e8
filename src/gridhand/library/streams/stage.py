"""One stage of a stream: the items that wait for its function, and its workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gridhand.core.errors import CallFailed
from gridhand.core.graph.call_plan import CallPlan
from gridhand.core.graph.function import Function
from gridhand.core.graph.stream_run import ReadyItem
from gridhand.library.streams.stage_ports import StagePort
from gridhand.worker.stage_worker import Item, StageWork

_AHEAD_S = 0.02  # the work that a worker is sent before it has answered the last item
_MOST_AHEAD = 64
_WEIGHT = 0.2  # of the latest duration in the moving average


class WaitingItem(NamedTuple):
    """An item in front of this stage; `tries` counts attempts, `losses` workers lost with it."""

    item: int
    values: tuple[Any, ...]
    tries: int = 1
    losses: int = 0


class Stage:
    """The state of one stage. Used by the stream's thread only."""

    def __init__(self, function: Function, plan: CallPlan) -> None:
        self.id = function.id
        self.function = function
        self.work = StageWork(
            plan.code, plan.extra_args, function.init, function.batch_size is not None
        )
        self.ports: dict[StagePort, dict[int, WaitingItem]] = {}  # unanswered items by worker
        self.calls: set[Any] = set()
        self.losses = 0  # workers lost since the last one became ready
        self.last_loss: CallFailed | None = None
        self._waiting: deque[WaitingItem] = deque()
        self._since: float | None = None  # when the oldest item of the next batch arrived
        self._typical_s: float | None = None

    @property
    def complete(self) -> bool:
        """Whether all workers of the stage have connected."""
        return len(self.ports) >= self.function.parallelism

    def put(self, ready: ReadyItem, now: float) -> None:
        self._waiting.append(WaitingItem(ready.item, ready.values))
        if self._since is None:
            self._since = now

    def put_back(self, one: WaitingItem, now: float) -> None:
        self._waiting.appendleft(one)
        if self._since is None:
            self._since = now

    def keep(self, is_wanted: Callable[[int], bool]) -> None:
        """Drop the waiting items that nobody wants any more."""
        self._waiting = deque(one for one in self._waiting if is_wanted(one.item))
        self._since = self._since if self._waiting else None

    def take_answered(self, port: StagePort, item: int, seconds: float) -> WaitingItem | None:
        """Return the item that this answer is for; None if this worker does not have it."""
        usual = seconds if self._typical_s is None else self._typical_s
        self._typical_s = usual + _WEIGHT * (seconds - usual)
        return self.ports.get(port, {}).pop(item, None)

    def due(self) -> float | None:
        """Return the time at which to send an incomplete batch; None for never."""
        timeout = self.function.batch_timeout
        if not self._waiting or self._since is None or timeout is None:
            return None
        return self._since + timeout

    def to_send(self, now: float, *, flushing: bool) -> Iterator[tuple[StagePort, list[Item]]]:
        """Yield the items to send now, each to the worker with the least to do."""
        size = self.function.batch_size
        while self._waiting and self.ports:
            port = min(self.ports, key=lambda one: len(self.ports[one]))
            sent = self.ports[port]
            if self._waiting[0].losses:
                count = 0 if sent else 1  # alone, since it may have killed the last worker
            elif size is None:
                count = min(self._ahead() - len(sent), -(-len(self._waiting) // len(self.ports)))
            else:
                overdue = flushing or ((due := self.due()) is not None and due <= now)
                complete = len(self._waiting) >= size
                count = size if (complete or overdue) and len(sent) < size else 0
            if count <= 0:
                return
            taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
            self._since = now if self._waiting else None
            sent.update({one.item: one for one in taken})
            yield port, [(one.item, list(one.values)) for one in taken]

    def _ahead(self) -> int:
        """Return how many items a worker may have: two for long calls, more for short ones."""
        if self._typical_s is None:
            return 2
        return 1 + max(1, min(_MOST_AHEAD, int(_AHEAD_S / max(self._typical_s, 1e-6))))

    def lost(self, port: StagePort) -> list[WaitingItem]:
        """Forget a lost worker and return the items it had not answered."""
        return list(self.ports.pop(port, {}).values())
