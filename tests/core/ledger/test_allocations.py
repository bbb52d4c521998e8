"""Every move from every state: the new state, or the refusal."""

import itertools

import pytest

from gridhand import LeaseExpired, MoveRefused, ReservationExpired, Resources
from gridhand.core.ledger.allocations import (
    OPEN,
    Allocation,
    AllocationMove,
    AllocationState,
    Lifetime,
    advance,
)
from gridhand.core.ledger.devices import DeviceHold

NOW = 1_000_000
TTL = 500

RESERVED, ACTIVE, RELEASED, EXPIRED, LOST = AllocationState
CONFIRM, RENEW, RELEASE, EXPIRE, LOSE = AllocationMove
UNTIL_RELEASED, LEASE, SESSION, JOB = Lifetime


def held(state=ACTIVE, deadline=None, **more):
    """An allocation with everything in it; a deadline makes it a lease or a reservation."""
    lifetime = LEASE if deadline is not None and state is not RESERVED else UNTIL_RELEASED
    fields = {
        "id": "a1-1",
        "number": 1,
        "epoch": 1,
        "owner": "ann",
        "holder": "h",
        "node": "n1",
        "amounts": Resources.of(cpu=1),
        "devices": (),
        "state": state,
        "lifetime": lifetime,
        "deadline": deadline,
        "ttl_ms": None if deadline is None else TTL,
        "group": None,
        "asked": None,
        "quality": None,
        "made_at": NOW - 10,
    }
    return Allocation(**(fields | more))


# When the deadline is, as seen from NOW.
NONE, AHEAD, EXACTLY, PAST = None, NOW + 1, NOW, NOW - 1

#    state     deadline  move      leads to, or is refused as
TABLE = {
    (RESERVED, AHEAD,   CONFIRM): ACTIVE,
    (RESERVED, EXACTLY, CONFIRM): ReservationExpired,
    (RESERVED, PAST,    CONFIRM): ReservationExpired,
    (RESERVED, AHEAD,   RENEW):   MoveRefused,
    (RESERVED, EXACTLY, RENEW):   LeaseExpired,
    (RESERVED, PAST,    RENEW):   LeaseExpired,
    (RESERVED, AHEAD,   RELEASE): RELEASED,
    (RESERVED, EXACTLY, RELEASE): EXPIRED,
    (RESERVED, PAST,    RELEASE): EXPIRED,
    (RESERVED, AHEAD,   EXPIRE):  MoveRefused,
    (RESERVED, EXACTLY, EXPIRE):  EXPIRED,
    (RESERVED, PAST,    EXPIRE):  EXPIRED,
    (RESERVED, AHEAD,   LOSE):    LOST,
    (RESERVED, EXACTLY, LOSE):    LOST,
    (RESERVED, PAST,    LOSE):    LOST,
    (ACTIVE,   NONE,    CONFIRM): MoveRefused,
    (ACTIVE,   AHEAD,   CONFIRM): MoveRefused,
    (ACTIVE,   EXACTLY, CONFIRM): ReservationExpired,
    (ACTIVE,   PAST,    CONFIRM): ReservationExpired,
    (ACTIVE,   NONE,    RENEW):   MoveRefused,
    (ACTIVE,   AHEAD,   RENEW):   ACTIVE,
    (ACTIVE,   EXACTLY, RENEW):   LeaseExpired,
    (ACTIVE,   PAST,    RENEW):   LeaseExpired,
    (ACTIVE,   NONE,    RELEASE): RELEASED,
    (ACTIVE,   AHEAD,   RELEASE): RELEASED,
    (ACTIVE,   EXACTLY, RELEASE): EXPIRED,
    (ACTIVE,   PAST,    RELEASE): EXPIRED,
    (ACTIVE,   NONE,    EXPIRE):  MoveRefused,
    (ACTIVE,   AHEAD,   EXPIRE):  MoveRefused,
    (ACTIVE,   EXACTLY, EXPIRE):  EXPIRED,
    (ACTIVE,   PAST,    EXPIRE):  EXPIRED,
    (ACTIVE,   NONE,    LOSE):    LOST,
    (ACTIVE,   AHEAD,   LOSE):    LOST,
    (ACTIVE,   EXACTLY, LOSE):    LOST,
    (ACTIVE,   PAST,    LOSE):    LOST,
    (RELEASED, NONE,    CONFIRM): MoveRefused,
    (RELEASED, PAST,    CONFIRM): MoveRefused,
    (RELEASED, NONE,    RENEW):   MoveRefused,
    (RELEASED, PAST,    RENEW):   MoveRefused,
    (RELEASED, NONE,    RELEASE): RELEASED,
    (RELEASED, PAST,    RELEASE): RELEASED,
    (RELEASED, NONE,    EXPIRE):  RELEASED,
    (RELEASED, PAST,    EXPIRE):  RELEASED,
    (RELEASED, NONE,    LOSE):    RELEASED,
    (RELEASED, PAST,    LOSE):    RELEASED,
    (EXPIRED,  AHEAD,   CONFIRM): ReservationExpired,
    (EXPIRED,  PAST,    CONFIRM): ReservationExpired,
    (EXPIRED,  AHEAD,   RENEW):   LeaseExpired,
    (EXPIRED,  PAST,    RENEW):   LeaseExpired,
    (EXPIRED,  PAST,    RELEASE): EXPIRED,
    (EXPIRED,  PAST,    EXPIRE):  EXPIRED,
    (EXPIRED,  PAST,    LOSE):    EXPIRED,
    (LOST,     NONE,    CONFIRM): MoveRefused,
    (LOST,     PAST,    CONFIRM): MoveRefused,
    (LOST,     NONE,    RENEW):   MoveRefused,
    (LOST,     PAST,    RENEW):   MoveRefused,
    (LOST,     NONE,    RELEASE): LOST,
    (LOST,     PAST,    RELEASE): LOST,
    (LOST,     NONE,    EXPIRE):  LOST,
    (LOST,     PAST,    EXPIRE):  LOST,
    (LOST,     NONE,    LOSE):    LOST,
    (LOST,     PAST,    LOSE):    LOST,
}  # fmt: skip

WHEN = {NONE: "without a deadline", AHEAD: "in time", EXACTLY: "at its deadline", PAST: "too late"}


@pytest.mark.parametrize(
    ("case", "outcome"), TABLE.items(), ids=[f"{m} what is {s} {WHEN[d]}" for s, d, m in TABLE]
)
def test_every_move_from_every_state(case, outcome):
    state, deadline, move = case
    before = held(state, deadline)
    if isinstance(outcome, AllocationState):
        after = advance(before, move, now=NOW)
        assert after.state is outcome
        if not before.live:
            assert after == before  # what is closed stays exactly as it is
        return
    with pytest.raises(MoveRefused) as caught:
        advance(before, move, now=NOW)
    assert type(caught.value) is outcome
    assert caught.value.id == before.id
    assert f"cannot {move} allocation {before.id}" in str(caught.value)
    assert caught.value.hint


def test_the_table_has_every_state_and_every_move():
    assert {(state, move) for state, _, move in TABLE} == set(
        itertools.product(AllocationState, AllocationMove)
    )


def test_only_reserved_and_active_are_open():
    assert frozenset({RESERVED, ACTIVE}) == OPEN
    assert [held(state).live for state in AllocationState] == [True, True, False, False, False]


# ---- deadlines (rows 9 to 11)


def test_9_a_release_after_expiry_answers_expired_and_changes_nothing():
    expired = advance(held(RESERVED, PAST), EXPIRE, now=NOW)
    assert advance(expired, RELEASE, now=NOW + 10**9) == expired


def test_10_exactly_one_of_expiry_and_renewal_wins_at_any_moment():
    lease = held(ACTIVE, deadline=NOW)
    for now in (NOW - 2, NOW - 1, NOW, NOW + 1):
        won = []
        for move in (EXPIRE, RENEW):
            try:
                advance(lease, move, now=now)
                won.append(move)
            except MoveRefused:
                pass
        assert won == ([RENEW] if now < NOW else [EXPIRE])


def test_11_a_reservation_that_lapsed_is_never_revived_swept_or_not():
    unswept = held(RESERVED, PAST)
    swept = advance(unswept, EXPIRE, now=NOW)
    for reservation in (unswept, swept):
        with pytest.raises(ReservationExpired) as caught:
            advance(reservation, CONFIRM, now=NOW)
        assert caught.value.code == "reservation_expired"


def test_confirming_ends_the_deadline_and_lasts_until_released():
    after = advance(held(RESERVED, AHEAD), CONFIRM, now=NOW)
    assert (after.deadline, after.ttl_ms, after.lifetime) == (None, None, UNTIL_RELEASED)


def test_confirming_with_a_ttl_makes_a_lease():
    after = advance(held(RESERVED, AHEAD), CONFIRM, now=NOW, ttl_ms=70)
    assert (after.deadline, after.ttl_ms, after.lifetime) == (NOW + 70, 70, LEASE)


def test_renewing_counts_from_now_with_the_ttl_it_had():
    after = advance(held(ACTIVE, AHEAD), RENEW, now=NOW)
    assert (after.deadline, after.ttl_ms, after.lifetime) == (NOW + TTL, TTL, LEASE)


def test_renewing_with_another_ttl_takes_it_on():
    after = advance(held(ACTIVE, AHEAD), RENEW, now=NOW, ttl_ms=7)
    assert (after.deadline, after.ttl_ms) == (NOW + 7, 7)
    again = advance(after, RENEW, now=NOW + 1)
    assert again.deadline == NOW + 8


def test_only_a_lease_can_be_renewed_even_with_a_ttl():
    for lifetime in (UNTIL_RELEASED, SESSION, JOB):
        with pytest.raises(MoveRefused, match="not a lease"):
            advance(held(ACTIVE, lifetime=lifetime), RENEW, now=NOW, ttl_ms=5)


@pytest.mark.parametrize("move", [RELEASE, EXPIRE, LOSE])
def test_closing_changes_the_state_and_nothing_else(move):
    before = held(ACTIVE, PAST if move is EXPIRE else AHEAD)
    after = advance(before, move, now=NOW)
    assert after._replace(state=before.state) == before


def test_a_move_leaves_the_allocation_it_was_made_from_alone():
    before = held(RESERVED, AHEAD)
    kept = tuple(before)
    advance(before, CONFIRM, now=NOW)
    advance(before, RELEASE, now=NOW)
    assert tuple(before) == kept


def test_resources_are_the_amounts_and_the_devices_added_up():
    devices = (DeviceHold("d0", 0, 100), DeviceHold("d1", 2500, 50))
    assert held(devices=devices).resources.parts() == {
        "cpu": 10_000,
        "gpu": 2500,
        "gpu_memory": 150,
    }
    assert held().resources == Resources.of(cpu=1)
