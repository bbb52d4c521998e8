"""Hundreds of calls on a real file, through failures and restarts: nothing is lost or doubled."""

import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from keeper_machine import KeeperMachine
from ledger_machine import Steps

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
    """A store that does not come back at once is given up at once."""
    monkeypatch.setattr("gridhand.controller.keeper.write_batch._RECOVERY_S", 0.0)


@pytest.mark.timeout(600)  # a failure takes its time to become a small one
def test_any_order_of_calls_failures_and_restarts_keeps_the_promises():
    before = Steps.keeper
    run_state_machine_as_test(KeeperMachine, settings=runs(25))
    assert Steps.keeper - before >= LEAST_STEPS


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_any_order_of_very_many_calls_failures_and_restarts_keeps_the_promises():
    before, start = Steps.keeper, time.monotonic()
    run_state_machine_as_test(KeeperMachine, settings=runs(900, steps=60))
    steps, seconds = Steps.keeper - before, time.monotonic() - start
    print(f"keeper machine: {steps} steps in {seconds:.0f} s, {steps / seconds:.0f} a second")
    assert steps >= 60 * LEAST_STEPS
