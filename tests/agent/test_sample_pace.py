"""When samples are taken: every ten seconds, more often while somebody asks, soon for new jobs."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gridhand.agent.sample_pace import LEAST_MS, USUAL_MS, SamplePace


class Paces(RuleBasedStateMachine):
    """Every order of requests, samples and time; the model is a list of requests."""

    @initialize()
    def begin(self):
        self.now = 0
        self.pace = SamplePace(lambda: self.now)
        self.last, self.soon, self.asked = 0, True, []

    @rule(every=st.sampled_from([1000, 2000, 60_000]), how_long=st.integers(0, 30_000))
    def ask(self, every, how_long):
        self.pace.ask(every, how_long)
        self.asked.append((every, self.now + how_long))

    @rule()
    def ask_soon(self):
        self.pace.ask_soon()
        self.soon = True

    @rule(passed=st.integers(1, 12_000))
    def wait(self, passed):
        self.now += passed

    @rule()
    def sample(self):
        assert self.pace.taken() == self.now - self.last
        self.last, self.soon = self.now, False

    @invariant()
    def it_is_due_when_the_most_impatient_wants_it(self):
        paces = [every for every, end in self.asked if end > self.now]
        wanted = LEAST_MS if self.soon else min([USUAL_MS, *paces])
        assert self.pace.left_ms() == max(0, self.last + wanted - self.now)


Paces.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestPaces = Paces.TestCase
