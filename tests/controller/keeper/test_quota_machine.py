"""Whatever is submitted, ended, lost, reloaded or not written: no quota is exceeded, none wasted."""

import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from example_budget import examples
from gridhand import OverLimit, QuotaExceeded, StoreUnavailable, UnknownQueue
from gridhand.controller.keeper.questions import Read
from gridhand.core.jobs.job import JobState, Reason
from gridhand.core.jobs.scopes import Scope
from gridhand.core.observations import UseQueues
from gridhand.core.operations import Cancel
from gridhand.core.queue.named_queues import NamedQueues, QueueRules, Quota
from job_desk import Desk

UNIT = 10_000
OWNERS = st.sampled_from(["ann", "bob"])
QUEUES = st.sampled_from([None, "p", "q"])
CORES = st.integers(1, 3)

SELDOM = st.integers(0, 5).map(lambda number: number == 5)

quotas = st.builds(
    lambda cpu, running, queued: Quota(
        {} if cpu is None else {"cpu": cpu * UNIT}, {}, running, queued
    ),
    st.none() | st.integers(2, 4),
    st.none() | st.integers(0, 4),
    st.none() | st.integers(4, 8),
)
owner_quotas = st.fixed_dictionaries({}, optional={"ann": quotas, "*": quotas})
queue_quotas = st.fixed_dictionaries(
    {"p": st.tuples(quotas, quotas)}, optional={"q": st.tuples(quotas, quotas)}
)


class QuotaMachine(RuleBasedStateMachine):
    """A keeper with more room than is ever used, so that only quotas make jobs wait."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.desk = Desk(str(Path(self.folder.name) / "ledger.db"))
        self.desk.nodes(a=10_000)
        self.owners = {}  # quotas by owner
        self.queues = {}  # pairs of quotas by queue: of all jobs, and of each owner
        self.before_reload = set()  # attempts that ran when quotas changed

    def teardown(self):
        self.desk.check()
        self.desk.backend.close()
        self.folder.cleanup()

    # ---- what happens

    @initialize(owners=owner_quotas, queues=queue_quotas)
    def begin(self, owners, queues):
        self.reload(owners, queues)

    @rule(owner=OWNERS, queue=QUEUES, cpu=CORES, tasks=st.integers(0, 4), fails=SELDOM)
    def submit(self, owner, queue, cpu, tasks, fails):
        self.fail(fails)
        with suppress(OverLimit, QuotaExceeded, UnknownQueue, StoreUnavailable):
            self.desk.submit(cpu, owner=owner, queue=queue, indices=range(tasks))
        self.desk.store.faults = []

    @precondition(lambda self: self.desk.running())
    @rule(data=st.data(), lost=SELDOM, fails=SELDOM)
    def end(self, data, lost, fails):
        id = data.draw(st.sampled_from(self.desk.running()))
        self.desk.clock.ms += 2
        self.fail(fails)
        with suppress(StoreUnavailable):
            self.desk.end(id, reason=Reason.NODE_LOST if lost else Reason.EXIT, ran_ms=2)
        self.desk.store.faults = []

    @precondition(lambda self: self.desk.jobs())
    @rule(data=st.data())
    def cancel(self, data):
        job = self.desk.job(data.draw(st.sampled_from(sorted(self.desk.jobs()))))
        self.desk.ask(Cancel(job.work.owner, ids=(job.id,)))

    @rule(data=st.data(), change=st.sampled_from(["quotas", "keeper", "ledger"]))
    def read_again(self, data, change):
        if change == "quotas":
            self.reload(data.draw(owner_quotas), data.draw(queue_quotas))
        elif change == "keeper":
            self.desk.restart(paused=True)
            self.apply()
            self.desk.dispatch.resume()
        else:
            self.desk.keeper._load()
            self.desk.dispatch.look_again()

    def reload(self, owners, queues):
        self.owners, self.queues = owners, queues
        self.apply()

    def fail(self, fails):
        self.desk.store.faults = [StoreUnavailable("full")] if fails else []

    def apply(self):
        rules = {
            name: QueueRules(name, quota=of_all, owner_quota=of_each)
            for name, (of_all, of_each) in self.queues.items()
        }
        self.before_reload = {attempt_of(job) for job in self.running()}
        self.desk.ask(UseQueues(NamedQueues(rules, self.owners)))
        self.desk.ask(Cancel("ann", ids=()))  # in a batch of its own, after which it counts

    # ---- what holds, recounted

    def running(self):
        jobs = self.desk.jobs().values()
        return [job for job in jobs if job.state is JobState.RUNNING]

    def quota_of(self, owner, queue):
        if queue is None:
            return self.owners.get(owner) or self.owners.get("*") or Quota()
        return self.queues.get(queue, (Quota(), Quota()))[owner is not None]

    def scopes(self, job):
        owner, queue = job.work.owner, job.work.queue
        return [(owner, None)] + ([] if queue is None else [(None, queue), (owner, queue)])

    def used(self, scope):
        """The cores and the number of allocations of a scope, and the attempts that hold them."""
        jobs = [job for job in self.running() if scope in self.scopes(job)]
        held = {job.attempt.allocation: job.request.amounts["cpu"] for job in jobs}
        return sum(held.values()), len(held), {attempt_of(job) for job in jobs}

    @invariant()
    def no_quota_is_exceeded_but_by_what_ran_before_it_was_set(self):
        self.desk.settle()
        for scope in {scope for job in self.running() for scope in self.scopes(job)}:
            cpu, count, attempts = self.used(scope)
            limit = self.quota_of(*scope)
            if not attempts <= self.before_reload:
                assert cpu <= limit.running.get("cpu", cpu), (scope, limit)
                most_jobs = limit.max_running_jobs
                assert count <= (count if most_jobs is None else most_jobs), (scope, limit)

    @invariant()
    def what_waits_is_over_a_quota_and_says_so(self):
        for job in self.desk.jobs().values():
            if job.state is not JobState.QUEUED or job.not_before is not None:
                continue
            assert any(self.is_full(scope, job) for scope in self.scopes(job)), job.id
            assert self.desk.why(job.id).startswith("quota: ")

    def is_full(self, scope, job):
        (cpu, count, _), limit = self.used(scope), self.quota_of(*scope)
        asked = job.request.amounts["cpu"]
        over = limit.max_running_jobs is not None and count >= limit.max_running_jobs
        return over or cpu + asked > limit.running.get("cpu", cpu + asked)

    @invariant()
    def tallies_are_what_is_open(self):
        jobs = self.desk.jobs().values()
        for scope in {scope for job in jobs for scope in self.scopes(job)}:
            here = [job for job in jobs if scope in self.scopes(job)]
            queued = [job for job in here if job.state is JobState.QUEUED]
            tally = self.desk.ask(Read(lambda at, key=scope: at.ledger.jobs.tallies[Scope(*key)]))
            asked = sum(job.request.amounts["cpu"] for job in queued)
            assert (tally.open, tally.queued) == (len(here), len(queued))
            assert tally.asked.get("cpu", 0) == asked


def attempt_of(job):
    return job.id, job.attempt.number


TestQuotas = QuotaMachine.TestCase
TestQuotas.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
