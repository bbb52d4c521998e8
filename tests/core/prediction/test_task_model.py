"""What is learned from ended jobs."""

import random

import pytest

from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.jobs.job import Job, JobSpec, JobState
from gridhand.core.model.requests import Request
from gridhand.core.prediction.duration_model import DurationModel
from gridhand.core.prediction.sample_window import SampleWindow
from gridhand.core.prediction.task_model import TaskModel


def spec(command, task_type=None):
    return JobSpec("ann", tuple(command), "/", Request.of(cpu=1), task_type=task_type)


def ended(*attempts):
    return Job(
        id="1", number=1, work=spec(["true"]), request=Request.of(cpu=1), state=JobState.SUCCEEDED,
        submitted=0, attempts=tuple(attempts), ended=1,
    )  # fmt: skip


def attempt(reason=Reason.EXIT, exit_code=0, peak=10**9, ran_ms=1000):
    return Attempt(
        1, "n1", "a1", 0, placed=0, started=500, ended=500 + ran_ms, exit_code=exit_code,
        reason=reason, peak_bytes=peak,
    )  # fmt: skip


def test_every_run_that_used_memory_teaches_and_only_successful_ones_how_long_it_takes():
    model = TaskModel()
    for _ in range(3):
        model.learn(ended(attempt(Reason.OOM, None, 2 * 10**9, ran_ms=50), attempt()))
    model.learn(ended(attempt(Reason.NODE_LOST, None, 9 * 10**9)))
    predicted = model.predict()
    assert predicted.runs == 6
    assert predicted.memory.largest == 2 * 10**9
    assert predicted.memory.bytes >= 2 * 10**9
    assert predicted.memory.bytes % 10**6 == 0
    assert predicted.memory.within == 1
    assert predicted.memory.confidence == pytest.approx(6 / 7)
    assert {one.ms for one in predicted.durations} == {1000}


def test_too_few_runs_predict_nothing():
    model = TaskModel()
    model.learn(ended(attempt(peak=None)))
    assert model.predict() == (1, None, ())


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95])
def test_quantiles_of_durations_hold_also_when_they_grow(quantile):
    rng = random.Random(3)
    model = DurationModel()
    for run in range(2000):
        model.add(int(1000 * (1 + run / 500) * rng.lognormvariate(0, 0.4)))
    assert model.held(quantile) == pytest.approx(quantile, abs=0.04)


def test_quantiles_without_a_stretch_would_not_hold_when_durations_grow():
    """The measure for the test above: the plain quantile of the last 1,000 runs is passed more."""
    rng = random.Random(3)
    window, held = SampleWindow(), 0
    for run in range(2000):
        ran_ms = int(1000 * (1 + run / 500) * rng.lognormvariate(0, 0.4))
        held += bool(len(window)) and ran_ms <= window.at_level(0.9)
        window.add(ran_ms)
    assert held / 2000 < 0.86


def test_a_window_keeps_the_last_values():
    window = SampleWindow(limit=3)
    for value in (9, 1, 2, 3):
        window.add(value)
    assert (len(window), window.largest, window.median()) == (3, 3, 2)
    assert window.share_within(2) == pytest.approx(2 / 3)
    assert [window.at_level(level) for level in (0.0, 0.5, 0.99)] == [1, 2, 3]
