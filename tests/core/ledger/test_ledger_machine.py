"""Thousands of calls in any order: the ledger and the model never differ."""

import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from ledger_machine import LedgerMachine, Steps

LEAST_STEPS = 2_000


def runs(examples, steps=50):
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        derandomize=False,
        print_blob=True,
    )


@pytest.mark.timeout(600)  # a failure takes its time to become a small one
def test_any_order_of_calls_keeps_the_promises():
    before = Steps.ledger
    run_state_machine_as_test(LedgerMachine, settings=runs(70))
    assert Steps.ledger - before >= LEAST_STEPS


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_any_order_of_very_many_calls_keeps_the_promises():
    before, start = Steps.ledger, time.monotonic()
    run_state_machine_as_test(LedgerMachine, settings=runs(2_500, steps=100))
    steps, seconds = Steps.ledger - before, time.monotonic() - start
    print(f"ledger machine: {steps} steps in {seconds:.0f} s, {steps / seconds:.0f} a second")
    assert steps >= 100 * LEAST_STEPS
