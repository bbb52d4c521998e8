"""Every order of calls on a keeper and its file, with failing commits, restarts and crashes."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gridhand.audit import check_history, check_rebuild, check_state
from gridhand.controller.keeper.embedded import Embedded
from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.tickets import Ticket, TicketPort
from gridhand.core.errors import GridError, OutcomeUnknown, StoreUnavailable
from gridhand.core.ledger.allocations import AllocationMove
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.status import dump
from gridhand.core.operations import DumpLedger, Fits, Granted, Prune
from gridhand.core.placement.strategies import STRATEGIES
from gridhand.core.rows.ledger import allocation_row, node_row
from gridhand.library.ledger_methods import LedgerMethods
from gridhand.store.sql.sqlite import SqliteStore
from ledger_asks import (
    ASKS,
    CHANGES,
    GANGS,
    HOLDERS,
    MAYBE_TTLS,
    NODES,
    OWNERS,
    TTLS,
    changed,
    node_of,
    renamed,
    request_of,
)
from ledger_machine import START, Steps, node_said, state_said
from ledger_model import Model, said, same_ask

# One is named like an allocation: the two kinds of names must not be taken for each other.
NAMES = ("n1", "n2", "a1-2")
PATIENCE_S = 30
SHM = Path("/dev/shm")
# The connection is lost in a commit, which turns out at once, or only later, to have been made.
WRITTEN = ("lost after", "lost after, for long")
NOT_WRITTEN = ("lost before", "lost before, for long")
FOR_LONG = (WRITTEN[1], NOT_WRITTEN[1])


class FaultyStore:
    """A store whose commits fail as they are told to: one fault, then all is well again."""

    def __init__(self, store):
        self._store = store
        self.fault = None
        self.tickets = []
        self.decided = None  # what the tickets had been answered when their commit was tried
        self.own = False  # whether the keeper has written something of its own
        self._written = self._away = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def arm(self, tickets, fault):
        self.tickets, self.fault = tickets, fault
        self.decided, self.own = None, False

    def commit(self, batch):
        if all(ticket.reply is None and ticket.error is None for ticket in self.tickets):
            self.own = True
            self._store.commit(batch)
            return
        self.decided = [(ticket.reply, ticket.error) for ticket in self.tickets]
        fault, self.fault = self.fault, None
        if fault is None:
            self._store.commit(batch)
        elif fault == "not written":
            raise StoreUnavailable("disk full, says the machine")
        else:
            self._written = fault in WRITTEN
            self._away = fault in FOR_LONG
            if self._written:
                self._store.commit(batch)
            raise OutcomeUnknown("gone, says the machine")

    def recover(self):
        if self._away:
            self._away = False
            raise StoreUnavailable("not yet, says the machine")
        self._store.recover()
        return self._written


class Answers(TicketPort):
    """Waits until so many tickets have been answered."""

    def __init__(self, count):
        self._left = count
        self._all = threading.Event()

    def deliver(self, tickets):
        self._left -= len(tickets)
        if not self._left:
            self._all.set()

    def wait(self):
        assert self._all.wait(PATIENCE_S), f"{self._left} calls were never answered"


@dataclass(frozen=True)
class Op:
    """A call as plain data: what is asked, by whom, and under which op id."""

    kind: str
    args: tuple
    owner: str = "ann"
    op_id: str | None = None

    def body(self):
        if self.kind != "hold":
            return repr((self.kind, self.args))
        asks, state, ttl, holder = self.args
        return repr(([same_ask(ask) for ask in asks], state, ttl, holder))

    def operation(self):
        calls = LedgerMethods(self.owner)
        if self.kind == "hold":
            return self._hold(calls, *self.args)
        if self.kind == "move":
            id, move, ttl = self.args
            return calls.move(id, AllocationMove(move), seconds(ttl), self.op_id)
        if self.kind == "register":
            return calls.register([node_of(self.args[0])], self.op_id)
        if self.kind == "drain":
            return calls.set_draining(*self.args, self.op_id)
        if self.kind == "health":
            return calls.set_health(*self.args, "", self.op_id)
        return calls.unregister(*self.args, self.op_id)

    def _hold(self, calls, asks, state, ttl, holder):
        requests = [request_of(ask) for ask in asks]
        if state == "reserved":
            return calls.reserve(requests[0], holder, seconds(ttl), self.op_id, {})
        if len(asks) > 1:
            return calls.group(requests, holder, seconds(ttl), self.op_id)
        return calls.allocate(requests[0], holder, seconds(ttl), self.op_id, {})


def seconds(ttl):
    return None if ttl is None else ttl / 1000


_OWNER = st.sampled_from((OWNERS[0], *OWNERS))
_NAME = st.sampled_from(NAMES)
_WHICH = st.integers(0, 200)
_NODES = st.builds(renamed, NODES, _NAME)
_ALLOCATE = st.tuples(ASKS.map(lambda ask: (ask,)), st.just("active"), MAYBE_TTLS, HOLDERS)
_GROUP = st.tuples(GANGS.map(tuple), st.just("active"), MAYBE_TTLS, HOLDERS)
_RESERVE = st.tuples(ASKS.map(lambda ask: (ask,)), st.just("reserved"), TTLS, HOLDERS)
HOLDS = st.builds(Op, st.just("hold"), _ALLOCATE | _ALLOCATE | _GROUP | _RESERVE, _OWNER)
MOVES = st.builds(
    Op,
    st.just("move"),
    st.tuples(_WHICH, st.sampled_from(("confirm", "renew", "release", "release")), MAYBE_TTLS),
    _OWNER,
)
NODE_OPS = st.one_of(
    st.builds(Op, st.just("register"), st.tuples(_NODES)),
    st.builds(Op, st.just("change"), st.tuples(_NAME, CHANGES)),
    st.builds(Op, st.just("drain"), st.tuples(_NAME, st.sampled_from((True, False, False)))),
    st.builds(
        Op, st.just("health"), st.tuples(_NAME, st.sampled_from(("up", "up", "suspect", "down")))
    ),
    st.builds(Op, st.just("unregister"), st.tuples(_NAME, st.booleans())),
)
OPS = HOLDS | MOVES
FAULTS = st.sampled_from((*[None] * 9, "not written", *WRITTEN, *NOT_WRITTEN))
LATE = st.sampled_from((0, 0, 0, 0, 3, 40))
OP_IDS = st.sampled_from((None, None, "new", "new", "old"))


class KeeperMachine(RuleBasedStateMachine):
    """A keeper on a file in a folder of its own, and a clock that only the machine moves."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="keeper-", dir=SHM if SHM.is_dir() else None))
        self.generation = 0
        self.now_ms = START
        self.model = Model(START, epoch=0)
        self.ended = {}  # id -> when it was closed
        self.answered = {}  # (owner, op id) -> when
        self.history = []  # calls with an op id that were made
        self.count = 0
        self.steps = -1
        self.embedded = None
        self.open()

    # ---- the keeper's life

    @property
    def path(self):
        return self.folder / f"{self.generation}.db"

    def now(self):
        return self.now_ms

    def clock(self, high_water_ms):
        assert high_water_ms <= self.now_ms, "the store has seen a later time than there was"
        return self

    def open(self):
        self.store = FaultyStore(SqliteStore(str(self.path)))
        keeper = Keeper(self.store, strategy=STRATEGIES["first_available"], clock=self.clock)
        self.embedded = Embedded(keeper)
        self.model.restart(self.model.epoch + 1)
        self.model.foreign = {}

    def close(self):
        if self.embedded is not None:
            self.embedded.close()
            self.embedded = None

    # ---- asking

    def resolved(self, op):
        """The call with ids and descriptions in place of what stood for them; or None."""
        if op.kind == "change":
            name, how = op.args
            if name not in self.model.nodes:
                return None
            row = changed(self.model.nodes[name], how, self.model.plain(name))
            return Op("register", (row,))
        if op.kind == "move" and isinstance(op.args[0], int):
            which, move, ttl = op.args
            id = self.known_id(which, move)
            owner = op.owner if which % 5 == 0 else self.owner_of(id, op.owner)
            return replace(op, args=(id, move, ttl if move != "release" else None), owner=owner)
        return op

    def known_id(self, which, move):
        state = {"confirm": "reserved", "renew": "active"}.get(move)
        live = list(self.model.live)
        ids = [id for id in live if self.model.live[id]["state"] == state] or live
        if which % 6 == 0 or not ids:
            ids = [*list(self.model.closed)[-5:], "a9-1", "none", *live]
        return ids[which // 6 % len(ids)]

    def owner_of(self, id, otherwise):
        row = self.model.live.get(id) or self.model.closed.get(id)
        return row["owner"] if row else otherwise

    def with_op_id(self, op, kind):
        if kind == "new":
            self.count += 1
            return replace(op, op_id=f"op{self.count}")
        old = [op_id for owner, op_id in self.model.ops if owner == op.owner]
        return replace(op, op_id=old[-1]) if kind == "old" and old else op

    def run(self, ops, *, fault=None, late=0):
        """Send the calls as one batch; the model answers them one after the other."""
        ops = [op for op in map(self.resolved, ops) if op is not None]
        if not ops:
            return
        port = Answers(len(ops))
        tickets = [Ticket(op.operation(), port) for op in ops]
        self.store.arm(tickets, fault)
        self.now_ms += late
        self.model.now = self.now_ms
        self.embedded.submit(tickets)
        port.wait()
        met = fault if self.store.fault is None else None  # a refusal is not written at all
        answers = [answer_of(ticket.reply, ticket.error) for ticket in tickets]
        if met not in (None, WRITTEN[0]):
            told = "store_outcome_unknown" if met in FOR_LONG else "store_unavailable"
            assert set(answers) == {told}, f"{met}, but {answers}"
        if met is None or met in WRITTEN:
            self.model.expire()
            if met is not None:
                answers = [answer_of(*decided) for decided in self.store.decided]
            for op, answer in zip(ops, answers, strict=True):
                self.check(op, answer)
        elif self.store.own:
            self.model.expire()
        self.store.arm([], None)
        if met in FOR_LONG:
            self.model.restart()  # it is read again, with all that this brings
        self.model.expire()  # what could not be written is tried again by whoever comes next
        self.history += [op for op in ops if op.op_id is not None]

    def check(self, op, answer):
        """Hold the answer against the model, which then makes the same change."""
        key = op.owner, op.op_id
        known = self.model.ops.get(key) if op.op_id is not None else None
        if known is not None:
            body, before = known
            expected = before if body == op.body() else "operation_reused"
            assert answer == expected, f"{key} was answered {expected}, and again {answer}"
            return
        getattr(self, f"check_{op.kind}")(op, answer)
        if op.op_id is not None and not isinstance(answer, str):
            self.model.ops[key] = op.body(), answer
            self.answered[key] = self.now_ms

    def check_hold(self, op, answer):
        asks, state, ttl, holder = op.args
        self.model.hold(
            op.owner,
            asks,
            state=state,
            ttl=ttl,
            holder=holder,
            strategy="first_available",
            answer=answer,
        )

    def check_move(self, op, answer):
        id, move, ttl = op.args
        answer = answer if isinstance(answer, str) else answer[0]
        self.model.move(id, move, ttl=ttl, owner=op.owner, answer=answer)

    def check_register(self, op, answer):
        self.model.register(op.args[0], answer=only(answer))

    def check_drain(self, op, answer):
        self.model.describe(op.args[0], answer=only(answer), draining=op.args[1])

    def check_health(self, op, answer):
        self.model.describe(op.args[0], answer=only(answer), health=op.args[1])

    def check_unregister(self, op, answer):
        self.model.unregister(*op.args, answer=only(answer))

    # ---- calls

    @initialize(
        nodes=st.lists(NODES, min_size=3, max_size=3),
        holds=st.lists(HOLDS, min_size=2, max_size=4),
    )
    def begin(self, nodes, holds):
        named = map(renamed, nodes, NAMES)
        self.run([*(Op("register", (node,)) for node in named), *holds])

    @rule(op=HOLDS, op_id=OP_IDS, late=LATE, fault=FAULTS)
    def hold(self, op, op_id, late, fault):
        self.run([self.with_op_id(op, op_id)], late=late, fault=fault)

    @rule(op=MOVES, op_id=OP_IDS, late=LATE, fault=FAULTS)
    def move(self, op, op_id, late, fault):
        self.run([self.with_op_id(self.resolved(op), op_id)], late=late, fault=fault)

    @rule(op=NODE_OPS, op_id=OP_IDS, fault=FAULTS)
    def change_nodes(self, op, op_id, fault):
        op = self.resolved(op)
        if op is not None:
            op = self.with_op_id(op, op_id)
            self.run([op], fault=fault)

    @rule(
        ops=st.lists(OPS | OPS | NODE_OPS, min_size=2, max_size=6),
        twice=_WHICH,
        late=LATE,
        fault=FAULTS,
    )
    def together(self, ops, twice, late, fault):
        """Several calls in one transaction, one of them perhaps sent twice."""
        ops = [op for op in map(self.resolved, ops) if op is not None]
        if ops and twice % 2:
            place = twice // 2 % len(ops)
            ops[place] = self.with_op_id(ops[place], "new" if twice % 3 else None)
            ops.append(ops[place])
        self.run(ops, late=late, fault=fault)

    @rule(which=_WHICH, late=LATE, fault=FAULTS)
    def repeat(self, which, late, fault):
        """What was asked under an op id is asked again, long after or at once."""
        if self.history:
            self.run([self.history[which % len(self.history)]], late=late, fault=fault)

    @rule(ask=ASKS, name=_NAME)
    def fits(self, ask, name):
        ask = {**ask, "node": name, "exclude": [], "prefer": ()}
        if name in self.model.nodes:
            answer = self.embedded.run(Fits("ann", request_of(ask)))
            self.model.expire()
            assert answer == (self.model.refusal(ask) is None)

    @rule(ms=st.sampled_from((1, 20, 200, 5_000)))
    def wait(self, ms):
        self.now_ms += ms

    # ---- the store's life

    @precondition(lambda self: self.steps % 5 == 1)
    @rule()
    def restart(self):
        self.close()
        self.open()

    @precondition(lambda self: self.steps % 5 == 4)
    @rule()
    def crash(self):
        """Go on from what the files hold now, as if the process were killed."""
        old = self.path
        self.generation += 1
        for suffix in ("", "-wal"):
            shutil.copy(f"{old}{suffix}", f"{self.path}{suffix}")
        self.close()
        self.open()

    @precondition(lambda self: self.steps % 3 == 0)
    @rule(age=st.sampled_from((1, 30, 1_000)), most=st.sampled_from((1, 7, 1_000)))
    def prune(self, age, most):
        while self.embedded.run(Prune(age, most)):
            pass
        before = self.now_ms - age
        self.model.expire()
        for id, at in list(self.ended.items()):
            if at < before:
                del self.ended[id]
                del self.model.closed[id]
        for key, at in list(self.answered.items()):
            if at < before:
                del self.answered[key]
                del self.model.ops[key]
        self.history = [op for op in self.history if (op.owner, op.op_id) in self.model.ops]

    # ---- what must hold

    @invariant()
    def the_ledger_is_as_the_model_says(self):
        self.steps += 1
        self.model.now = self.now_ms
        state = self.embedded.run(DumpLedger())
        self.model.expire()
        assert check_state(state, strict_time=True) == []
        assert state_said(state) == self.model.dump()
        for id in self.model.closed:
            self.ended.setdefault(id, self.now_ms)

    def teardown(self):
        Steps.keeper += max(0, self.steps)
        try:
            if sys.exc_info()[0] is not None:
                return  # what went wrong is on its way, and says more
            wal = Path(f"{self.path}-wal")
            torn = self.torn(wal) if wal.exists() else None
            self.close()
            self.check_files(self.path)
            if torn is not None:
                self.check_files(torn, torn=True)
        finally:
            self.close()
            shutil.rmtree(self.folder)

    def torn(self, wal):
        """A copy whose log ends anywhere, as after a power cut without a sync."""
        path = self.folder / "torn.db"
        shutil.copy(self.path, path)
        written = wal.read_bytes()
        cut = random.Random(len(written)).randrange(len(written) + 1)
        Path(f"{path}-wal").write_bytes(written[:cut])
        return path

    def check_files(self, path, *, torn=False):
        """The tables are what the events lead to, and the events are lawful."""
        store = SqliteStore(str(path))
        store.open()
        try:
            contents, initial = store.load(), store.checkpoint()
            events = [event._asdict() for event in store.events(limit=100_000)]
        finally:
            store.close()
        tables = {
            "nodes": [node_row(node) for node in contents.nodes],
            "allocations": [allocation_row(held) for held in contents.allocations],
        }
        assert check_history(events, initial) == []
        assert check_rebuild(events, tables, initial) == []
        ledger = Ledger()
        ledger.load(contents.nodes, contents.allocations)
        assert check_state(dump(ledger, {}, now=self.now_ms)) == []
        if not torn:
            assert {row["id"] for row in tables["allocations"]} == set(self.model.live)
            assert {row["name"] for row in tables["nodes"]} == set(self.model.nodes)


def answer_of(reply, error):
    """Rows, or the code of an error. What is no error of ours is nobody's answer."""
    if error is not None:
        if not isinstance(error, GridError):
            raise error
        return error.code
    reply = reply.allocations if isinstance(reply, Granted) else reply
    if reply and hasattr(reply[0], "holder"):
        return [said(allocation_row(held)) for held in reply]
    return [node_said(node_row(node)) for node in reply]


def only(answer):
    """The one node of an answer; None where there is none."""
    if isinstance(answer, str):
        return answer
    return answer[0] if answer else None
