"""Allocation: resources of one node held for a holder, and the moves it can make."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gridhand.core.errors import LeaseExpired, MoveRefused, ReservationExpired
from gridhand.core.gpus import DeviceHold
from gridhand.core.resources import Resources


class State(StrEnum):
    RESERVED = "reserved"
    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    LOST = "lost"


OPEN = frozenset({State.RESERVED, State.ACTIVE})


class Lifetime(StrEnum):
    """What ends an allocation, apart from releasing it."""

    UNTIL_RELEASED = "until_released"
    LEASE = "lease"
    SESSION = "session"
    JOB = "job"


class Move(StrEnum):
    CONFIRM = "confirm"
    RENEW = "renew"
    RELEASE = "release"
    EXPIRE = "expire"
    LOSE = "lose"


class Allocation(NamedTuple):
    """One row of the ledger. A tuple, because one is made for every grant and every move.

    `deadline` is in ledger milliseconds; `ttl_ms` is what it was made from, so that a restart can
    give it again. `epoch` and `number` are its fence. `asked` is kept only where the holder chose
    its own name, to tell a repeated request from another.
    """

    id: str
    number: int
    epoch: int
    owner: str
    holder: str
    node: str
    amounts: Resources
    devices: tuple[DeviceHold, ...]
    state: State
    lifetime: Lifetime
    deadline: int | None
    ttl_ms: int | None
    group: str | None
    asked: str | None
    quality: str | None
    made_at: int

    @property
    def live(self) -> bool:
        return self.state is State.ACTIVE or self.state is State.RESERVED

    @property
    def resources(self) -> Resources:
        """All that is held, its devices added up."""
        if not self.devices:
            return self.amounts
        share = sum(hold.share for hold in self.devices)
        memory = sum(hold.memory_bytes for hold in self.devices)
        return self.amounts + Resources({"gpu": share, "gpu_memory": memory})

    def in_state(self, state: State) -> Allocation:
        """The same in another state: `_replace`, at a fifth of its cost."""
        return tuple.__new__(Allocation, (*self[:_STATE], state, *self[_STATE + 1 :]))

    def left_to_jobs(self) -> Allocation:
        """The same once its holder has given it up while a job runs in it: it ends with that."""
        return self._replace(lifetime=Lifetime.JOB, deadline=None, ttl_ms=None, group=None)

    def lapsed(self, now: int) -> bool:
        return self.deadline is not None and self.deadline <= now


_STATE = Allocation._fields.index("state")

_MOVES: dict[Move, tuple[frozenset[State], State]] = {
    Move.CONFIRM: (frozenset({State.RESERVED}), State.ACTIVE),
    Move.RENEW: (frozenset({State.ACTIVE}), State.ACTIVE),
    Move.RELEASE: (OPEN, State.RELEASED),
    Move.EXPIRE: (OPEN, State.EXPIRED),
    Move.LOSE: (OPEN, State.LOST),
}


def advance(held: Allocation, move: Move, *, now: int, ttl_ms: int | None = None) -> Allocation:
    """Return the allocation after `move`, or raise `MoveRefused`.

    Closing what is closed changes nothing, so a caller may retry after a lost reply. Whether it
    has lapsed depends on its deadline alone, never on whether the sweep has come by yet: confirm
    and renew are then refused, and a release finds it expired.
    """
    sources, target = _MOVES[move]
    if target not in OPEN:
        return _closed(held, move, target, now)
    if held.state not in sources or held.lapsed(now):
        raise _refused(held, move, now)
    if move is Move.RENEW and held.deadline is None:
        raise MoveRefused(move, held.id, "it is not a lease, and lasts until it is released")
    if move is Move.RENEW:
        ttl_ms = ttl_ms or held.ttl_ms
    deadline = None if ttl_ms is None else now + ttl_ms
    lifetime = held.lifetime if ttl_ms is None else Lifetime.LEASE
    return held._replace(state=target, deadline=deadline, ttl_ms=ttl_ms, lifetime=lifetime)


def _closed(held: Allocation, move: Move, target: State, now: int) -> Allocation:
    if not held.live:
        return held
    if move is Move.EXPIRE and not held.lapsed(now):
        raise MoveRefused(move, held.id, "it has not lapsed")
    if move is Move.RELEASE and held.lapsed(now):
        target = State.EXPIRED
    return held.in_state(target)


def _refused(held: Allocation, move: Move, now: int) -> MoveRefused:
    if held.state is State.EXPIRED or (held.live and held.lapsed(now)):
        kind = ReservationExpired if move is Move.CONFIRM else LeaseExpired
        return kind(move, held.id, "its time was over before")
    return MoveRefused(move, held.id, f"it is {held.state}")
