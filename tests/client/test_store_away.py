"""A controller whose store is away: who asks again, who is told so, and for how long."""

import threading

import pytest

from fake_controller import DROP, FakeController, chunked, frame, problem, reply
from gridhand.client import Client, retry
from gridhand.core import errors

AWAY = problem(503, code="store_unavailable", detail="away", hint="Nothing was changed.")
UNKNOWN = problem(503, code="store_outcome_unknown", detail="lost", hint="Perhaps.")
DONE = reply({"jobs": [1]})
OVER = {"id": "17", "state": "succeeded"}
KEY = "idempotency-key"


class Caller:
    """A client that notes what it is told to wait for."""

    def __init__(self, path):
        self._client = Client(path)
        self.said = []
        self._client.on_wait = self.said.append

    def submit(self):
        with self._client as client:
            return client.submit({"command": ["true"]})

    def jobs(self):
        with self._client as client:
            return client.jobs()

    def follow(self):
        with self._client as client:
            return [event["event"] for event, _ in client.follow("17", attach=True)]


@pytest.fixture
def caller(home):
    return Caller(f"unix:{home}/socket")


@pytest.fixture
def answers(home, monkeypatch):
    """A controller that gives these answers in turn, the last one for ever."""
    monkeypatch.setattr(retry, "PAUSE_S", 0.01)
    left = []
    with FakeController(
        f"{home}/socket", lambda _: left.pop(0) if len(left) > 1 else left[0]
    ) as fake:
        yield left, fake.asked


def test_what_may_have_been_written_is_asked_by_its_op_id_until_that_is_known(caller, answers):
    told, asked = answers
    told += [UNKNOWN, AWAY, UNKNOWN, DONE]
    assert caller.submit() == [1]
    assert len(asked) == 4
    assert len({one.headers[KEY] for one in asked}) == 1
    assert len({one.body for one in asked}) == 1


def test_what_was_not_written_is_told_at_once(caller, answers):
    told, asked = answers
    told += [AWAY]
    with pytest.raises(errors.StoreUnavailable, match="away"):
        caller.submit()
    assert len(asked) == 1


def test_a_question_is_not_repeated(caller, answers):
    told, asked = answers
    told += [UNKNOWN]
    with pytest.raises(errors.OutcomeUnknown, match="lost"):
        caller.jobs()
    assert len(asked) == 1


def test_when_it_stays_away_the_caller_hears_that_nobody_knows(caller, answers, monkeypatch):
    """And not what was said of the last try: nothing was changed by that one."""
    monkeypatch.setattr(retry, "PATIENCE_S", 2.0)
    told, asked = answers
    told += [UNKNOWN, AWAY]
    with pytest.raises(errors.OutcomeUnknown, match="lost"):
        caller.submit()
    assert len(asked) > 1


def test_another_refusal_ends_the_doubt(caller, answers):
    told, _ = answers
    told += [UNKNOWN, problem(409, code="operation_reused", detail="another")]
    with pytest.raises(errors.OperationReused):
        caller.submit()


def test_who_stays_with_a_job_stays(caller, answers):
    told, asked = answers
    told += [AWAY, UNKNOWN, chunked([frame("end", job=OVER)])]
    assert caller.follow() == ["end"]
    assert len(asked) == 3


def test_waiting_is_told_once(home, answers):
    told, _ = answers
    told += [UNKNOWN, UNKNOWN, DONE]
    caller = Caller(f"unix:{home}/socket")
    caller.submit()
    assert caller.said == ["waiting up to 60 s for the controller's store: lost"]


def test_a_lost_answer_is_asked_for_by_its_op_id_while_the_store_is_away(caller, answers):
    """What the second answer says of itself, that nothing was changed, is not true of the first."""
    caller._client.revive = lambda start: None
    told, asked = answers
    told += [DROP, AWAY, AWAY, DONE]
    assert caller.submit() == [1]
    assert len(asked) == 4
    assert len({one.headers[KEY] for one in asked}) == 1
    assert len(caller.said) == 1


def test_when_a_lost_answer_is_never_found_the_caller_hears_that_nobody_knows(
    caller, answers, monkeypatch
):
    monkeypatch.setattr(retry, "PATIENCE_S", 0.5)
    caller._client.revive = lambda start: None
    told, _ = answers
    told += [DROP, AWAY]
    with pytest.raises(errors.OutcomeUnknown, match="nobody knows whether it was done"):
        caller.submit()


def test_a_submission_that_is_not_answered_in_time_is_asked_for_again(home, monkeypatch):
    monkeypatch.setattr(retry, "PAUSE_S", 0.01)
    gone, told = threading.Event(), [AWAY, DONE]

    def answer(asked):
        if len(fake.asked) == 1:
            gone.wait(60)  # longer than its client waits
            return DROP
        return told.pop(0)

    with FakeController(f"{home}/socket", answer) as fake:
        client = Client(f"unix:{home}/socket", timeout_s=1.0)
        client.revive = lambda start: None
        with client:
            assert client.submit({"command": ["true"]}) == [1]
        assert len({one.headers[KEY] for one in fake.asked}) == 1
        assert len(fake.asked) == 3
        gone.set()


def test_a_question_that_is_not_answered_in_time_is_not_repeated(home):
    gone = threading.Event()
    with FakeController(f"{home}/socket", lambda asked: gone.wait(60) and DONE) as fake:
        client = Client(f"unix:{home}/socket", timeout_s=0.3)
        client.revive = lambda start: None
        with client, pytest.raises(errors.ControllerUnavailable, match="does not answer in time"):
            client.jobs()
        assert len(fake.asked) == 1
        gone.set()
