"""Every order of calls on a bare ledger, held against the model after each."""

from __future__ import annotations

import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gridhand.audit import check_decision, check_history, check_rebuild, check_state
from gridhand.controller.keeper.ledger_commands import Context, allocate
from gridhand.controller.keeper.questions import ANSWERS
from gridhand.core.errors import GridError
from gridhand.core.ledger.allocations import AllocationMove, AllocationState, Lifetime, Terms
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.status import dump
from gridhand.core.model.nodes import Health
from gridhand.core.observations import SetForeignUse
from gridhand.core.operations import Allocate
from gridhand.core.placement.place import Refusal, place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import STRATEGIES
from gridhand.core.rows.ledger import allocation_row, node_row
from ledger_asks import (
    ASKS,
    CHANGES,
    GANGS,
    HOLDERS,
    MAYBE_TTLS,
    NAMED,
    NAMES,
    NODES,
    OWNERS,
    TTLS,
    changed,
    node_of,
    renamed,
    request_of,
)
from ledger_model import Model, said

WHICH = st.integers(0, 200)
SOME_OWNER = st.sampled_from(OWNERS)
STRATEGY = st.sampled_from(sorted(STRATEGIES))
CALLED = (AllocationMove.CONFIRM, AllocationMove.RENEW, AllocationMove.RELEASE)
START = 1_000


class Steps:
    """How many steps the machines have made in this process."""

    ledger = 0
    keeper = 0


def node_said(row):
    return {name: row[name] for name in row if name not in ("price", "address")}


def state_said(state):
    """A dump in the model's words, in a fixed order."""
    return {
        "now": state["now"],
        "foreign": state["foreign"],
        "nodes": [node_said(row) for row in state["nodes"]],
        "allocations": sorted(
            (said(row) for row in state["allocations"]), key=lambda row: row["number"]
        ),
    }


def something_is_held(machine):
    return machine.model.live


class LedgerMachine(RuleBasedStateMachine):
    """A ledger, its placement and its clock, which only the machine moves."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.desk = Context(self.ledger, Snapshot(self.ledger), STRATEGIES["best_fit"], START)
        self.model = Model(START)
        self.marks = []  # after each step: where the changes stood, and the model as it was
        self.events = []  # what was written down, as (time, change)
        self.times = []  # when each change came that was not
        self.steps = -1  # setting up is no step

    # ---- helpers

    def state(self):
        return dump(self.ledger, self.desk.snapshot.foreign, now=self.desk.now)

    def known_id(self, which, like=lambda row: True):
        """The id of something live, most often; of something that ended; or of nothing."""
        ids = [id for id, row in self.model.live.items() if like(row)] or list(self.model.live)
        if which % 6 == 0 or not ids:
            ids = [*list(self.model.closed)[-3:], "a9-1", ""]
        return ids[which // 6 % len(ids)]

    def ask(self, call, *args, **more):
        """The row that `call` answers, or the code of its error, which leaves no change."""
        before = self.ledger.mark()
        try:
            return call(*args, **more)
        except GridError as error:
            code = error.code
        assert self.ledger.mark() == before, f"{code} left a change behind"
        return code

    def hold(self, asks, owner, holder, state, ttl, strategy):
        self.desk.strategy = STRATEGIES[strategy]
        lease = state is AllocationState.ACTIVE and ttl is not None
        lifetime = Lifetime.LEASE if lease else Lifetime.UNTIL_RELEASED
        terms = Terms(owner, holder, state, lifetime, ttl)
        requests = tuple(map(request_of, asks))
        before = self.state()
        mark = self.ledger.mark()
        try:
            made = allocate(Allocate(owner, None, requests, terms), self.desk).allocations
            answer = [said(allocation_row(held)) for held in made]
        except GridError as error:
            answer = error.code
            assert self.ledger.mark() == mark, f"{answer} left a change behind"
        granted = self.ledger.mark() > mark
        if isinstance(answer, str) and answer != "holder_busy":
            self.judge_refusal(asks, requests)
            if len(asks) > 1 and strategy != "first_available":
                return  # which nodes the members before got may hang on a tie
        elif granted and len(asks) == 1:
            outcome = {"node": answer[0]["node"], "devices": answer[0]["devices"]}
            assert check_decision(before, asks[0], outcome) == []
        self.model.hold(
            owner,
            asks,
            state=str(state),
            ttl=ttl,
            holder=holder,
            strategy=strategy,
            answer=answer,
        )

    def judge_refusal(self, asks, requests):
        """Somewhere along the group there must be a member that fits nowhere."""
        mark = self.ledger.mark()
        try:
            for ask, request in zip(asks, requests, strict=True):
                state = self.state()
                placed = self.ask(place, request, self.desk.snapshot, self.desk.strategy)
                if isinstance(placed, str):
                    assert placed == "unknown_node"
                    assert ask["node"] not in self.model.nodes
                    return
                if isinstance(placed, Refusal):
                    assert check_decision(state, ask, None) == []
                    self.judge_reasons(ask, placed)
                    return
                self.ledger.grant([placed], Terms("trial"), now=self.desk.now)
            raise AssertionError(f"refused, but each found a place: {asks}")
        finally:
            self.ledger.rollback(mark)

    def judge_reasons(self, ask, refusal):
        reasons = refusal.reasons()
        assert list(reasons) == self.model.permitted(ask), "every permitted node says why not"
        assert all(reasons.values())
        assert refusal.sentence()

    # ---- nodes

    @initialize(
        nodes=st.lists(NODES, min_size=3, max_size=3),
        asks=st.lists(st.tuples(ASKS, MAYBE_TTLS), min_size=2, max_size=4),
        gang=GANGS,
    )
    def begin(self, nodes, asks, gang):
        for name, node in zip(NAMES, nodes, strict=True):
            self.register(renamed(node, name))
        for ask, ttl in asks:
            self.hold([ask], "ann", None, AllocationState.ACTIVE, ttl, "best_fit")
        self.hold(gang, "bob", "x", AllocationState.RESERVED, 100, "first_available")

    @rule(node=NODES)
    def register(self, node):
        answer = self.ask(self.ledger.register, node_of(node))
        if not isinstance(answer, str):
            answer = node_said(node_row(answer))
        self.model.register(node, answer=answer)

    @rule(name=NAMED, how=CHANGES)
    def describe_again(self, name, how):
        if name in self.model.nodes:
            self.register(changed(self.model.nodes[name], how, self.model.plain(name)))

    @rule(name=NAMED, draining=st.booleans())
    def drain(self, name, draining):
        answer = self.ask(self.ledger.set_draining, name, draining)
        self.model.describe(name, answer=self.node_answer(answer), draining=draining)

    @precondition(lambda self: self.steps % 3 == 1)
    @rule(name=NAMED, health=st.sampled_from(("up", "up", "suspect", "down")))
    def mark_health(self, name, health):
        answer = self.ask(self.ledger.set_health, name, Health(health), now=self.desk.now)
        self.model.describe(name, answer=self.node_answer(answer), health=health)

    @precondition(lambda self: self.steps % 6 == 2)
    @rule(name=NAMED, force=st.booleans())
    def unregister(self, name, force):
        answer = self.ask(self.ledger.unregister, name, now=self.desk.now, force=force)
        self.model.unregister(name, force, answer=answer)

    @staticmethod
    def node_answer(answer):
        return answer if isinstance(answer, str) else node_said(node_row(answer))

    @rule(name=NAMED, used=st.sampled_from((0, 0, 5, 2 * 10**9, 30 * 10**9)), place=WHICH)
    def report_foreign(self, name, used, place):
        if name not in self.model.nodes or not self.model.nodes[name]["devices"]:
            return
        devices = [device["id"] for device in self.model.nodes[name]["devices"]]
        device = devices[place % len(devices)]
        observed = SetForeignUse(name, {device: used})
        ANSWERS[SetForeignUse](observed, self.desk)
        for id in devices:
            self.model.foreign.pop(id, None)
        if used:
            self.model.foreign[device] = used

    # ---- allocations

    @rule(ask=ASKS, owner=SOME_OWNER, holder=HOLDERS, ttl=MAYBE_TTLS, strategy=STRATEGY)
    def allocate(self, ask, owner, holder, ttl, strategy):
        self.hold([ask], owner, holder, AllocationState.ACTIVE, ttl, strategy)

    @rule(ask=ASKS, strategy=STRATEGY)
    def allocate_again(self, ask, strategy):
        self.hold([ask], "ann", None, AllocationState.ACTIVE, None, strategy)

    @rule(asks=GANGS, holder=HOLDERS, ttl=MAYBE_TTLS, strategy=STRATEGY)
    def allocate_group(self, asks, holder, ttl, strategy):
        self.hold(asks, "ann", holder, AllocationState.ACTIVE, ttl, strategy)

    @rule(asks=st.lists(ASKS, min_size=1, max_size=2), holder=HOLDERS, ttl=TTLS, strategy=STRATEGY)
    def reserve(self, asks, holder, ttl, strategy):
        self.hold(asks, "bob", holder, AllocationState.RESERVED, ttl, strategy)

    @rule(which=WHICH)
    def ask_again(self, which):
        """The same holder asks for the same: it gets what it has."""
        held = [id for id in self.model.asked if self.model.live[id]["group"] is None]
        if held:
            id = held[which % len(held)]
            found = self.ledger.live[id]
            state, ttl, _ = self.model.asked[id]
            terms = Terms(found.owner, found.holder, AllocationState(state), ttl_ms=ttl)
            kind, _, key = found.asked.split(" ", 2)
            assert kind == {"active": "allocate", "reserved": "reserve"}[terms.state]

            class Same:
                def key(self):
                    return key

            assert self.ledger.held_by(terms, [Same()]) == [found]

    def move(self, id, move, ttl=None):
        answer = self.ask(self.ledger.move, id, move, now=self.desk.now, ttl_ms=ttl)
        if not isinstance(answer, str):
            answer = said(allocation_row(answer))
        self.model.move(id, str(move), ttl=ttl, answer=answer)

    @precondition(something_is_held)
    @rule(which=WHICH, ttl=MAYBE_TTLS)
    def confirm(self, which, ttl):
        id = self.known_id(which, lambda row: row["state"] == "reserved")
        self.move(id, AllocationMove.CONFIRM, ttl)

    @precondition(something_is_held)
    @rule(which=WHICH, ttl=MAYBE_TTLS)
    def renew(self, which, ttl):
        id = self.known_id(which, lambda row: row["lifetime"] == "lease")
        self.move(id, AllocationMove.RENEW, ttl)

    @precondition(something_is_held)
    @rule(which=WHICH)
    def release(self, which):
        self.move(self.known_id(which), AllocationMove.RELEASE)

    @precondition(something_is_held)
    @rule(which=WHICH)
    def release_twice(self, which):
        id = self.known_id(which)
        self.move(id, AllocationMove.RELEASE)
        self.move(id, AllocationMove.RELEASE)

    @precondition(lambda self: self.model.next_deadline() is not None)
    @rule(
        which=WHICH,
        move=st.sampled_from(
            (
                AllocationMove.CONFIRM,
                AllocationMove.RENEW,
                AllocationMove.RENEW,
                AllocationMove.RELEASE,
            )
        ),
        early=st.sampled_from((1, 0, 0, -1)),
        ttl=MAYBE_TTLS,
    )
    def move_at_its_deadline(self, which, move, early, ttl):
        """A move in the last millisecond, in the first that is too late, or in the one after."""
        state = "reserved" if move is AllocationMove.CONFIRM else "active"
        dated = [
            row
            for row in self.model.live.values()
            if row["deadline"] is not None and row["state"] == state
        ]
        if dated:
            row = dated[which % len(dated)]
            self.wait(max(0, row["deadline"] - early - self.model.now))
            self.move(row["id"], move, None if move is AllocationMove.RELEASE else ttl)

    @rule(id=st.sampled_from(("a1-1", "a1-3", "a9-1", "")), move=st.sampled_from(CALLED))
    def move_by_name(self, id, move):
        """An id from anywhere: of something live, long ended, or never heard of."""
        self.move(id, move, 50 if move is AllocationMove.RENEW else None)

    # ---- time

    @rule(ms=st.sampled_from((1, 1, 2, 5, 20, 100)))
    def wait(self, ms):
        """Time goes by, and nobody sweeps."""
        self.desk.now = self.model.now = self.desk.now + ms

    @rule(ms=st.sampled_from((0, 1, 5, 50)))
    def expire(self, ms):
        self.wait(ms)
        self.ledger.expire_due(self.desk.now)
        self.model.expire()
        assert check_state(self.state(), strict_time=True) == []

    # ---- changes

    @rule(back=st.integers(1, 12))
    def roll_back(self, back):
        """Undo the last few steps, as far as they have not been written down."""
        back = min(back, len(self.marks))
        if not back:
            return
        mark, model = self.marks[-back]
        del self.marks[-back:]
        self.back_to(mark, model)

    @precondition(something_is_held)
    @rule(which=WHICH, node=NAMED, how=CHANGES, move=st.sampled_from(CALLED))
    def try_in_vain(self, which, node, how, move):
        """As when a commit fails: a node changes, something on it moves, and all is undone."""
        held = [row["id"] for row in self.model.on(node)] or list(self.model.live)
        id = held[which % len(held)]
        if which % 2:
            self.describe_again(node, how)
        mark, model = self.ledger.mark(), self.model.copy()
        self.move(id, move, 30 if move is AllocationMove.RENEW else None)
        self.back_to(mark, model)

    def back_to(self, mark, model):
        self.ledger.rollback(mark)
        # Time does not come back, nor do numbers; what strangers use was never a change.
        model.now, model.highest, model.foreign = (
            self.model.now,
            self.model.highest,
            self.model.foreign,
        )
        self.model = model

    @precondition(lambda self: self.steps % 4 == 3)
    @rule()
    def write_down(self):
        """As after a commit: nothing from before can be undone."""
        self.note_times()
        self.events += zip(self.times, self.ledger.changes, strict=True)
        self.ledger.settle()
        self.times.clear()
        self.marks.clear()

    def note_times(self):
        del self.times[len(self.ledger.changes) :]
        self.times += [self.desk.now] * (len(self.ledger.changes) - len(self.times))

    @rule(ask=ASKS, strategy=STRATEGY)
    def decide_as_after_a_restart(self, ask, strategy):
        """A ledger that was read anew, its rows in another order, decides the same (I7, I8)."""
        reloaded = Ledger(next_number=self.ledger.next_number)
        nodes = [use.node for use in self.ledger.nodes.values()]
        reloaded.load(reversed(nodes), reversed(self.ledger.live.values()))
        reloaded._chosen = self.ledger._chosen  # which node was chosen last is not written down
        for name, use in reloaded.nodes.items():
            use.chosen = self.ledger.nodes[name].chosen
        request, foreign = request_of(ask), self.desk.snapshot.foreign
        decided = [
            self.ask(place, request, Snapshot(ledger, foreign), STRATEGIES[strategy])
            for ledger in (self.ledger, reloaded)
        ]
        if all(isinstance(one, Refusal) for one in decided):
            decided = [one.reasons() for one in decided]
        assert decided[0] == decided[1]
        state = dump(reloaded, foreign, now=self.desk.now)
        assert state_said(state) == self.model.dump()

    # ---- what must hold

    @invariant()
    def the_ledger_is_as_the_model_says(self):
        self.steps += 1
        self.note_times()
        state = self.state()
        assert check_state(state) == []
        assert state_said(state) == self.model.dump()
        assert self.ledger.next_deadline() == self.model.next_deadline()
        assert self.ledger.names == sorted(self.model.nodes)
        self.marks.append((self.ledger.mark(), self.model.copy()))

    def teardown(self):
        Steps.ledger += max(0, self.steps)
        if sys.exc_info()[0] is not None:
            return  # what went wrong is on its way, and says more
        self.write_down()
        events = [
            {
                "number": number,
                "at": at,
                "kind": change.kind,
                "subject": change.subject,
                "row": row_of(change.after),
            }
            for number, (at, change) in enumerate(self.events)
        ]
        assert check_history(events) == []
        assert check_rebuild(events, self.state()) == []
        self.everything_can_be_given_back()

    def everything_can_be_given_back(self):
        for id in list(self.ledger.live):
            if id in self.ledger.live:
                self.ledger.move(id, AllocationMove.RELEASE, now=self.desk.now)
        for name in NAMES:
            if name in self.ledger.nodes:
                assert self.ledger.nodes[name].held_resources().parts() == {}
                self.ledger.unregister(name, now=self.desk.now)
        assert self.state()["nodes"] == self.state()["allocations"] == []


def row_of(value):
    if value is None:
        return None
    return allocation_row(value) if hasattr(value, "holder") else node_row(value)
