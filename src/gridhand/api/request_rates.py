"""RequestRates: how many requests per second each token may send."""

from __future__ import annotations

import time
from collections.abc import Callable

from gridhand.core.errors import TooManyRequests


class RequestRates:
    """A bucket for each token, which fills at `per_s` and holds the requests of two seconds."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = 2 * per_s
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # what is left, and since when

    def take(self, token: str) -> None:
        """Count a request, or raise TooManyRequests."""
        now = self._clock()
        left, since = self._buckets.get(token, (self._most, now))
        left = min(self._most, left + (now - since) * self._per_s)
        if left < 1:
            raise TooManyRequests("requests", 1)
        self._buckets[token] = left - 1, now
