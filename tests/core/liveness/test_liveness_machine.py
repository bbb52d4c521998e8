"""Every order of silence, returns, reboots, take-overs, restarts and outages, in a simulated world."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from example_budget import examples
from gridhand.core.model.nodes import Health
from remote_world import World

NODES = st.sampled_from(["n1", "n2", "n3"])
TIMES = st.sampled_from([500, 1_000, 3_000, 5_000, 9_500, 12_000, 18_000, 29_000, 45_000])


class LivenessMachine(RuleBasedStateMachine):
    """The promises are asserted by the world, at each of its steps."""

    def __init__(self):
        super().__init__()
        self.world = World()

    @rule(ms=TIMES)
    def wait(self, ms):
        self.world.wait(ms)

    @rule(node=NODES)
    def start_job(self, node):
        self.world.start_job(node)

    @rule(node=NODES)
    def end_job(self, node):
        self.world.end_job(node)

    @rule(node=NODES)
    def cut(self, node):
        self.world.cut(node)

    @rule(node=NODES)
    def heal(self, node):
        self.world.heal(node)

    @rule(node=NODES)
    def suspend(self, node):
        self.world.suspend(node)

    @rule(node=NODES)
    def resume(self, node):
        self.world.resume(node)

    @rule(node=NODES)
    def reboot(self, node):
        self.world.reboot(node)

    @rule(node=NODES)
    def restart_agent(self, node):
        self.world.restart_agent(node)

    @rule(node=NODES)
    def take_name(self, node):
        self.world.take_name(node)

    @rule(node=NODES, back=st.integers(1, 50))
    def repeat_heartbeat(self, node, back):
        self.world.repeat_heartbeat(node, back)

    @rule(node=NODES, count=st.integers(1, 4))
    def ignore_orders(self, node, count):
        self.world.ignore_orders(node, count)

    @rule(node=NODES)
    def answer_order(self, node):
        self.world.answer_order(node)

    @rule(ms=TIMES)
    def restart_controller(self, ms):
        self.world.restart_controller(ms)

    @rule(ms=TIMES)
    def freeze_controller(self, ms):
        self.world.freeze_controller(ms)

    @rule(ms=st.sampled_from([5_000, 60_000, 119_000, 150_000, 300_000]))
    def lose_store(self, ms):
        self.world.lose_store(ms)

    @rule(node=NODES, health=st.sampled_from(list(Health)))
    def set_health(self, node, health):
        self.world.set_health(node, health)


TestLiveness = LivenessMachine.TestCase
TestLiveness.settings = settings(max_examples=examples(40), stateful_step_count=40)


@pytest.mark.parametrize("steps", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_long_life_of_one_controller(steps):
    """Rows 35, 37 to 43, 46, 47 and 49, over and over, in one world that is never made anew."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance, world = random.Random(seed), World()
    for _ in range(steps):
        _take_step(chance, world)
    print(dict(sorted(world.counts.items())))
    if steps < 100_000:
        return  # too few for everything to happen for sure
    for happened in ("up to suspect", "suspect to down", "down to up", "superseded", "unconfirmed"):
        assert world.counts[happened], f"{happened} did not happen"


def _take_step(chance, world):
    node = chance.choice(list(world.ledger))
    times = (500, 3_000, 9_500, 12_000, 29_000, 45_000)
    steps = {
        lambda: world.wait(chance.choice(times)): 30,
        lambda: world.start_job(node): 20,
        lambda: world.end_job(node): 5,
        lambda: world.cut(node): 6,
        lambda: world.heal(node): 12,
        lambda: world.suspend(node): 3,
        lambda: world.resume(node): 6,
        lambda: world.reboot(node): 3,
        lambda: world.restart_agent(node): 3,
        lambda: world.take_name(node): 2,
        lambda: world.repeat_heartbeat(node, chance.randint(1, 50)): 4,
        lambda: world.ignore_orders(node, chance.randint(1, 4)): 2,
        lambda: world.answer_order(node): 4,
        lambda: world.restart_controller(chance.choice(times)): 1,
        lambda: world.freeze_controller(chance.choice(times)): 1,
        lambda: world.lose_store(chance.choice((5_000, 60_000, 150_000, 300_000))): 1,
        lambda: world.set_health(node, chance.choice(list(Health))): 2,
        lambda: world.set_health(node, Health.UP): 4,
    }
    chance.choices(list(steps), list(steps.values()))[0]()
