"""Hundreds of steps on a controller and its node: nothing runs twice, is lost, or stays held."""

import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from controller_machine import ControllerMachine, Steps

LEAST_STEPS = 500


def runs(examples, steps=40):
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        derandomize=False,
        print_blob=True,
    )


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    """What is tried again is tried again at once, and what is away is given up at once."""
    monkeypatch.setattr("gridhand.controller.keeper.write_batch._RECOVERY_S", 0.0)
    monkeypatch.setattr("gridhand.controller.keeper.keeper._RETRY_S", 0.01)
    monkeypatch.setattr("gridhand.controller.jobs.job_runner._RETRY_S", 0.001)
    monkeypatch.setattr("gridhand.controller.store_retry.PAUSE_S", 0.001)


@pytest.mark.timeout(600)  # a failure takes its time to become a small one
def test_any_order_of_calls_ends_losses_and_restarts_keeps_the_promises():
    before = Steps.count
    run_state_machine_as_test(ControllerMachine, settings=runs(40))
    assert Steps.count - before >= LEAST_STEPS
    assert Steps.waiting  # else nothing was ever lined up
    assert Steps.within  # nor ran in what is held by hand


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_any_order_of_very_many_calls_ends_losses_and_restarts_keeps_the_promises():
    before, start = Steps.count, time.monotonic()
    run_state_machine_as_test(ControllerMachine, settings=runs(600, steps=60))
    steps, seconds = Steps.count - before, time.monotonic() - start
    print(f"controller machine: {steps} steps in {seconds:.0f} s, {steps / seconds:.0f} a second")
    assert steps >= 24 * LEAST_STEPS
