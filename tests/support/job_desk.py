"""A keeper with a queue on a real store, for tests that play users, nodes and the clock."""

from failing_store import FailingStore
from gridhand import Node
from gridhand.audit import check_history, check_rebuild, check_state
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.embedded import Embedded
from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.questions import Read
from gridhand.core.jobs.job import AttemptEnd, JobSpec, JobState, Reason
from gridhand.core.model.requests import Request
from gridhand.core.operations import DumpLedger, EndAttempts, Ended, ListEvents, Register, Submit
from until import until

START = 1_000_000


class Clock:
    def __init__(self, high_water_ms=0):
        self.ms = max(high_water_ms, START)

    def now(self):
        return self.ms


class Desk:
    """A keeper with a queue, whose clock the test moves, and what its listener was told."""

    def __init__(self, path):
        self.path = path
        self.told = []
        self.open()

    def open(self, *, paused=False):
        self.store = FailingStore(self.path)
        self.dispatch = Dispatch(lambda changes, held: self.told.extend(changes))
        if paused:
            self.dispatch.pause()
        self.keeper = Keeper(self.store, clock=Clock, dispatch=self.dispatch)
        self.backend = Embedded(self.keeper)

    def restart(self, *, paused=False):
        """Start another keeper, which starts no jobs yet if it is `paused`."""
        self.backend.close()
        self.open(paused=paused)

    @property
    def clock(self):
        return self.keeper.clock

    def ask(self, call):
        return self.backend.run(call)

    def settle(self):
        """Wait until the keeper has done what was due when this was asked."""
        until(lambda: not self.ask(Read(lambda desk: self.dispatch.due(desk.now))))

    def nodes(self, **cpus):
        self.ask(Register("ann", nodes=tuple(Node.of(name, cpu=cpu) for name, cpu in cpus.items())))

    def submit(self, cpu=1, *, owner="ann", indices=(), after=(), op_id=None, **wishes):
        work = work_of(cpu, owner, **wishes)
        ids = self.ask(Submit(owner, op_id, work, tuple(indices), tuple(after))).ids
        return ids if indices else ids[0]

    def jobs(self):
        return self.ask(Read(lambda desk: dict(desk.ledger.jobs.open)))

    def job(self, id):
        found = self.jobs().get(id)
        if found is None:
            (found,) = self.ask(find([id]))
        return found

    def state(self, id):
        return self.job(id).state

    def running(self):
        return sorted(id for id, job in self.jobs().items() if job.state is JobState.RUNNING)

    def end(self, *ids, reason=Reason.EXIT, code=0, **facts):
        ended = []
        for id in ids:
            attempt = self.job(id).attempt
            how = AttemptEnd(attempt.number, attempt.allocation, reason, code, **facts)
            ended.append(Ended(id, how))
        return self.ask(EndAttempts("gridhand", ended=tuple(ended)))

    def why(self, id):
        return self.ask(Read(lambda desk: self.dispatch.queue.why(id, desk.now)))

    def kinds(self):
        return [(change.kind, change.subject) for change in self.told]

    def check(self):
        """The ledger in memory is sound, and is what the events and the rows say."""
        dumped = self.ask(DumpLedger())
        assert check_state(dumped) == []
        events = self.ask(ListEvents(0, 100_000))
        plain = [event._asdict() for event in events]
        assert check_history(plain) == []
        assert check_rebuild(plain, dumped) == []


def find(ids):
    from gridhand.controller.jobs.job_reader import find_stored

    return find_stored(ids)


def work_of(cpu=1, owner="ann", **wishes):
    asked = {"node": wishes.pop("node")} if "node" in wishes else {}
    asked |= {"memory": wishes.pop("memory")} if "memory" in wishes else {}
    return JobSpec(owner, ("true",), "/", Request.of(cpu=cpu, **asked), **wishes)
