"""The order of arrivals, and how much of the load each of them is."""

import pytest

from gridhand.core.errors import InvalidInput
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.simulate.arrivals import ArrivalStream, Demand, arrivals
from gridhand.simulate.inputs import SimulatedTask
from gridhand.simulate.tally import Tally


def tasks_of(**asked):
    return [SimulatedTask(name, Request.of(text)) for name, text in asked.items()]


def demand_of(node, tasks):
    return Demand(Tally([Node.of("a", node)]), tasks)


def names(arriving):
    return [task.name for task in arriving]


def test_tasks_are_drawn_until_they_ask_for_the_load():
    tasks = tasks_of(b="gpu=1", c="cpu=1", a="gpu=0.5")
    demand = demand_of("cpu=1 gpu=4", tasks)
    arriving = arrivals(tasks, demand, 1.3, seed=1)
    assert sorted(names(arriving[:3])) == ["a", "b", "c"]
    asked = [demand.of(task) for task in arriving]
    assert sum(asked) >= 1.3 * 40_000 > sum(asked[:-1])
    assert set(names(arriving[3:])) <= {"a", "b", "c"}
    many = arrivals(tasks, demand, 90, seed=1)[3:]
    assert {name: round(3 * names(many).count(name) / len(many)) for name in "abc"} == {
        "a": 1, "b": 1, "c": 1,
    }  # fmt: skip


def test_tasks_that_ask_for_more_are_left_out():
    tasks = tasks_of(**{f"t{number}": "gpu=1" for number in range(8)})
    demand = demand_of("gpu=4", tasks)
    arriving = arrivals(tasks, demand, 1.3, seed=1)
    assert len(arriving) == 6  # 5.2 are enough
    assert len(set(names(arriving))) == 6
    left_out = {frozenset(names(arrivals(tasks, demand, 1.3, seed))) for seed in range(20)}
    assert len(left_out) > 5


def test_what_is_just_enough_stays_as_it_is():
    tasks = tasks_of(a="gpu=1", b="gpu=1", c="cpu=1")
    arriving = arrivals(tasks, demand_of("cpu=1 gpu=2", tasks), 1.0, seed=3)
    assert sorted(names(arriving)) == ["a", "b", "c"]


def test_the_seed_and_the_names_decide():
    tasks = tasks_of(**{f"t{number:02}": "gpu=1" for number in range(30)})
    demand = demand_of("gpu=40", tasks)
    first = names(arrivals(tasks, demand, 1.3, seed=1))
    assert names(arrivals(tasks[::-1], demand, 1.3, seed=1)) == first
    assert names(arrivals(tasks, demand, 1.3, seed=2)) != first


#    what it shows                                     node                      tasks                                            told in   capacity  asked for
MEASURES = {
    "GPUs, if any are asked for":                     ("cpu=1 gpu=2",           ["cpu=9", "gpu=0.5", "gpu=2 cpu=1"],             "gpu",    20_000,   [0, 5_000, 20_000]),
    "the scarcest of what is there":                  ("cpu=10 memory=10GB",    ["cpu=1 memory=2GB"],                            "memory", 10**10,   [2 * 10**9]),
    "what is asked for most":                         ("cpu=10 memory=10GB",    ["cpu=3 memory=2GB"],                            "cpu",    100_000,  [30_000]),
    "plain ones where GPUs are not asked for":        ("cpu=10 gpu=2",          ["cpu=3"],                                       "cpu",    100_000,  [30_000]),
    "plain ones where there are no GPUs":             ("cpu=10",                ["cpu=3", "gpu=1"],                              "cpu",    100_000,  [30_000, 0]),
    "memory of GPUs as a part of one":                ("gpu=2 gpu_memory=16GB", ["gpu_memory=4GB", "gpu=2 gpu_memory=8GB"],      "gpu",    20_000,   [2_500, 10_000]),
    "other names, too":                               ("cpu=10 fpga=1",         ["cpu=1 fpga=1"],                                "fpga",   10_000,   [10_000]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "asked", "told_in", "capacity", "amounts"), MEASURES.values(), ids=MEASURES
)
def test_the_load_is_told_in(node, asked, told_in, capacity, amounts):
    tasks = [SimulatedTask(f"t{number}", Request.of(text)) for number, text in enumerate(asked)]
    demand = demand_of(node, tasks)
    assert (demand.resource, demand.capacity) == (told_in, capacity)
    assert [demand.of(task) for task in tasks] == amounts


def test_tasks_that_want_nothing_there_is():
    with pytest.raises(InvalidInput, match="tasks: '1 of them'"):
        demand_of("cpu=1", tasks_of(a="gpu=1"))


def test_a_load_of_too_many_tasks():
    tasks = tasks_of(a="cpu=0.0001")
    with pytest.raises(InvalidInput, match="about 13000000 tasks"):
        arrivals(tasks, demand_of("cpu=1000", tasks), 1.3, seed=1)


def test_a_stream_offers_the_load():
    tasks = [
        SimulatedTask("a", Request.of(cpu=1), 10.0),
        SimulatedTask("b", Request.of(cpu=2), 20.0),
    ]
    stream = ArrivalStream(tasks, demand_of("cpu=100", tasks), 0.5)
    assert stream.rate == pytest.approx(2.0)  # a second; each brings 25 seconds of a CPU
    assert stream.under_way == pytest.approx(30.0)
    assert (stream.warm_up_s, stream.end_s) == pytest.approx((500.0, 1500.0))
    coming = list(stream.arrivals(seed=1))
    at_once = [one for one in coming if one.at_s == 0.0]
    assert 15 < len(at_once) < 50
    assert all(0 < one.stays_s < one.task.duration_s for one in at_once)
    later = coming[len(at_once) :]
    assert [one.at_s for one in later] == sorted(one.at_s for one in later)
    assert 0 < later[0].at_s < later[-1].at_s < 1500.0
    assert 2800 < len(later) < 3200
    assert {one.stays_s for one in later} == {10.0, 20.0}
    assert list(stream.arrivals(seed=1)) == coming
    assert list(stream.arrivals(seed=2)) != coming


def test_what_is_under_way_at_first_is_mostly_what_stays_long():
    tasks = [
        SimulatedTask("a", Request.of(cpu=1), 1.0),
        SimulatedTask("b", Request.of(cpu=1), 99.0),
    ]
    stream = ArrivalStream(tasks, demand_of("cpu=1000", tasks), 1.0)
    at_once = [one.task.name for one in stream.arrivals(seed=1) if one.at_s == 0.0]
    assert 900 < len(at_once) < 1100
    assert at_once.count("a") < 50


def test_a_duration_that_is_not_known_is_drawn():
    tasks = [SimulatedTask(f"t{number}", Request.of(cpu=1)) for number in range(999)]
    demand = demand_of("cpu=100", tasks)
    stays = sorted(ArrivalStream(tasks, demand, 0.5).stays_s)
    assert 2500 < stays[499] < 5000
    assert stays[0] > 0
    assert (
        ArrivalStream(tasks[::-1], demand, 0.5).stays_s == ArrivalStream(tasks, demand, 0.5).stays_s
    )
