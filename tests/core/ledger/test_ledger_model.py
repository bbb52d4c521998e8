"""The model itself: that it counts as people do, and that it is nobody's copy."""

import ast
from pathlib import Path

import pytest
from hypothesis import given

import ledger_model
from ledger_asks import ASKS, NODES, node_of, request_of
from ledger_model import Model, devices_of

GB = 10**9
UNIT = 10_000


def node(name, cpu=4, memory=2 * GB, devices=(), **more):
    row = {"name": name, "capacity": {"cpu": cpu * UNIT, "memory": memory}, "labels": {}}
    row["devices"] = [
        {
            "id": f"{name}/{place}",
            "index": place,
            "model": "",
            "memory": size,
            "capability": None,
            "health": "ok",
        }
        for place, size in enumerate(devices)
    ]
    return row | {"health": "up", "draining": False} | more


def ask(gpu=0, gpu_memory=0, **amounts):
    return {
        "amounts": amounts,
        "gpu": gpu,
        "gpu_memory": gpu_memory,
        "gpu_model": None,
        "gpu_capability": None,
        "node": None,
        "prefer": (),
        "exclude": [],
        "labels": {},
    }


def row(number, on, wanted, holds=(), **more):
    """What a ledger would answer to a plain allocation."""
    made = {"id": f"a1-{number}", "number": number, "epoch": 1, "owner": "ann", "node": on}
    made |= {"holder": f"h{number}", "amounts": wanted["amounts"], "devices": list(holds)}
    made |= {"state": "active", "lifetime": "until_released", "deadline": None, "ttl": None}
    return made | {"group": None, "made_at": 0} | more


def with_nodes(*rows):
    made = Model()
    for one in rows:
        made.register(one, answer=one)
    return made


def grant(made, wanted, answer):
    made.hold(
        "ann",
        [wanted],
        state="active",
        ttl=None,
        holder=None,
        strategy="first_available",
        answer=answer if isinstance(answer, str) else [answer],
    )


def test_it_knows_nothing_of_the_ledger():
    imported = {
        name.name if isinstance(place, ast.Import) else place.module
        for place in ast.walk(ast.parse(Path(ledger_model.__file__).read_text()))
        if isinstance(place, ast.Import | ast.ImportFrom)
        for name in place.names
    }
    assert imported == {"__future__", "bisect", "fractions", "itertools", "math"}


def test_what_is_held_is_gone_and_what_is_released_is_back():  # T1
    made = with_nodes(node("n"))
    grant(made, ask(cpu=2 * UNIT), row(1, "n", ask(cpu=2 * UNIT)))
    assert made.available("n") == {"cpu": 2 * UNIT, "memory": 2 * GB}
    assert made.refusal(ask(cpu=3 * UNIT)) == "no_room"
    made.move("a1-1", "release", ttl=None, answer={**made.live["a1-1"], "state": "released"})
    assert made.available("n") == {"cpu": 4 * UNIT, "memory": 2 * GB}


WRONG = {
    "more than there is": (ask(cpu=5 * UNIT), row(1, "n", ask(cpu=5 * UNIT))),
    "what is not there": (ask(fpga=1), row(1, "n", ask(fpga=1))),
    "another amount": (ask(cpu=2), row(1, "n", ask(cpu=3))),
    "a node that is none": (ask(cpu=2), row(1, "m", ask(cpu=2))),
    "a refusal of what fits": (ask(cpu=2), "no_room"),
    "a deadline nobody asked for": (ask(cpu=2), row(1, "n", ask(cpu=2), deadline=5)),
    "half a device for a whole one": (
        ask(gpu=UNIT),
        row(
            1,
            "n",
            ask(gpu=UNIT),
            [{"device": "n/0", "share": 5000, "memory": 4, "exclusive": True}],
        ),
    ),
    "a share rounded up": (
        ask(gpu=3333),
        row(
            1,
            "n",
            ask(gpu=3333),
            [{"device": "n/0", "share": 3333, "memory": 3, "exclusive": False}],
        ),
    ),
}


@pytest.mark.parametrize(("wanted", "answer"), WRONG.values(), ids=WRONG)
def test_it_takes_no_wrong_answer(wanted, answer):
    made = with_nodes(node("n", devices=[7]))
    before = made.dump()
    with pytest.raises((AssertionError, KeyError)):
        grant(made, wanted, answer)
    assert made.dump() == before


def test_two_halves_fit_a_device_of_any_size():  # G1
    made = with_nodes(node("n", devices=[7]))
    for number in (1, 2):
        holds = [{"device": "n/0", "share": 5000, "memory": 3, "exclusive": False}]
        grant(made, ask(gpu=5000), row(number, "n", ask(gpu=5000), holds))
    assert made.available("n")["gpu_memory"] == 1
    assert made.refusal(ask(gpu=1)) == "no_room"


def test_a_node_that_shrank_is_overcommitted():  # T9
    made = with_nodes(node("n"))
    grant(made, ask(cpu=3 * UNIT), row(1, "n", ask(cpu=3 * UNIT)))
    made.register(node("n", cpu=2), answer=node("n", cpu=2))
    assert made.overcommitted("n")
    assert made.available("n") == {"memory": 2 * GB}
    assert made.refusal(ask(memory=1)) == "no_room"


@given(NODES)
def test_nodes_are_described_alike(described):
    real = node_of(described)
    assert real.capacity.parts() == described["capacity"]
    assert [gpu.id for gpu in real.gpus] == [device["id"] for device in described["devices"]]
    assert [gpu.memory_bytes for gpu in real.gpus] == [d["memory"] for d in described["devices"]]


@given(ASKS)
def test_requests_ask_alike(wanted):
    real = request_of(wanted)
    assert real.amounts.parts() == wanted["amounts"]
    count, share, memory = devices_of(wanted)
    if not count:
        assert real.gpu is None
    else:
        assert (real.gpu.devices, real.gpu.share, real.gpu.memory_bytes) == (count, share, memory)
