"""Shares: how much of the cluster each owner has, now and on average, to order owners by.

1. The dominant share of an owner is the largest part of any resource that the owner holds: 6 of 8
   GPUs and 1 of 100 cores make 0.75.
2. The past share is the average of the dominant share, in which the last `half_life_ms` count as
   much as all time before.
3. Owners are ordered by (dominant share + past share) / weight, the lowest first. So equal owners
   with enough to do get equal shares, and an owner who had the cluster for weeks steps back for a
   newcomer, by no more than that average.
4. An owner who waits without any start is moved forward by one whole share a day, so that nobody
   waits for ever.

Only the past is kept over a restart. All of it is an opinion about the order: nothing is granted by
it, so plain floating-point numbers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.resources import UNIT
from gridhand.core.queue.scheduling_times import HALF_LIFE_MS

AGE_MS = 86_400_000  # without a start; worth one whole share
_SETTLE_MS = 1000
_NEGLIGIBLE = 1e-6


class OwnerShare(NamedTuple):
    """The dominant share of an owner, now and on average."""

    owner: str
    share: float
    past: float


class Shares:
    """The shares of the owners of one ledger."""

    def __init__(self, half_life_ms: int = HALF_LIFE_MS) -> None:
        self.half_life_ms = half_life_ms
        self.weight: Callable[[str], float] = lambda owner: 1.0
        self._now: dict[str, float] = {}
        self._past: dict[str, float] = {}
        self._settled = 0
        self._started: dict[str, int] = {}  # when the last job of an owner was started
        self._totals: dict[str, int] = {}
        self._shape = -1
        self._ledger: Ledger | None = None

    def load(self, past: Mapping[str, float], at: int) -> None:
        """Take over the past shares that were stored at a time."""
        self._past, self._settled = dict(past), at

    def past(self) -> dict[str, float]:
        """Return the past shares that are worth keeping."""
        return {owner: share for owner, share in self._past.items() if share > _NEGLIGIBLE}

    @property
    def settled(self) -> int:
        """The time to which the past shares belong."""
        return self._settled

    def follow(self, ledger: Ledger, now: int) -> None:
        """Take note of what owners hold now; until now they held what was noted last."""
        if self._ledger is not ledger:
            self._ledger, self._shape = ledger, -1
            ledger.owners.changed.update(self._now, ledger.owners.owners())
        if now - self._settled >= _SETTLE_MS:
            self._settle(now)
        if self._shape != ledger.touched.shape:
            self._shape, self._totals = ledger.touched.shape, _totals(ledger)
            ledger.owners.changed.update(ledger.owners.owners())
        for owner in ledger.owners.changed:
            share = self._dominant(ledger.owners.held(owner))
            if share:
                self._now[owner] = share
            else:
                self._now.pop(owner, None)
        ledger.owners.changed.clear()

    def _settle(self, now: int) -> None:
        kept = 0.5 ** ((now - self._settled) / self.half_life_ms) if self._settled else 0.0
        owners = self._past.keys() | self._now.keys()
        if self._settled:
            self._past = {
                owner: kept * self._past.get(owner, 0.0) + (1 - kept) * self._now.get(owner, 0.0)
                for owner in owners
            }
        self._settled = now

    def _dominant(self, held: Mapping[str, int]) -> float:
        return max(
            (amount / self._totals[name] for name, amount in held.items() if name in self._totals),
            default=0.0,
        )

    def note_start(self, owner: str, now: int) -> None:
        self._started[owner] = now

    def share(self, owner: str) -> float:
        """Return the dominant share of an owner, from 0 to 1."""
        return self._now.get(owner, 0.0)

    def past_share(self, owner: str) -> float:
        return self._past.get(owner, 0.0)

    def order(self, owner: str, waits_since: int, now: int) -> float:
        """Return the place of an owner whose first job waits since then; the lowest is first."""
        used = self._now.get(owner, 0.0) + self._past.get(owner, 0.0)
        waited = now - max(waits_since, self._started.get(owner, 0))
        return used / self.weight(owner) - max(0, waited) / AGE_MS

    def owners(self) -> Iterable[str]:
        """Return the owners who have or had something."""
        return self._now.keys() | self.past().keys()

    def listed(self) -> list[OwnerShare]:
        """Return the shares of these owners, the largest first; from any thread."""
        now, past = self._now.copy(), self._past.copy()
        owners = now.keys() | {owner for owner, share in past.items() if share > _NEGLIGIBLE}
        found = [OwnerShare(owner, now.get(owner, 0), past.get(owner, 0)) for owner in owners]
        return sorted(found, key=lambda one: (-one.share - one.past, one.owner))


def _totals(ledger: Ledger) -> dict[str, int]:
    """Return the capacity of all nodes together, devices included."""
    totals: dict[str, int] = {}
    for use in ledger.nodes.values():
        for name, amount in use.total.items():
            totals[name] = totals.get(name, 0) + amount
        for device in use.devices.values():
            totals["gpu"] = totals.get("gpu", 0) + UNIT
            totals["gpu_memory"] = totals.get("gpu_memory", 0) + device.gpu.memory_bytes
    return {name: amount for name, amount in totals.items() if amount}
