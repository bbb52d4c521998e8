"""A simulated world of remote nodes: machines, agents that fence themselves, a network, a ledger.

It shares no code with `Liveness` but the budget: the agents do what the budget demands of them, as
late as it allows, and the world asserts what the controller promises.
"""

from collections import Counter

from gridhand.core.liveness.budget import (
    DOWN_MS,
    HEARTBEAT_MS,
    KILL_MS,
    MOST_UNANSWERED,
    RECOVERY_GRACE_MS,
    SELF_FENCE_MS,
    SUSPECT_MS,
    TICK_MS,
)
from gridhand.core.liveness.heartbeats import Heartbeat, Receipt, Recorded
from gridhand.core.liveness.liveness import Liveness
from gridhand.core.model.nodes import Health

STEP_MS = 500
WORSE = [Health.UP, Health.SUSPECT, Health.DOWN]


class Machine:
    """A machine with one agent, which stops its jobs if nobody acknowledges its heartbeats."""

    def __init__(self, world, node):
        self.world, self.node = world, node
        self.running, self.ended = set(), set()
        self.connected, self.suspended = True, False
        self.boot()

    def boot(self):
        self.boot_id = f"boot-{self.world.number()}"
        self.running.clear()
        self.ended.clear()
        self.acked = self.world.now
        self.start_agent()

    def start_agent(self):
        """A new agent does not know more than the one before: the time of the last answer stays."""
        self.incarnation, self.sequence = self.world.number(), 0
        self.next_beat = self.world.now
        self.doomed = {}  # what is being stopped, and when it is gone at the latest

    def beat(self):
        self.sequence += 1
        running = frozenset(self.running)
        return Heartbeat(self.node, self.incarnation, self.sequence, self.boot_id, running)

    def step(self, now):
        if self.suspended:
            return
        if now - self.acked >= SELF_FENCE_MS:
            self._doom(self.running, self.acked + SELF_FENCE_MS + KILL_MS)
        self._kill(now)
        if now >= self.next_beat:
            self.next_beat = now + HEARTBEAT_MS
            self._send(now)

    def _doom(self, jobs, when):
        for job in jobs:
            self.doomed[job] = min(when, self.doomed.get(job, when))

    def _kill(self, now):
        for job in [job for job, when in self.doomed.items() if when <= now]:
            del self.doomed[job]
            self.running.discard(job)
            self.ended.add(job)

    def _send(self, now):
        beat = self.beat()
        answer = self.world.deliver(self, beat)
        if answer is None:
            return
        self._doom(self.running & set(answer.stop), now + KILL_MS)
        if answer.receipt is Receipt.SUPERSEDED:
            self._doom(self.running, now + KILL_MS)
        if answer.receipt is Receipt.TAKEN:
            self.acked = now
            self.world.report_ends(self)


class LedgerNode:
    """A node as the ledger has it."""

    def __init__(self):
        self.recorded = Recorded(Health.UP)
        self.held = set()


class World:
    def __init__(self, nodes=("n1", "n2", "n3")):
        self.now, self._number = 1_000_000, 0
        self.counts = Counter()
        self.ledger = {name: LedgerNode() for name in nodes}
        self.machines = {name: [Machine(self, name)] for name in nodes}  # the last one is current
        self.taken = dict.fromkeys(nodes, self.now)  # when each was last acknowledged
        self.vouched = dict.fromkeys(nodes, 0)  # when an administrator said that it is up
        self.taken_boot = dict.fromkeys(nodes, "")
        self.first_boot = dict.fromkeys(nodes, "")  # that this controller has heard of
        self.delivered = {name: [] for name in nodes}  # to this controller
        self.unanswered = dict.fromkeys(nodes, 0)
        self.blind_until = 0  # no silence can be expected to be noticed before
        self.frozen_until = self.away_until = 0
        self.lost = set()
        self.start_controller()

    def number(self):
        self._number += 1
        return self._number

    # ---- the controller

    def start_controller(self):
        self.liveness = Liveness(self.now)
        self.unanswered = dict.fromkeys(self.unanswered, 0)
        self.first_boot = dict.fromkeys(self.first_boot, "")
        self.delivered = {name: [] for name in self.ledger}
        self.blind_until = self.now + RECOVERY_GRACE_MS
        self.frozen_until = 0
        self.judged = self.now
        self._follow()

    def _follow(self):
        self.liveness.follow({name: node.recorded for name, node in self.ledger.items()}, self.now)

    def store_is_up(self):
        return self.now >= self.away_until

    def judge(self):
        if self.now < self.frozen_until or self.now - self.judged < TICK_MS:
            return
        if self.now - self.judged > 2 * TICK_MS:
            self.blind_until = self.now + RECOVERY_GRACE_MS
        self.judged = self.now
        self.liveness.tick(self.now)
        if self.store_is_up():
            self._follow()
            self.liveness.store_answered(self.now)
            for change in self.liveness.changes(self.now):
                self._apply(change)
            self._check_silence()

    def _apply(self, change):
        node = self.ledger[change.node]
        assert change.was is node.recorded.health
        assert WORSE.index(change.health) >= WORSE.index(node.recorded.ceiling)
        self._check_reason(change)
        self.counts[f"{change.was} to {change.health}"] += 1
        record = Recorded(change.health, node.recorded.ceiling, change.boot_id)
        self._record(change.node, record, by_hand=False)
        self.liveness.note_recorded(change.node, node.recorded, self.now)

    def _record(self, name, record, *, by_hand):
        node = self.ledger[name]
        node.recorded = record
        if record.health is Health.DOWN:
            assert not node.held & self.lost, "lost twice"
            if not by_hand:
                self.check_nothing_runs(node.held)
            self.lost |= node.held
            node.held.clear()

    def deliver(self, machine, beat):
        """The answer to a heartbeat; None if it does not arrive."""
        if not machine.connected or self.now < self.frozen_until:
            return None
        answer = self.liveness.heartbeat(beat, self.now)
        self.counts[str(answer.receipt)] += 1
        if answer.receipt is Receipt.TAKEN:
            self.taken[machine.node] = self.now
            self.taken_boot[machine.node] = beat.boot_id
            self.delivered[machine.node] = [*self.delivered[machine.node][-50:], beat]
            self.first_boot[machine.node] = self.first_boot[machine.node] or beat.boot_id
        return answer

    def report_ends(self, machine):
        node = self.ledger[machine.node]
        if self.store_is_up():
            node.held -= machine.ended
            machine.ended.clear()

    # ---- promises

    def check_nothing_runs(self, jobs):
        """Nothing of what is about to be requeued still runs: it would run twice."""
        for machines in self.machines.values():
            for machine in machines:
                if not machine.suspended:
                    assert not machine.running & jobs, "it would run twice"

    def _check_reason(self, change):
        """Nobody is declared suspect or down without a reason."""
        name, silent_ms = change.node, self.now - self.taken[change.node]
        recorded = self.ledger[name].recorded
        rebooted = self.taken_boot[name] != (recorded.boot_id or self.first_boot[name])
        if change.health is Health.DOWN and change.was is not Health.DOWN:
            assert silent_ms >= DOWN_MS or rebooted
        if change.health is Health.SUSPECT and change.was is Health.UP:
            deaf = self.unanswered[name] >= MOST_UNANSWERED
            reports = self.delivered[name]
            stale = bool(reports and reports[-1].running - self.ledger[name].held)
            assert silent_ms >= SUSPECT_MS or rebooted or deaf or stale
        if WORSE.index(change.health) < WORSE.index(change.was):
            assert silent_ms < SUSPECT_MS, "it is better without having been heard"
            assert not self.strays(name), "it is better though it runs what it does not own"

    def _check_silence(self):
        for name, node in self.ledger.items():
            heard = max(self.taken[name], self.vouched[name], self.blind_until)
            silent_ms = self.now - heard
            if silent_ms >= SUSPECT_MS:
                assert node.recorded.health is not Health.UP
            if silent_ms >= DOWN_MS:
                assert node.recorded.health is Health.DOWN

    def strays(self, name):
        """What the machine that serves a node runs and does not own."""
        return self.serving(name).running - self.ledger[name].held

    def serving(self, name):
        """The machine whose heartbeat was taken last; after a restart that may be an older one."""
        machines = self.machines[name]
        boot_id = self.taken_boot[name]
        return next((one for one in machines if one.boot_id == boot_id), machines[-1])

    # ---- what happens

    def wait(self, ms):
        for _ in range(max(1, ms // STEP_MS)):
            self.now += STEP_MS
            for machines in self.machines.values():
                for machine in machines:
                    machine.step(self.now)
            self.judge()

    def cut(self, name):
        self.machines[name][-1].connected = False

    def heal(self, name):
        for machine in self.machines[name]:
            machine.connected = True

    def suspend(self, name):
        self.machines[name][-1].suspended = True

    def resume(self, name):
        machine = self.machines[name][-1]
        machine.suspended = False
        machine.step(self.now)

    def reboot(self, name):
        machine = self.machines[name][-1]
        if not machine.suspended:
            machine.boot()

    def restart_agent(self, name):
        self.machines[name][-1].start_agent()

    def take_name(self, name):
        """Another machine claims the name, with a higher incarnation."""
        self.machines[name] = [*self.machines[name][-2:], Machine(self, name)]

    def repeat_heartbeat(self, name, back):
        """An earlier heartbeat arrives once more, and changes nothing."""
        taken = self.delivered[name]
        if taken and self.now >= self.frozen_until:
            before = self.liveness.last_heard(name)
            answer = self.liveness.heartbeat(taken[-min(back, len(taken))], self.now)
            assert answer.receipt is not Receipt.TAKEN
            assert self.liveness.last_heard(name) == before

    def ignore_orders(self, name, count):
        for _ in range(count):
            self.liveness.order_unanswered(name)
        self.unanswered[name] += count

    def answer_order(self, name):
        self.liveness.order_answered(name, self.now)
        self.unanswered[name] = 0

    def restart_controller(self, gone_ms):
        self.frozen_until = self.now + gone_ms + STEP_MS
        self.wait(gone_ms)
        self.start_controller()

    def freeze_controller(self, ms):
        self.frozen_until = self.now + ms

    def lose_store(self, ms):
        self.away_until = self.now + ms

    def set_health(self, name, health):
        """By hand; an administrator says `up` only if nothing runs there that should not."""
        node = self.ledger[name]
        if not self.store_is_up() or (health is Health.UP and self.strays(name)):
            return
        ceiling = health
        self._record(name, Recorded(health, ceiling, node.recorded.boot_id), by_hand=True)
        self.liveness.note_recorded(name, node.recorded, self.now)
        if health is Health.UP:
            self.vouched[name] = self.now

    def start_job(self, name):
        """Grant something, if the node is up, and start it there if the order arrives."""
        node, machine = self.ledger[name], self.serving(name)
        if node.recorded.health is not Health.UP or not self.store_is_up():
            return
        job = f"a1-{self.number()}"
        node.held.add(job)
        if machine.connected and not machine.suspended and not machine.doomed:
            assert not self.strays(name) - {job}, "something new starts beside what is stale"
            machine.running.add(job)
            self.counts["started"] += 1

    def end_job(self, name):
        machine = self.machines[name][-1]
        for job in sorted(machine.running)[:1]:
            machine.running.discard(job)
            machine.ended.add(job)
