"""Allocation: resources of one node held for a holder, and its state machine."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gridhand.core.errors import LeaseExpired, MoveRefused, ReservationExpired
from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.model.names import AllocationId, NodeName
from gridhand.core.model.requests import GangLayout, Request
from gridhand.core.model.resources import Resources


class AllocationState(StrEnum):
    RESERVED = "reserved"
    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    LOST = "lost"


OPEN = frozenset({AllocationState.RESERVED, AllocationState.ACTIVE})


class Lifetime(StrEnum):
    """The way an allocation ends if nobody releases it."""

    UNTIL_RELEASED = "until_released"
    LEASE = "lease"
    SESSION = "session"
    JOB = "job"


class AllocationMove(StrEnum):
    CONFIRM = "confirm"
    RENEW = "renew"
    RELEASE = "release"
    EXPIRE = "expire"
    LOSE = "lose"


class Terms(NamedTuple):
    """The holder, state and lifetime of a grant."""

    owner: str
    holder: str | None = None
    state: AllocationState = AllocationState.ACTIVE
    lifetime: Lifetime = Lifetime.UNTIL_RELEASED
    ttl_ms: int | None = None
    layout: GangLayout = GangLayout.ANY  # of a gang

    def key(self) -> str:
        """Return a text that is equal for equal terms.

        Its hash is stored with an op id, so the text must stay as earlier versions wrote it.
        """
        state, lifetime, layout = self.state, self.lifetime, self.layout
        return (
            f"Terms(owner={self.owner!r}, holder={self.holder!r}, "
            f"state=<State.{state.name}: {state.value!r}>, "
            f"lifetime=<Lifetime.{lifetime.name}: {lifetime.value!r}>, "
            f"ttl_ms={self.ttl_ms}, layout=<Layout.{layout.name}: {layout.value!r}>)"
        )

    def request_key(self, asked: Request) -> str:
        """Return the text by which a repeated request of a holder is recognized; it is stored."""
        kind = "allocate" if self.state is AllocationState.ACTIVE else "reserve"
        layout = "" if self.layout is GangLayout.ANY else f" {self.layout}"
        return f"{kind} {self.ttl_ms} {asked.key()}{layout}"


class Allocation(NamedTuple):
    """One row of the ledger. A tuple, because every grant and every move makes one.

    `deadline` is in ledger milliseconds; `ttl_ms` is the time it was computed from, so that a
    restart can extend it again. `epoch` and `number` are the fence. `asked` identifies the request
    if the caller chose the holder, so that a repeated request is told from a different one.
    """

    id: AllocationId
    number: int
    epoch: int
    owner: str
    holder: str
    node: NodeName
    amounts: Resources
    devices: tuple[DeviceHold, ...]
    state: AllocationState
    lifetime: Lifetime
    deadline: int | None
    ttl_ms: int | None
    group: str | None
    asked: str | None
    quality: str | None
    made_at: int

    @property
    def live(self) -> bool:
        return self.state is AllocationState.ACTIVE or self.state is AllocationState.RESERVED

    @property
    def resources(self) -> Resources:
        """Everything held, with the devices added up."""
        if not self.devices:
            return self.amounts
        share = sum(hold.share for hold in self.devices)
        memory = sum(hold.memory_bytes for hold in self.devices)
        return self.amounts + Resources({"gpu": share, "gpu_memory": memory})

    def in_state(self, state: AllocationState) -> Allocation:
        """Return a copy in another state. Five times as fast as `_replace`."""
        return tuple.__new__(Allocation, (*self[:_STATE], state, *self[_STATE + 1 :]))

    def left_to_jobs(self) -> Allocation:
        """Return a copy that ends with the jobs in it, for a holder that has released it."""
        return self._replace(lifetime=Lifetime.JOB, deadline=None, ttl_ms=None, group=None)

    def lapsed(self, now: int) -> bool:
        return self.deadline is not None and self.deadline <= now


_STATE = Allocation._fields.index("state")

_MOVES: dict[AllocationMove, tuple[frozenset[AllocationState], AllocationState]] = {
    AllocationMove.CONFIRM: (frozenset({AllocationState.RESERVED}), AllocationState.ACTIVE),
    AllocationMove.RENEW: (frozenset({AllocationState.ACTIVE}), AllocationState.ACTIVE),
    AllocationMove.RELEASE: (OPEN, AllocationState.RELEASED),
    AllocationMove.EXPIRE: (OPEN, AllocationState.EXPIRED),
    AllocationMove.LOSE: (OPEN, AllocationState.LOST),
}


def advance(
    held: Allocation, move: AllocationMove, *, now: int, ttl_ms: int | None = None
) -> Allocation:
    """Return the allocation after `move`, or raise `MoveRefused`.

    Closing a closed allocation changes nothing, so a caller may retry after a lost reply. Only the
    deadline decides whether an allocation has lapsed, never whether the sweep has already seen it:
    after the deadline, confirm and renew are refused, and a release makes it expired.
    """
    sources, target = _MOVES[move]
    if target not in OPEN:
        return _close(held, move, target, now)
    if held.state not in sources or held.lapsed(now):
        raise _refusal(held, move, now)
    if move is AllocationMove.RENEW and held.deadline is None:
        raise MoveRefused(move, held.id, "it is not a lease: it lasts until it is released")
    if move is AllocationMove.RENEW:
        ttl_ms = ttl_ms or held.ttl_ms
    deadline = None if ttl_ms is None else now + ttl_ms
    lifetime = held.lifetime if ttl_ms is None else Lifetime.LEASE
    return held._replace(state=target, deadline=deadline, ttl_ms=ttl_ms, lifetime=lifetime)


def _close(held: Allocation, move: AllocationMove, target: AllocationState, now: int) -> Allocation:
    if not held.live:
        return held
    if move is AllocationMove.EXPIRE and not held.lapsed(now):
        raise MoveRefused(move, held.id, "its deadline has not passed")
    if move is AllocationMove.RELEASE and held.lapsed(now):
        target = AllocationState.EXPIRED
    return held.in_state(target)


def _refusal(held: Allocation, move: AllocationMove, now: int) -> MoveRefused:
    if held.state is AllocationState.EXPIRED or (held.live and held.lapsed(now)):
        kind = ReservationExpired if move is AllocationMove.CONFIRM else LeaseExpired
        return kind(move, held.id, "it had already expired")
    return MoveRefused(move, held.id, f"it is {held.state}")


EVENT_KINDS = {
    (AllocationMove.CONFIRM, AllocationState.ACTIVE): "allocation.confirmed",
    (AllocationMove.RENEW, AllocationState.ACTIVE): "allocation.renewed",
    (AllocationMove.RELEASE, AllocationState.RELEASED): "allocation.released",
    (AllocationMove.RELEASE, AllocationState.EXPIRED): "allocation.expired",
    (AllocationMove.EXPIRE, AllocationState.EXPIRED): "allocation.expired",
    (AllocationMove.LOSE, AllocationState.LOST): "allocation.lost",
}


def grant_number(id: AllocationId) -> int:
    """Return the number of an allocation: they are counted in the order of their grants."""
    return int(id.rpartition("-")[2])
