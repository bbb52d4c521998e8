"""What heartbeats, and their absence, do to the health of remote nodes."""

import pytest

from gridhand.core.liveness import budget
from gridhand.core.liveness.budget import HEARTBEAT_MS, RECOVERY_GRACE_MS, STORE_GRACE_MS
from gridhand.core.liveness.heartbeats import Heartbeat, Receipt, Recorded
from gridhand.core.liveness.liveness import Liveness
from gridhand.core.model.nodes import Health

SECOND = 1000


class Watch:
    """A `Liveness` with a ledger that takes every change at once, unless the store is away."""

    def __init__(self, *nodes, **recorded):
        self.now, self.away = 0, False
        self.ledger = {name: Recorded(Health.UP) for name in nodes} | recorded
        self.history = []  # what changed, in order
        self.sequence = 0
        self.restart()
        self.wait(RECOVERY_GRACE_MS // SECOND)

    def restart(self):
        self.liveness = Liveness(self.now)
        self.liveness.follow(self.ledger, self.now)

    def beat(self, node="n1", incarnation=1, boot="b1", running=(), sequence=None):
        self.sequence += 1
        number = self.sequence if sequence is None else sequence
        beat = Heartbeat(node, incarnation, number, boot, frozenset(running))
        answer = self.liveness.heartbeat(beat, self.now)
        self.judge()
        return answer

    def judge(self):
        self.liveness.tick(self.now)
        if self.away:
            return
        self.liveness.follow(self.ledger, self.now)
        self.liveness.store_answered(self.now)
        for name, was, health, why, boot_id in self.liveness.changes(self.now):
            if health is not was:
                self.history.append((name, str(health), why))
            self.ledger[name] = Recorded(health, self.ledger[name].ceiling, boot_id)
            self.liveness.note_recorded(name, self.ledger[name], self.now)

    def wait(self, seconds, **beats):
        """Let time pass; with `beats`, heartbeats arrive all the while."""
        for second in range(round(seconds)):
            self.now += SECOND
            if beats and second % (HEARTBEAT_MS // SECOND) == 0:
                self.beat(**beats)
            self.judge()

    def health(self, node="n1"):
        return str(self.ledger[node].health)

    def changes(self):
        return [health for _, health, _ in self.history]

    def set_health(self, health, node="n1"):
        """By hand: the health is a ceiling from now on."""
        self.ledger[node] = Recorded(Health(health), Health(health), self.ledger[node].boot_id)
        self.judge()


@pytest.fixture
def watch():
    watch = Watch("n1")
    watch.beat()
    return watch


# ---- the budget


def test_the_budget_adds_up():
    """10 s suspect, 15 s the agent stops its jobs, + 10 s kill, + 3 s margin = 28 s down, of 30."""
    seconds = [
        value // SECOND
        for value in (
            budget.SUSPECT_MS,
            budget.SELF_FENCE_MS,
            budget.KILL_MS,
            budget.MARGIN_MS,
            budget.DOWN_MS,
            budget.PROMISED_MS,
        )
    ]
    assert seconds == [10, 15, 10, 3, 28, 30]
    assert 15 + 10 + 3 == 28
    assert budget.STORE_GRACE_MS == 120 * SECOND


def test_the_budget_is_consistent():
    """No new work before jobs stop; jobs have stopped before down; down is noticed as promised."""
    assert 3 * budget.HEARTBEAT_MS < budget.SUSPECT_MS < budget.SELF_FENCE_MS
    assert budget.SELF_FENCE_MS + budget.KILL_MS < budget.DOWN_MS
    assert budget.DOWN_MS + budget.TICK_MS < budget.PROMISED_MS
    assert budget.TICK_MS * 2 < budget.DEAF_MS < budget.SUSPECT_MS


# ---- silence


def test_t10_silent_for_10_s_is_suspect_and_for_28_s_down(watch):
    """T10: suspect means no new work; down frees and requeues, in the ledger, once."""
    watch.wait(9)
    assert watch.health() == "up"
    watch.wait(1)
    assert watch.health() == "suspect"
    watch.wait(17)
    assert watch.health() == "suspect"
    watch.wait(1)
    assert watch.health() == "down"
    watch.wait(1000)
    assert watch.changes() == ["suspect", "down"]
    assert watch.history[-1] == ("n1", "down", "no heartbeat for 28 s")


def test_a_node_that_is_heard_stays_up(watch):
    watch.wait(3600, incarnation=1)
    assert watch.changes() == []


def test_37_a_partition_that_heals_in_time_leaves_everything_alone(watch):
    """Row 37."""
    watch.wait(27)
    answer = watch.beat(running=["a1-1"])
    assert (answer.receipt, answer.stop) == (Receipt.TAKEN, ())
    assert watch.changes() == ["suspect", "up"]


def test_38_what_it_no_longer_owns_is_stopped_before_anything_new_starts(watch):
    """Row 38: it is down, and stays so until it says that nothing runs there."""
    watch.wait(28)
    assert watch.beat(running=["a1-2", "a1-1"]).stop == ("a1-1", "a1-2")
    watch.wait(60, running=["a1-2"])
    assert watch.health() == "down"
    assert watch.beat(running=[]).stop == ()
    assert watch.health() == "up"
    assert watch.changes() == ["suspect", "down", "up"]


def test_a_restart_of_the_controller_forgets_no_obligation():
    watch = Watch(n1=Recorded(Health.DOWN, boot_id="b1"))
    assert watch.beat(running=["a1-1"]).stop == ("a1-1",)
    assert watch.health() == "down"
    watch.beat()
    assert watch.health() == "up"


@pytest.mark.parametrize("health", ["suspect", "down"])
def test_a_node_that_returns_to_a_new_controller_is_up_at_once(health):
    watch = Watch(n1=Recorded(Health(health), boot_id="b1"))
    watch.liveness = Liveness(watch.now, grace_ms=budget.TAKE_OVER_GRACE_MS)
    watch.wait(2)
    watch.beat()
    assert watch.health() == "up"


def test_35_a_machine_that_was_suspended_is_a_silent_one(watch):
    """Row 35: it owns nothing when it resumes, with the same boot, agent and numbers."""
    watch.wait(600)
    assert watch.health() == "down"
    assert watch.beat(running=["a1-1"]).stop == ("a1-1",)
    assert watch.health() == "down"


# ---- orders, duplicates, agents


def test_39_heard_but_not_answering_is_suspect(watch):
    """Row 39: three orders in a row; it never is down by that, and one answer suffices."""
    for _ in range(2):
        watch.liveness.order_unanswered("n1")
    watch.wait(30, incarnation=1)
    assert watch.health() == "up"
    watch.liveness.order_unanswered("n1")
    watch.wait(100, incarnation=1)
    assert watch.changes() == ["suspect"]
    watch.liveness.order_answered("n1", watch.now)
    watch.wait(3, incarnation=1)
    assert watch.changes() == ["suspect", "up"]


def test_40_a_heartbeat_that_is_sent_again_counts_with_a_number_of_its_own(watch):
    """Row 40: its answer was lost; only what is acknowledged puts off the agent's fencing."""
    watch.wait(9)
    assert watch.beat(sequence=100).receipt is Receipt.TAKEN
    watch.wait(5)
    assert watch.beat(sequence=100).receipt is Receipt.OLD
    assert watch.beat(sequence=101).receipt is Receipt.TAKEN


def test_41_duplicated_and_reordered_heartbeats_are_dropped(watch):
    """Row 41: they neither count as heard nor say what runs."""
    watch.beat(sequence=7)
    for sequence in (7, 6, 1):
        watch.wait(5)
        assert watch.beat(sequence=sequence, running=["a1-1"]).receipt is Receipt.OLD
    assert watch.health() == "suspect"
    watch.wait(13)
    assert watch.health() == "down"
    assert watch.beat(sequence=7).receipt is Receipt.OLD
    assert watch.health() == "down"
    assert watch.beat(sequence=8).receipt is Receipt.TAKEN
    assert watch.health() == "up"


def test_42_a_new_agent_of_the_same_boot_takes_nothing_away(watch):
    """Row 42: its numbers begin anew, and its jobs are left alone."""
    watch.wait(5)
    assert watch.beat(incarnation=2, sequence=0, running=["a1-1"]).stop == ()
    watch.wait(60, incarnation=2, running=["a1-1"])
    assert watch.changes() == []


def test_43_after_a_reboot_what_ran_there_is_lost_once(watch):
    """Row 43: suspect at once; down when the earlier boot has certainly stopped; then up."""
    watch.wait(5)
    watch.beat(incarnation=2, boot="b2")
    assert watch.health() == "suspect"
    watch.wait(22, incarnation=2, boot="b2")
    assert watch.health() == "suspect"
    watch.wait(100, incarnation=2, boot="b2")
    assert watch.changes() == ["suspect", "down", "up"]
    assert watch.ledger["n1"].boot_id == "b2"


def test_43_a_reboot_while_the_controller_was_away_is_noticed():
    watch = Watch(n1=Recorded(Health.UP, boot_id="b1"))
    watch.wait(60, incarnation=9, boot="b2")
    assert watch.changes() == ["suspect", "down", "up"]


def test_43_what_was_ordered_before_the_reboot_was_noticed_is_stopped_first(watch):
    """It would be lost by the ledger and run all the same."""
    watch.wait(5)
    answer = watch.beat(incarnation=2, boot="b2", running=["a1-9"])
    assert answer.stop == ("a1-9",)
    watch.wait(60, incarnation=2, boot="b2", running=["a1-9"])
    assert watch.changes() == ["suspect"]
    watch.wait(9, incarnation=2, boot="b2")
    assert watch.changes() == ["suspect", "down", "up"]


def test_43_a_reboot_of_a_node_that_is_down_already_loses_nothing_more(watch):
    watch.wait(40)
    watch.beat(incarnation=2, boot="b2")
    watch.wait(60, incarnation=2, boot="b2")
    assert watch.changes() == ["suspect", "down", "up"]


def test_46_of_two_agents_the_higher_incarnation_wins(watch):
    """Row 46: the other one is refused from then on, and told which one serves the node."""
    assert watch.beat(incarnation=5).receipt is Receipt.TAKEN
    refused = watch.beat(incarnation=4)
    assert (refused.receipt, refused.incarnation) == (Receipt.SUPERSEDED, 5)
    watch.wait(28, incarnation=4)
    assert watch.health() == "down"


def test_46_two_machines_with_the_same_incarnation_the_first_stays(watch):
    """A cloned machine."""
    assert watch.beat(boot="b2").receipt is Receipt.SUPERSEDED
    assert watch.beat(boot="b1").receipt is Receipt.TAKEN


def test_46_another_machine_takes_over_when_the_first_has_certainly_stopped(watch):
    watch.wait(2, incarnation=1)
    heard = watch.now - SECOND
    while watch.health() != "down":
        watch.wait(1, incarnation=2, boot="b2")
    assert watch.now - heard >= budget.DOWN_MS


def test_46_each_machine_that_had_the_name_must_have_stopped(watch):
    """A third machine takes it, and the second may have been given something by hand."""
    watch.wait(2, incarnation=2, boot="b2")
    watch.wait(20, incarnation=2, boot="b2")
    heard = watch.liveness.last_heard("n1")
    while watch.health() != "down":
        watch.wait(1, incarnation=3, boot="b3")
    assert watch.now - heard >= budget.DOWN_MS


# ---- flapping


def test_47_an_agent_that_comes_and_goes_causes_no_storm():
    """Row 47: an hour of 30 s of silence and 5 s of heartbeats."""
    watch = Watch("n1")
    while watch.now < 3_600 * SECOND:
        watch.wait(30)
        watch.wait(5, incarnation=1)
    assert watch.changes().count("down") <= 2


def test_47_one_that_goes_when_it_gets_work_is_up_ever_later():
    """The worst case: it stays until it is up, and then goes away."""
    watch = Watch("n1")
    downs = []
    while watch.now < 3 * 3_600 * SECOND:
        watch.wait(28)
        downs.append(watch.now)
        while watch.health() != "up":
            watch.wait(1, incarnation=1)
    assert len(downs) < 30
    assert downs[1] - downs[0] < 60 * SECOND
    assert downs[-1] - downs[-2] >= budget.LONGEST_HOLD_MS


def test_47_a_quiet_while_makes_good(watch):
    for _ in range(4):
        watch.wait(28)
        while watch.health() != "up":
            watch.wait(1, incarnation=1)
    watch.wait(budget.CALM_MS // SECOND, incarnation=1)
    watch.wait(28)
    watch.beat()
    assert watch.health() == "up"


# ---- a controller that could not listen


def test_49_a_thousand_that_return_to_a_new_controller_are_all_kept():
    """Row 49: none is suspect or down before it could have been heard."""
    names = [f"n{number}" for number in range(1000)]
    watch = Watch(*names)
    for name in names:
        watch.beat(name)
    watch.now += 60 * SECOND
    watch.restart()
    watch.wait(RECOVERY_GRACE_MS // SECOND)
    for name in names:  # spread over nine more seconds
        watch.now += 9
        watch.beat(name)
    assert watch.history == []


def test_49_who_does_not_return_is_down_a_grace_later(watch):
    watch.restart()
    watch.wait(RECOVERY_GRACE_MS // SECOND + 9)
    assert watch.changes() == []
    watch.wait(1)
    assert watch.changes() == ["suspect"]
    watch.wait(18)
    assert watch.changes() == ["suspect", "down"]


def test_49_after_a_take_over_the_one_before_may_still_be_heard(watch):
    """It acknowledges heartbeats while it does not reach the store, so their agents go on."""
    watch.liveness = Liveness(watch.now, grace_ms=budget.TAKE_OVER_GRACE_MS)
    start = watch.now
    watch.judge()
    while watch.health() != "down":
        watch.wait(1)
    assert watch.now - start >= STORE_GRACE_MS + budget.DOWN_MS


def test_49_who_has_returned_to_a_new_controller_has_no_grace(watch):
    watch.restart()
    watch.wait(1)
    watch.beat()
    watch.wait(10)
    assert watch.health() == "suspect"


def test_a_controller_that_stood_still_blames_nobody(watch):
    """Row 35, on its own side: it was stopped or suspended, and heard nothing."""
    watch.now += 600 * SECOND
    watch.judge()
    watch.wait(15)
    watch.beat(running=["a1-1"])
    assert watch.changes() == []


def test_nobody_is_better_without_being_heard():
    watch = Watch(n1=Recorded(Health.SUSPECT), n2=Recorded(Health.DOWN))
    watch.wait(5)
    watch.now += 600 * SECOND
    watch.wait(5)
    assert (watch.health("n1"), watch.health("n2")) == ("suspect", "down")


# ---- the store


def test_19_while_the_store_is_away_nodes_are_kept_alive_in_memory(watch):
    """Row 19: their heartbeats are acknowledged, and nothing changes when it is back."""
    watch.away = True
    watch.wait(STORE_GRACE_MS // SECOND - 3, incarnation=1)
    assert watch.beat().receipt is Receipt.TAKEN
    watch.away = False
    watch.wait(10, incarnation=1)
    assert watch.changes() == []


def test_19_after_the_grace_they_are_as_lost_nodes(watch):
    """Agents without an acknowledgement stop their jobs, so these are requeued afterwards."""
    watch.away = True
    watch.wait(STORE_GRACE_MS // SECOND + 40, incarnation=1)
    assert watch.beat().receipt is Receipt.UNCONFIRMED
    watch.away = False
    watch.wait(1)
    assert watch.changes() == ["down"]
    watch.beat()
    assert watch.changes() == ["down", "up"]


def test_a_change_that_could_not_be_written_is_made_when_the_store_is_back(watch):
    watch.away = True
    watch.wait(60)
    assert watch.changes() == []
    watch.away = False
    watch.wait(1)
    assert watch.changes() == ["down"]


def test_a_node_that_returns_while_the_store_is_away_has_lost_nothing(watch):
    watch.away = True
    watch.wait(60)
    watch.beat()
    watch.away = False
    watch.wait(5, incarnation=1)
    assert watch.changes() == []


# ---- administrators


@pytest.mark.parametrize("health", ["suspect", "down"])
def test_heartbeats_do_not_raise_what_an_administrator_has_set(watch, health):
    watch.set_health(health)
    watch.wait(1000, incarnation=1)
    assert watch.health() == health
    watch.set_health("up")
    watch.wait(10, incarnation=1)
    assert watch.health() == "up"


def test_silence_lowers_what_an_administrator_has_set(watch):
    watch.set_health("suspect")
    watch.wait(28)
    assert watch.health() == "down"
    watch.beat()
    assert watch.health() == "suspect"


def test_a_node_that_is_set_up_by_hand_has_its_full_time(watch):
    watch.wait(100)
    watch.set_health("up")
    watch.wait(9)
    assert watch.health() == "up"
    watch.wait(1)
    assert watch.health() == "suspect"


def test_what_a_node_runs_that_was_set_down_by_hand_must_stop_too(watch):
    watch.set_health("down")
    watch.wait(10, running=["a1-1"])
    watch.set_health("up")
    watch.judge()
    assert watch.health() == "suspect"
    watch.beat()
    assert watch.health() == "up"


# ---- which nodes


def test_a_node_that_is_removed_is_forgotten_and_a_new_one_has_its_time(watch):
    del watch.ledger["n1"]
    watch.judge()
    assert "n1" not in watch.liveness
    watch.wait(100)
    watch.ledger["n1"] = Recorded(Health.UP)
    watch.wait(10)
    assert watch.health() == "up"
    watch.wait(1)
    assert watch.health() == "suspect"


def test_last_heard_is_the_last_heartbeat_that_counted(watch):
    at = watch.now
    watch.wait(5)
    watch.beat(sequence=0)
    assert watch.liveness.last_heard("n1") == at
    assert watch.liveness.last_heard("n2") is None
