"""Faults planted in the real code, one at a time: the machines must find every one of them.

A simulation that has never been seen to fail proves little. The runs are the same every time, as
long as the code is; the first of them are made on honest code, too.
"""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gridhand import Grid
from gridhand.core.errors import StoreError, StoreFenced, UnknownAllocation
from gridhand.core.ledger import ledger as ledgers
from gridhand.core.ledger.allocations import Allocation, AllocationMove, AllocationState
from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.placement.snapshot import Snapshot
from gridhand.store.sql.sql_store import SqlStore
from gridhand.store.sql.sqlite import SqliteStore
from keeper_machine import KeeperMachine
from ledger_machine import LedgerMachine

UNIT = 10_000


def runs(examples):
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )


LEDGER = LedgerMachine, runs(500)  # it ends with the first find, most often after a few
KEEPER = KeeperMachine, runs(120)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    monkeypatch.setattr("gridhand.controller.keeper.write_batch._RECOVERY_S", 0.0)


def found_by(machine):
    """What the machine finds, or None."""
    kind, how = machine
    try:
        run_state_machine_as_test(kind, settings=how)
    except Exception as error:
        return error
    return None


HONEST = {"ledger": (LedgerMachine, runs(20)), "keeper": (KeeperMachine, runs(6))}


@pytest.mark.parametrize("machine", HONEST.values(), ids=HONEST)
def test_in_honest_code_nothing_is_found(machine):
    kind, how = machine
    run_state_machine_as_test(kind, settings=how)


# ---- faults in the ledger


def release_twice_returns_twice(patch):
    """A second release, which should change nothing, takes the amounts off once more."""
    closed = {}
    leave, move = Ledger._leave, Ledger.move

    def leaving(self, held):
        closed[id(self), held.id] = held
        leave(self, held)

    def moving(self, name, how, **more):
        try:
            return move(self, name, how, **more)
        except UnknownAllocation:
            held = closed.get((id(self), name))
            if how is not AllocationMove.RELEASE or held is None or held.node not in self.nodes:
                raise
            use = self.nodes[held.node]
            for what, amount in held.amounts.pairs:
                use.held[what] = use.held.get(what, 0) - amount
            raise

    patch.setattr(Ledger, "_leave", leaving)
    patch.setattr(Ledger, "move", moving)


def the_device_is_forgotten_on_release(patch):
    remove = NodeUsage.remove
    patch.setattr(NodeUsage, "remove", lambda self, held: remove(self, held._replace(devices=())))


def deadlines_are_kept_late(patch):
    """For three milliseconds after its deadline an allocation still passes for a live one."""
    expire = Ledger.expire_due
    patch.setattr(Ledger, "expire_due", lambda self, now: expire(self, now - 3))
    patch.setattr(
        Allocation,
        "lapsed",
        lambda self, now: self.deadline is not None and self.deadline + 3 <= now,
    )


def a_lapsed_lease_can_be_renewed(patch):
    advance = ledgers.advance

    def advancing(held, move, *, now, ttl_ms=None):
        if (
            move is AllocationMove.RENEW
            and held.lapsed(now)
            and held.state is AllocationState.ACTIVE
        ):
            held = held._replace(deadline=now + 1)
        return advance(held, move, now=now, ttl_ms=ttl_ms)

    patch.setattr(ledgers, "advance", advancing)


def _counting_reservations(patch, times):
    add, remove = NodeUsage.add, NodeUsage.remove

    def counted(held):
        if held.state is not AllocationState.RESERVED:
            return held
        amounts = type(held.amounts)({what: n * times for what, n in held.amounts.pairs})
        return held._replace(amounts=amounts)

    patch.setattr(NodeUsage, "add", lambda self, held: add(self, counted(held)))
    patch.setattr(NodeUsage, "remove", lambda self, held: remove(self, counted(held)))


def a_reservation_counts_twice(patch):
    _counting_reservations(patch, 2)


def a_reservation_does_not_count(patch):
    _counting_reservations(patch, 0)


def a_group_member_is_left_behind(patch):
    """Releasing one of a group forgets the last of its members."""
    members = Ledger._members
    patch.setattr(
        Ledger, "_members", lambda self, held: members(self, held)[:-1] if held.group else [held]
    )


def shares_round_up(patch):
    memory_on = GpuRequest.memory_on

    def rounding(self, gpu):
        if self.memory_bytes is not None:
            return memory_on(self, gpu)
        return -(-gpu.memory_bytes * self.share // UNIT)

    patch.setattr(GpuRequest, "memory_on", rounding)


def nobody_checks_again(patch):
    """A placement that overlooks what is held is applied as it is."""
    patch.setattr(NodeUsage, "admits", lambda self, amounts, devices, foreign: self.open)
    patch.setattr(
        NodeUsage,
        "amounts_fit",
        lambda self, amounts: all(
            amount <= self.total.get(what, 0) for what, amount in amounts.pairs
        ),
    )


def undoing_starts_with_the_first(patch):
    def rollback(self, mark=0):
        undone = self.changes[mark:]
        del self.changes[mark:]
        for _, _, before, after, _ in undone:
            self._apply(after, before)

    patch.setattr(Ledger, "rollback", rollback)


def an_undone_release_leaves_its_node_open(patch):
    """Undoing forgets that the node is overcommitted again."""
    rollback = Ledger.rollback

    def rolling_back(self, mark=0):
        before = {name: use.overcommitted for name, use in self.nodes.items()}
        rollback(self, mark)
        for name, use in self.nodes.items():
            use.overcommitted = use.overcommitted and before.get(name, False)

    patch.setattr(Ledger, "rollback", rolling_back)


def an_exclusive_device_is_shared(patch):
    """A whole device is granted, and shares of the same device are granted, too."""
    make_hold = DeviceHold.of

    def sharing(asked, gpu):
        return make_hold(asked, gpu)._replace(exclusive=False)

    patch.setattr(DeviceHold, "of", sharing)


def a_drained_node_gets_work(patch):
    update_flags = NodeUsage.update_flags

    def updating(self):
        update_flags(self)
        self.open = self.open or (self.node.draining and not self.overcommitted)

    patch.setattr(NodeUsage, "update_flags", updating)


def excluded_nodes_are_taken(patch):
    rows = Snapshot.rows

    def all_rows(self, asked):
        found = rows(self, asked)
        return range(len(self.ledger.names)) if asked.exclude and asked.node is None else found

    patch.setattr(Snapshot, "rows", all_rows)


IN_THE_LEDGER = [
    release_twice_returns_twice,
    the_device_is_forgotten_on_release,
    deadlines_are_kept_late,
    a_lapsed_lease_can_be_renewed,
    a_reservation_counts_twice,
    a_reservation_does_not_count,
    a_group_member_is_left_behind,
    shares_round_up,
    nobody_checks_again,
    undoing_starts_with_the_first,
    an_undone_release_leaves_its_node_open,
    an_exclusive_device_is_shared,
    a_drained_node_gets_work,
    excluded_nodes_are_taken,
]


@pytest.mark.parametrize("fault", IN_THE_LEDGER, ids=lambda fault: fault.__name__)
def test_the_ledger_machine_finds(fault, monkeypatch):
    fault(monkeypatch)
    found = found_by(LEDGER)
    assert found is not None, f"nobody noticed that {fault.__name__.replace('_', ' ')}"


# ---- faults between the keeper and its store


def answers_come_before_the_commit(patch):
    """A batch is written only when the next one comes, long after its callers were answered."""
    commit, close, load = SqliteStore.commit, SqliteStore.close, SqliteStore.load

    def waiting(store):
        return store.__dict__.setdefault("_waiting", [])

    def write(store):
        while waiting(store):
            commit(store, waiting(store).pop(0))

    def later(store, batch):
        write(store)
        waiting(store).append(batch)

    def writing_first(method):
        def call(store, *args, **more):
            write(store)
            return method(store, *args, **more)

        return call

    patch.setattr(SqliteStore, "commit", later)
    patch.setattr(SqliteStore, "close", writing_first(close))
    patch.setattr(SqliteStore, "load", writing_first(load))
    for name in ("find", "operations", "events", "prune"):
        patch.setattr(SqliteStore, name, writing_first(getattr(SqliteStore, name)))


def failed_commits_are_not_undone(patch):
    rollback = Ledger.rollback

    def rolling_back(self, mark=0):
        if mark:
            rollback(self, mark)
        else:
            self.changes.clear()

    patch.setattr(Ledger, "rollback", rolling_back)


def answered_calls_are_forgotten(patch):
    patch.setattr(SqlStore, "operations", lambda self, wanted: [])


def ended_ones_stay_in_the_table(patch):
    """A release is answered and logged, but its row stays as it was."""
    patch.setattr(SqliteStore, "_close", lambda self, state, numbers: len(numbers))


def restarts_take_deadlines_as_they_are(patch):
    load = Ledger.load

    def loading(self, nodes, allocations):
        load(
            self,
            nodes,
            [
                held if held.ttl_ms is None else held._replace(deadline=held.made_at + held.ttl_ms)
                for held in allocations
            ],
        )

    patch.setattr(Ledger, "load", loading)


BEHIND_THE_KEEPER = [
    pytest.param(answers_come_before_the_commit, marks=pytest.mark.soak),  # it is found late
    failed_commits_are_not_undone,
    answered_calls_are_forgotten,
    ended_ones_stay_in_the_table,
    restarts_take_deadlines_as_they_are,
]


@pytest.mark.parametrize("fault", BEHIND_THE_KEEPER, ids=lambda fault: fault.__name__)
def test_the_keeper_machine_finds(fault, monkeypatch):
    fault(monkeypatch)
    found = found_by(KEEPER)
    assert found is not None, f"nobody noticed that {fault.__name__.replace('_', ' ')}"


# ---- the epoch


def write_after_a_takeover(path):
    """A keeper allocates, another takes the store, and the first allocates again."""
    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=4)
        grid.allocate(cpu=1)
        with sqlite3.connect(path) as other:
            other.execute("UPDATE gridhand_meta SET epoch = epoch + 1, writer = epoch + 1")
        other.close()
        with pytest.raises(StoreFenced):
            grid.allocate(cpu=1)


def test_a_keeper_that_was_overtaken_writes_nothing(tmp_path):
    write_after_a_takeover(tmp_path / "grid.db")


def test_forgetting_the_epoch_is_noticed(tmp_path, monkeypatch):
    """Without the check of the epoch the keeper that was overtaken goes on."""

    def not_holding(self, high_water_ms, next_number, next_job):
        self._connection.exec_driver_sql(
            "UPDATE gridhand_meta SET high_water_ms = ?, next_number = ?",
            (high_water_ms, next_number),
        )

    monkeypatch.setattr(SqlStore, "_hold_epoch", not_holding)
    with pytest.raises((pytest.fail.Exception, StoreError)) as found:
        write_after_a_takeover(tmp_path / "grid.db")
    assert not isinstance(found.value, StoreFenced)
