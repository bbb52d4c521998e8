"""R1 to R4 of BEHAVIOURS.md: what is reserved is held once, and free again at its time."""

import time
from datetime import UTC, datetime

import pytest

from gridhand import (
    Grid,
    InvalidInput,
    LeaseExpired,
    MoveRefused,
    NoRoom,
    ReservationExpired,
    Resources,
    UnknownAllocation,
)
from until import until

SHORT = 0.05


@pytest.fixture
def grid(grid):
    grid.register_node(
        "n1", cpu=4, memory="8GB", disk="100GB", gpus=[{"id": "A", "memory": "24GB"}]
    )
    return grid


def available(grid):
    return grid.node("n1").available


def empty(grid):
    return Resources.of(cpu=4, memory="8GB", disk="100GB", gpu=1, gpu_memory="24GB")


# ---- R1


def test_r1_reserved_then_confirmed_is_never_counted_twice(grid):
    kept = grid.reserve(cpu=3, ttl=60)
    assert kept.state == "reserved"
    assert available(grid)["cpu"] == 10_000
    kept.confirm()
    assert kept.state == "active"
    assert available(grid)["cpu"] == 10_000
    assert grid.release(kept.id).state == "released"
    assert available(grid) == empty(grid)


def test_r1_a_reservation_counts_as_held(grid):
    grid.reserve(cpu=3, ttl=60)
    assert not grid.fits("n1", cpu=2)
    with pytest.raises(NoRoom):
        grid.allocate(cpu=2)


def test_r1_confirming_by_an_unknown_id_is_an_error(grid):
    for id in ("a1-99", "x", ""):
        with pytest.raises(UnknownAllocation):
            grid.confirm(id)


def test_r1_confirming_by_an_expired_id_is_an_error_for_ever(grid):
    kept = grid.reserve(cpu=3, ttl=SHORT)
    until(lambda: not grid.allocations())
    for _ in range(2):
        with pytest.raises(ReservationExpired) as caught:
            kept.confirm()
        assert caught.value.code == "reservation_expired"
    assert available(grid) == empty(grid)


def test_r1_confirming_twice_is_refused_and_changes_nothing(grid):
    kept = grid.reserve(cpu=3, ttl=60).confirm()
    with pytest.raises(MoveRefused, match="it is active"):
        grid.confirm(kept)
    assert [held.state for held in grid.allocations()] == ["active"]


def test_a_reservation_can_be_released(grid):
    kept = grid.reserve(cpu=3, ttl=60)
    assert kept.release().state == "released"
    with pytest.raises(MoveRefused, match="it is released"):
        kept.confirm()
    assert available(grid) == empty(grid)


def test_a_reservation_cannot_be_renewed(grid):
    with pytest.raises(MoveRefused, match="it is reserved"):
        grid.reserve(cpu=3, ttl=60).renew()


def test_leaving_the_block_gives_a_reservation_back(grid):
    with grid.reserve(cpu=3, ttl=60):
        assert available(grid)["cpu"] == 10_000
    assert available(grid) == empty(grid)


# ---- R2


def test_r2_a_reservation_that_is_not_confirmed_is_free_again_at_its_time(grid):
    start = time.monotonic()
    kept = grid.reserve(cpu=4, ttl=2)
    with pytest.raises(NoRoom):
        grid.allocate(cpu=1)
    until(lambda: grid.fits("n1", cpu=4))
    assert time.monotonic() - start >= 1.99
    assert grid.release(kept.id).state == "expired"


def test_r2_the_expiry_is_written_down_at_its_time_without_anyone_asking(grid):
    kept = grid.reserve(cpu=4, ttl=SHORT)
    time.sleep(SHORT + 0.5)  # nobody calls meanwhile
    asked = time.time() * 1000
    event = next(event for event in grid.events() if event.kind == "allocation.expired")
    assert event.subject == kept.id
    assert event.owner == ""  # nobody asked for it
    due = kept.expires_at.timestamp() * 1000
    assert due <= event.at < asked


def test_r2_the_first_to_ask_at_its_time_gets_it(grid):
    grid.reserve(cpu=4, ttl=SHORT)

    def taken():
        try:
            return grid.allocate(cpu=4)
        except NoRoom:
            return None

    until(taken)
    assert [held.state for held in grid.allocations()] == ["active"]


def test_r2_it_is_exactly_what_was_reserved_that_comes_back(grid):
    other = grid.allocate(cpu=1, gpu=0.25)
    grid.reserve(cpu=2, gpu=0.5, memory="3GB", ttl=SHORT)
    until(lambda: len(grid.allocations()) == 1)
    other.release()
    assert available(grid) == empty(grid)


def test_many_reservations_expire_each_at_its_own_time(grid):
    for n in range(40):
        grid.reserve(cpu=0.05, ttl=0.03 + 0.003 * (n % 7))
    kept = grid.reserve(cpu=0.05, ttl=60)
    until(lambda: [held.id for held in grid.allocations()] == [kept.id])
    assert [event.kind for event in grid.events()].count("allocation.expired") == 40


def test_a_reservation_says_until_when(grid):
    kept = grid.reserve(cpu=1, ttl=60)
    left = (kept.expires_at - datetime.now(UTC)).total_seconds()
    assert 55 < left <= 60.5
    assert kept.confirm().expires_at is None
    assert grid.reserve(cpu=1).expires_at is not None  # a time is there without being asked for


# ---- R3


def test_r3_devices_their_memory_and_disk_are_held_like_everything_else(grid):
    kept = grid.reserve(gpu=0.5, disk="60GB", memory="8GB", ttl=60)
    assert kept.gpus == ("A",)
    assert available(grid) == Resources.of(cpu=4, disk="40GB", gpu=0.5, gpu_memory="12GB")
    assert not grid.fits("n1", gpu=1)
    assert not grid.fits("n1", gpu_memory="13GB")
    assert not grid.fits("n1", disk="41GB")
    kept.confirm()
    assert available(grid) == Resources.of(cpu=4, disk="40GB", gpu=0.5, gpu_memory="12GB")
    kept.release()
    assert available(grid) == empty(grid)


def test_r3_a_reserved_device_is_free_again_after_its_time(grid):
    grid.reserve(gpu=1, ttl=2)
    assert not grid.fits("n1", gpu=0.1)
    until(lambda: grid.fits("n1", gpu=1))


# ---- R4 and leases


def test_r4_a_lease_that_is_renewed_is_not_given_away(grid):
    held = grid.allocate(cpu=4, ttl=3)
    assert (held.state, held.lifetime) == ("active", "lease")
    stop = time.monotonic() + 3.3
    while time.monotonic() < stop:
        before = held.expires_at
        held.renew()
        assert held.expires_at >= before
        assert not grid.fits("n1", cpu=1)
        time.sleep(0.02)
    until(lambda: grid.fits("n1", cpu=4))  # and when nobody renews it, it ends
    assert grid.release(held.id).state == "expired"


def test_a_lease_that_is_not_renewed_is_free_at_its_time_and_never_revived(grid):
    held = grid.allocate(cpu=4, ttl=SHORT)
    until(lambda: grid.fits("n1", cpu=4))
    for _ in range(2):
        with pytest.raises(LeaseExpired) as caught:
            held.renew()
        assert caught.value.code == "lease_expired"
    assert held.release().state == "expired"
    assert available(grid) == empty(grid)


def test_what_is_no_lease_lasts_until_it_is_released(grid):
    held = grid.allocate(cpu=1)
    assert held.lifetime in ("until_released", "session")  # the latter at a controller
    assert held.expires_at is None
    with pytest.raises(MoveRefused, match="not a lease"):
        held.renew(ttl=5)


def test_confirming_with_a_ttl_makes_a_lease(grid):
    held = grid.reserve(cpu=4, ttl=60).confirm(ttl=SHORT)
    assert held.lifetime == "lease"
    until(lambda: grid.fits("n1", cpu=4))


def test_a_shorter_renewal_ends_sooner(grid):
    held = grid.allocate(cpu=4, ttl=60)
    held.renew(ttl=SHORT)
    until(lambda: grid.fits("n1", cpu=4))


def test_a_gang_of_leases_is_renewed_and_ends_as_one(grid):
    gang = grid.allocate_group([{"cpu": 1}, {"cpu": 1}, {"memory": "1GB"}], ttl=60)
    before = {held.expires_at for held in grid.allocations()}
    gang[2].renew(ttl=90)
    after = {held.expires_at for held in grid.allocations()}
    assert len(before) == len(after) == 1
    assert before != after
    gang[0].renew(ttl=SHORT)
    until(lambda: not grid.allocations())
    assert [held.release().state for held in gang] == ["expired"] * 3


@pytest.mark.parametrize(
    "ttl", [0, -1, 0.0001, float("nan"), float("inf"), 1e30, True, "60", b"1", [1]], ids=repr
)
def test_a_time_that_is_none_is_refused(grid, ttl):
    for call in (
        lambda: grid.reserve(cpu=1, ttl=ttl),
        lambda: grid.allocate(cpu=1, ttl=ttl),
        lambda: grid.allocate_group([{"cpu": 1}], ttl=ttl),
    ):
        with pytest.raises(InvalidInput, match="ttl"):
            call()
    held = grid.allocate(cpu=1, ttl=60)
    before = held.expires_at
    with pytest.raises(InvalidInput, match="ttl"):
        held.renew(ttl=ttl)
    assert grid.allocations()[0].expires_at == before


def test_a_reservation_needs_a_time(grid):
    with pytest.raises(InvalidInput, match="ttl"):
        grid.reserve(cpu=1, ttl=None)
    assert grid.allocations() == []


def test_deadlines_become_at_least_their_ttl_again_after_a_restart(tmp_path):
    path = str(tmp_path / "grid.db")
    with Grid.at(path, owner="ann") as grid:
        grid.register_node("n1", cpu=4)
        kept = grid.reserve(cpu=1, ttl=60)
        time.sleep(0.05)
    with Grid.at(path, owner="ann") as grid:
        again = grid.allocations()[0]
        assert (again.id, again.state) == (kept.id, "reserved")
        assert again.expires_at > kept.expires_at
        assert again.confirm().state == "active"


def test_what_lapsed_while_nobody_was_there_gets_its_ttl_once_more(tmp_path):
    path = str(tmp_path / "grid.db")
    with Grid.at(path, owner="ann") as grid:
        grid.register_node("n1", cpu=4)
        kept = grid.reserve(cpu=4, ttl=SHORT)
    time.sleep(SHORT)
    with Grid.at(path, owner="ann") as grid:
        until(lambda: grid.fits("n1", cpu=4))
        with pytest.raises(ReservationExpired):
            grid.confirm(kept.id)
