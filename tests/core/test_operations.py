"""Operations as plain data: the texts by which a store recognises a repeated one."""

import pytest

from gridhand.core.jobs.job import After, Condition
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.ledger.allocations import AllocationState, Lifetime, Terms
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import GangLayout, Request
from gridhand.core.operations import (
    Allocate,
    Cancel,
    MoveAllocation,
    SetDraining,
    SetHealth,
    SetHeld,
    Submit,
    Unregister,
)

REQUEST = Request.of(cpu=2, memory="1GB")

BODIES = {
    "allocate": (
        Allocate("ann", "x", (REQUEST,), Terms("ann", "h"), wait_ms=5),
        (
            "allocate ['cpu=2 memory=1GB;None;(None, (), [], []);None'] Terms(owner='ann', holder='h',"
            " state=<State.ACTIVE: 'active'>, lifetime=<Lifetime.UNTIL_RELEASED: 'until_released'>,"
            " ttl_ms=None, layout=<Layout.ANY: 'any'>)"
        ),
    ),
    "release": (MoveAllocation("ann", "x", "a1-1"), "release a1-1 None"),
    "drain": (SetDraining("ann", "x", "box"), "draining box True"),
    "health": (SetHealth("ann", "x", "box", Health.DOWN, "cut"), "health box down cut"),
    "unregister": (Unregister("ann", "x", "box"), "unregister box False"),
    "cancel": (Cancel("ann", "x", ("1",)), "cancel ('1',) cancelled"),
    "hold": (SetHeld("ann", "x", ("1",)), "held ('1',) True"),
}


@pytest.mark.parametrize(("operation", "body"), BODIES.values(), ids=BODIES)
def test_the_body_is_spelled_as_in_the_stores_there_are(operation, body):
    assert operation.body() == body


def test_the_body_of_an_allocation_has_a_priority_only_if_it_is_not_the_default():
    asked = (REQUEST,), Terms("ann")
    usual = Allocate("ann", "x", *asked).body()
    assert Allocate("ann", "x", *asked, priority=Priority.LOW).body() == f"{usual} low"


def test_the_bodies_of_requests_for_gpus_name_no_class_of_today():
    share = Request.of(
        cpu=2, gpu=0.5, gpu_memory="1GB", gpu_model="A100", gpu_capability="8.6", quality="standard"
    )
    whole = Request.of(gpu=2, node="n", labels={"a": "b"})
    terms = Terms("ann", "h", AllocationState.RESERVED, Lifetime.LEASE, 5_000, GangLayout.APART)
    assert Allocate("ann", "x", (share, whole), terms).body() == (
        'allocate ["cpu=2;GpuAsk(devices=1, share=5000, memory_bytes=1000000000, '
        "model='A100', capability=(8, 6));(None, (), [], []);standard\", "
        '"nothing;GpuAsk(devices=2, share=10000, memory_bytes=None, model=None, capability=None);'
        "('n', (), [], [('a', 'b')]);None\"] "
        "Terms(owner='ann', holder='h', state=<State.RESERVED: 'reserved'>, "
        "lifetime=<Lifetime.LEASE: 'lease'>, ttl_ms=5000, layout=<Layout.APART: 'apart'>)"
    )


def test_the_body_of_a_submission_has_all_fields_of_the_stores_there_are():
    work = JobSpec("ann", ("true",), "/", Request.of(cpu=1, gpu=1))
    after = (After("7", Condition.NOT_OK),)
    assert Submit("ann", "x", work, (1, 2), after).body() == (
        'submit {"command": ["true"], "detached": false, "environment": "", "folder": "/", '
        '"grace_ms": 30000, "layout": "any", "owner": "ann", "pieces": 1, "priority": "medium", '
        '"request": {"amounts": {"cpu": 10000}, "gpu": {"devices": 1, "share": 10000}}, '
        '"retry": {"delay_ms": 1000, "exit_codes": [], "losses": 5, "most_delay_ms": 300000, '
        '"on": ["exit", "node_lost", "oom", "preempted", "signal", "start_failed"], "tries": 1}} '
        "(1, 2) (After(id='7', condition=<Condition.NOT_OK: 'afternotok'>),)"
    )
