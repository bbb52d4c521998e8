"""Every order of calls, ends, losses, failing commits and restarts, on a controller and its file.

The keeper's thread is real, so is the file; the node is fake, and outlives the controllers.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from controller_place import Place
from gridhand.controller.keeper.questions import Read
from gridhand.core.errors import GridError, OutcomeUnknown, StoreUnavailable
from gridhand.core.jobs.job import After, Condition, JobState
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.ledger.allocations import Lifetime, Terms
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, MoveAllocation, SetHealth

SHM = Path("/dev/shm")
RETRY = RetryPolicy(tries=2, delay_ms=0)
FAULTS = {
    "not written": lambda: StoreUnavailable("full, says the machine"),
    "lost before": lambda: OutcomeUnknown("gone, says the machine"),
    "lost after": lambda: (OutcomeUnknown("gone, says the machine"), True),
}
INDEX = st.integers(0, 10_000)
BY_HAND = Read(
    lambda desk: [id for id, held in desk.ledger.live.items() if held.lifetime is not Lifetime.JOB]
)


class Steps:
    """How many were taken, of all examples together."""

    count = 0
    waiting = 0  # and how many were seen to be lined up
    within = 0  # and to run in what is held by hand


class ControllerMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.folder = tempfile.mkdtemp(dir=SHM if SHM.is_dir() else None)
        self.loop = asyncio.new_event_loop()
        self.place = Place(self.folder + "/home", cpu=5)
        self.engine = self.place.engine
        self.wiped = Counter()
        self.ops = 0
        self.do(self.place.open())
        self.hold(1)
        # Of these some are lined up once it is known how short they are.
        self.submit(2, 9, 1, False)
        self.breathe(10)
        self.end(0, 0, True)
        for cpu in (1, 2, 3):
            self.submit(cpu, 0, 1, False)
        self.submit_within(0)

    def do(self, work):
        Steps.count += 1
        return self.loop.run_until_complete(work)

    async def called(self, what, *args, **more):
        return what(*args, **more)

    def some(self, index, those):
        those = sorted(those)
        return those[index % len(those)] if those else None

    # ---- what users do

    @rule(cpu=st.integers(1, 4), count=st.integers(0, 9), after=INDEX, tries=st.booleans())
    def submit(self, cpu, count, after, tries):
        self.ops += 1
        more = {"op_id": f"op{self.ops}", "indices": tuple(range(count))}
        if after % 3 == 0 and (first := self.some(after, self.open_ids())):
            more["after"] = (After(first, self.some(after, Condition)),)
        self.do(self.submitted(cpu, {**more, **({"retry": RETRY} if tries else {})}))

    @rule(cpu=st.integers(1, 2), fault=st.sampled_from(sorted(FAULTS)))
    def submit_in_vain(self, cpu, fault):
        """The client is told that it failed, whether that is so or not."""
        self.fail_next(fault)
        self.submit(cpu, 0, 1, True)

    @rule(which=INDEX, fault=st.sampled_from(sorted(FAULTS)))
    def end_in_vain(self, which, fault):
        """The end, and what is started in its place, are written at the second try."""
        self.fail_next(fault)
        self.end(which, 0, True)
        self.breathe(10)

    async def submitted(self, cpu, more):
        with contextlib.suppress(GridError):
            await self.place.submit(cpu, environment={"OP": more["op_id"]}, **more)

    @precondition(lambda self: self.ops)
    @rule(which=INDEX)
    def submit_again(self, which):
        """As a client does that was not answered: mostly with another body, which is refused."""
        op_id = f"op{which % self.ops + 1}"
        self.do(self.submitted(1, {"op_id": op_id}))

    @rule(which=INDEX)
    def cancel(self, which):
        if id := self.some(which, self.open_ids()):
            self.do(self.asked(self.place.controller.cancel("ann", [id])))

    async def asked(self, call):
        with contextlib.suppress(GridError):
            return await call

    @rule(cpu=st.integers(1, 2))
    def hold(self, cpu):
        call = Allocate("ann", requests=(Request.of(cpu=cpu),), terms=Terms("ann"))
        self.do(self.asked(self.place.controller.ask(call)))

    @rule(which=INDEX)
    def submit_within(self, which):
        if held := self.some(which, self.held_ids()):
            self.ops += 1
            self.do(self.submitted(1, {"op_id": f"op{self.ops}", "within": held}))
            Steps.within += bool(self.do(self.inside(held)))

    @rule(which=INDEX)
    def let_go(self, which):
        if held := self.some(which, self.held_ids()):
            self.do(self.asked(self.place.controller.ask(MoveAllocation("ann", id=held))))

    def held_ids(self):
        return self.do(self.asked(self.place.controller.ask(BY_HAND))) or []

    async def inside(self, held):
        question = Read(lambda desk: desk.ledger.jobs.count(held))
        return await self.asked(self.place.controller.ask(question))

    def open_ids(self):
        question = Read(lambda desk: list(desk.ledger.jobs.open))
        return self.do(self.asked(self.place.controller.ask(question))) or []

    # ---- what happens on the node

    @rule(which=INDEX, code=st.integers(0, 1), tell=st.booleans())
    def end(self, which, code, tell):
        self.do(self.ended(which, code=code, tell=tell))

    async def ended(self, which, **how):
        """One is chosen when it is this one's turn: what went before may have ended some."""
        if key := self.some(which, filter(self.engine.begun, self.engine.running)):
            self.engine.end(key, **how)

    @rule(which=INDEX)
    def give_back(self, which):
        self.do(self.given_back(which))

    async def given_back(self, which):
        if key := self.some(which, self.waiting()):
            self.engine.give_back(key)

    def waiting(self):
        found = [key for key in self.engine.running if not self.engine.begun(key)]
        Steps.waiting += len(found)
        return found

    @rule(which=INDEX, reason=st.sampled_from(["node_lost", "agent_lost", "oom"]))
    def lose_one(self, which, reason):
        self.do(self.ended(which, reason=reason, code=None))

    @rule()
    def go_away(self):
        self.engine.away = True

    @rule(wipe=st.booleans())
    def come_back(self, wipe):
        if wipe and self.engine.away:
            self.wiped.update(list(self.engine.running))
            self.engine.running.clear()
        self.do(self.called(self.engine.come_back))

    @rule()
    def wipe(self):
        """Nothing is left of what ran there, as after a new machine took its name."""
        self.engine.away = True
        self.come_back(True)

    @rule(immediate=st.booleans())
    def stop_at_once(self, immediate):
        self.engine.immediate = immediate

    # ---- what else happens

    @rule(health=st.sampled_from(Health))
    def set_health(self, health):
        call = SetHealth("ann", name="n1", health=health)
        self.do(self.asked(self.place.controller.ask(call)))

    @rule(fault=st.sampled_from(sorted(FAULTS)))
    def fail_next(self, fault):
        self.place.store.faults.append(FAULTS[fault]())

    @rule(turns=st.integers(1, 20))
    def breathe(self, turns):
        self.do(self.turned(turns))

    async def turned(self, turns):
        """Let both threads go on for a while, wherever they are then."""
        for _ in range(turns):
            await asyncio.sleep(0.0001)

    @rule(kill=st.booleans())
    def restart(self, kill):
        self.do(self.restarted(kill))

    async def restarted(self, kill):
        await (self.place.kill() if kill else self.place.close())
        await self.place.open()

    # ---- what must always be so

    @rule()
    def settle(self):
        self.do(self.settled())

    async def settled(self):
        place, engine = self.place, self.engine
        place.store.faults.clear()
        if engine.away:
            return
        for key in list(engine.ended):
            place.controller.runner.ended([engine.ended[key]])  # what was not told
        await place.until(lambda: place.engine.ended == {})
        await place.quiet()
        await place.until(lambda: not place.controller._keeper._doubt)  # which mends itself
        await place.until(lambda: len(place.controller.runner._tasks) <= 2)  # those that stay
        await place.quiet()
        await self.check()

    async def check(self):
        live = await self.place.controller.ask(Read(lambda desk: set(desk.ledger.live)))
        stopped = {key for key, _ in self.engine.stops}
        for key, report in self.engine.running.items():
            assert report.fence in live or key in stopped, f"{key} runs, and holds nothing"
        started, fences = Counter(order.key for order in self.engine.orders), {}
        for key, count in started.items():
            assert count <= 1 + self.wiped[key], f"{key} was started {count} times"
        for order in self.engine.orders:
            assert fences.setdefault(order.key, order.fence) == order.fence
        await self.place.check()
        assert self.place.controller.failure is None

    def teardown(self):
        if not hasattr(self, "place"):
            return
        try:
            if self.place.controller is not None:
                self.loop.run_until_complete(self.finished())
        finally:
            self.loop.run_until_complete(self.place.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    async def finished(self):
        """Everything comes to its end, and then nothing is held, kept or known any more."""
        place, engine = self.place, self.engine
        engine.immediate = True
        if engine.away:
            engine.come_back()
        place.store.faults.clear()
        await self.asked(place.controller.ask(SetHealth("ann", name="n1", health=Health.UP)))
        end = asyncio.get_running_loop().time() + 60
        while await self.left():
            assert asyncio.get_running_loop().time() < end, await self.standing()
            for held in await self.asked(place.controller.ask(BY_HAND)) or []:
                await self.asked(place.controller.ask(MoveAllocation("ann", id=held)))
            for key in [key for key in engine.running if engine.begun(key)]:
                engine.end(key)
            for key in list(engine.ended):
                place.controller.runner.ended([engine.ended[key]])
            await asyncio.sleep(0.001)
        await self.settled()
        held = await place.controller.ask(Read(lambda desk: list(desk.ledger.live)))
        assert held == []
        assert engine.running == {}
        await self.restarted(kill=False)
        assert place.environments() == []

    async def standing(self):
        """Return what has not come to its end, for the message of a failure."""
        runner, engine = self.place.controller.runner, self.engine
        jobs = Read(lambda desk: [repr(job) for job in desk.ledger.jobs.open.values()])
        nodes = Read(lambda desk: [repr(use.node) for use in desk.ledger.nodes.values()])
        leftovers = Read(lambda desk: desk.ledger.leftovers.attempts())
        asked = [await self.place.controller.ask(one) for one in (jobs, nodes, leftovers, BY_HAND)]
        return (
            f"left: {asked}; runner: {runner._fences} {runner._strangers} {runner._awaited}"
            f" {runner._ends} {runner._writing} {runner._tasks} {list(runner._outbox)};"
            f" engine: {engine.running} {engine.ended} {engine.away}"
        )

    async def left(self):
        counts = Read(lambda desk: [job.state for job in desk.ledger.jobs.open.values()])
        open_states = await self.place.controller.ask(counts)
        if await self.place.controller.ask(BY_HAND):
            return True
        return JobState.RUNNING in open_states or JobState.QUEUED in open_states
