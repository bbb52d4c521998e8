"""A stage of a stream: what waits for one of its functions, and the workers that take it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from gridhand.core.errors import CallFailed
from gridhand.core.graphs import Function
from gridhand.core.inline import Plan
from gridhand.core.streamrun import Ready
from gridhand.library.stageports import Port
from gridhand.worker.stage import Item, Work

_AHEAD_S = 0.02  # of what a worker is sent before it has asked for it
_MOST_AHEAD = 64
_WEIGHT = 0.2


class Waiting(NamedTuple):
    """An item before this function, how often it was tried, and how often lost with a worker."""

    item: int
    values: tuple[Any, ...]
    tries: int = 1
    losses: int = 0


class Stage:
    """In the stream's thread only."""

    def __init__(self, function: Function, plan: Plan) -> None:
        self.id = function.id
        self.function = function
        self.work = Work(plan.code, plan.extra_args, function.init, function.batch_size is not None)
        self.ports: dict[Port, dict[int, Waiting]] = {}  # and what each has been sent
        self.calls: set[Any] = set()
        self.losses = 0  # of workers, since the last one was ready
        self.last_loss: CallFailed | None = None
        self._waiting: deque[Waiting] = deque()
        self._since: float | None = None  # when the first that waits for a batch came
        self._usual_s: float | None = None

    @property
    def complete(self) -> bool:
        """Whether all of its workers are there."""
        return len(self.ports) >= self.function.parallelism

    def put(self, ready: Ready, now: float) -> None:
        self._waiting.append(Waiting(ready.item, ready.values))
        if self._since is None:
            self._since = now

    def put_back(self, one: Waiting, now: float) -> None:
        self._waiting.appendleft(one)
        if self._since is None:
            self._since = now

    def answered(self, port: Port, item: int, seconds: float) -> Waiting | None:
        """What it was sent as; nothing if it was not sent to this one, or not any more."""
        usual = seconds if self._usual_s is None else self._usual_s
        self._usual_s = usual + _WEIGHT * (seconds - usual)
        return self.ports.get(port, {}).pop(item, None)

    def due(self) -> float | None:
        """When an incomplete batch is to be sent all the same."""
        timeout = self.function.batch_timeout
        if not self._waiting or self._since is None or timeout is None:
            return None
        return self._since + timeout

    def to_send(self, now: float, *, flushing: bool) -> Iterator[tuple[Port, list[Item]]]:
        """What goes to which worker now: to the one that has least to do."""
        size = self.function.batch_size
        while self._waiting and self.ports:
            port = min(self.ports, key=lambda one: len(self.ports[one]))
            sent = self.ports[port]
            if self._waiting[0].losses:
                count = 0 if sent else 1  # it may be what the worker before was lost with
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
        """One at a time if they take long; but the next is there when the one before has ended."""
        if self._usual_s is None:
            return 2
        return 1 + max(1, min(_MOST_AHEAD, int(_AHEAD_S / max(self._usual_s, 1e-6))))

    def lost(self, port: Port) -> list[Waiting]:
        """The worker is gone: what it had been sent, and not answered."""
        return list(self.ports.pop(port, {}).values())
