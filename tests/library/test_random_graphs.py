"""Random graphs give what a plain evaluation gives, or the right error, and leave nothing held.

What is expected is worked out here with plain loops and numbers, and shares no code with what is
tested.
"""

from __future__ import annotations

import threading
import time
import zlib
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from gridhand import (
    Collocated,
    Function,
    FunctionFailed,
    Graph,
    Grid,
    GridError,
    ImpossibleCollocation,
    NeverFits,
    NotAssigned,
)

NODES = {"n1": {"cpu": 4, "memory": 2}, "n2": {"cpu": 2, "memory": 4}}  # memory in GB


@dataclass
class Spec:
    """A function as this test sees it."""

    id: str
    kind: str = "regular"
    args: list[str] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    as_list: bool = False
    cpu: int = 0
    memory: int = 0
    node: str | None = None  # a name, `@other` for where that one goes, or None
    fails: int = 0  # how often, before it succeeds
    retries: int | None = None


@dataclass
class Case:
    specs: dict[str, Spec]
    order: list[str]  # in which they are added
    options: dict
    inputs: dict

    def tries(self, id):
        own = self.specs[id].retries
        return 1 + (self.options["max_retries"] if own is None else own)


@st.composite
def cases(draw):
    specs = {}
    for number in range(draw(st.integers(1, 9))):
        one = Spec(f"f{number}", draw(st.sampled_from(["regular"] * 5 + ["inline", "input"])))
        if one.kind != "input":
            if specs:
                one.args = draw(st.lists(st.sampled_from(list(specs)), max_size=3))
            one.extra = draw(st.lists(st.integers(0, 9), max_size=2))
            one.as_list = draw(st.booleans())
        if one.kind == "regular":
            one.cpu = draw(st.sampled_from([0, 0, 1, 1, 2, 3]))
            one.memory = draw(st.sampled_from([0, 0, 0, 1, 3]))
            regular = [f"@{id}" for id, other in specs.items() if other.kind == "regular"]
            one.node = draw(st.sampled_from([None] * 6 + ["n1", "n2"] + regular[-3:]))
            one.fails = draw(st.sampled_from([0] * 8 + [1, 2, 99]))
            one.retries = draw(st.sampled_from([None] * 4 + [0, 2]))
        specs[one.id] = one
    regular = [id for id, one in specs.items() if one.kind == "regular"]
    options = {
        "max_retries": draw(st.integers(0, 2)),
        "max_concurrency": draw(st.sampled_from([None, None, 1, 2])),
        "claim": draw(st.sampled_from(["step", "step", "whole"])),
        "keep": draw(st.none() | st.sets(st.sampled_from(regular))) if regular else None,
    }
    inputs = {id: draw(st.integers()) for id, one in specs.items() if one.kind == "input"}
    return Case(specs, draw(st.permutations(list(specs))), options, inputs)


# ---- what is expected


def value_of(id, given_args, extra, as_list):
    """What a function makes of what it is called with: another number for any difference."""
    seen = [list(given_args)] if as_list else list(given_args)
    return zlib.crc32(repr((id, seen, extra)).encode())


def evaluated(case):
    """The value of every function, one after the other."""
    values = {}
    for id, one in case.specs.items():  # each was made after those that it takes
        if one.kind == "input":
            values[id] = case.inputs[id]
        else:
            values[id] = value_of(id, [values[arg] for arg in one.args], one.extra, one.as_list)
    return values


def needs(case, id):
    """The regular functions that must be done before, seen through inline ones."""
    found = set()
    for arg in case.specs[id].args:
        kind = case.specs[arg].kind
        found |= {arg} if kind == "regular" else needs(case, arg)
    return found


def all_needs(case, id):
    found = set()
    for arg in needs(case, id):
        found |= {arg} | all_needs(case, arg)
    return found


def leader(case, id):
    while (case.specs[id].node or "").startswith("@"):
        id = case.specs[id].node[1:]
    return id


def groups(case):
    found = {}
    for id, one in case.specs.items():
        if one.kind == "regular":
            found.setdefault(leader(case, id), []).append(id)
    return found


def impossible(case):
    """Which errors it may be refused with before anything runs: none, if it can run."""
    found = []
    for first, ids in groups(case).items():
        ones = [case.specs[id] for id in ids]
        pinned = case.specs[first].node
        places = [pinned] if pinned else list(NODES)
        alone = [any(fits([one], place) for place in places) for one in ones]
        if not all(alone):
            found.append(NeverFits)
        elif not any(all(fits([one], place) for one in ones) for place in places):
            found.append(ImpossibleCollocation)
    return tuple(found)


def fits(ones, place):
    return all(
        sum(getattr(one, name) for one in ones) <= NODES[place][name] for name in ("cpu", "memory")
    )


def could_all_be_held_at_once(case):
    """Whether some way to put all groups on the nodes would do, each group on one node."""
    every = [(case.specs[first].node, ids) for first, ids in groups(case).items()]

    def put(rest, taken):
        if not rest:
            return True
        pinned, ids = rest[0]
        for place in [pinned] if pinned else NODES:
            now = {**taken, place: taken[place] + [case.specs[id] for id in ids]}
            if fits(now[place], place) and put(rest[1:], now):
                return True
        return False

    return put(every, {name: [] for name in NODES})


# ---- what is run


class Watch:
    """Sees what runs: for a graph in threads of this process."""

    def __init__(self, case, slow_s=0.0):
        self.case = case
        self.slow_s = slow_s
        self.lock = threading.Lock()
        self.running = set()
        self.most = 0
        self.started = []
        self.done = set()
        self.faults = []

    def code(self, id):
        one = self.case.specs[id]

        def call(*args):
            count = len(args) - len(one.extra)
            given_args = args[0] if one.as_list else args[:count]
            if one.kind != "regular":
                return value_of(id, given_args, one.extra, one.as_list)
            return self._watched(id, given_args)

        return call

    def _watched(self, id, given_args):
        one = self.case.specs[id]
        with self.lock:
            if not needs(self.case, id) <= self.done or id in self.done or id in self.running:
                self.faults.append(f"{id} started when it should not have")
            self.running.add(id)
            self.most = max(self.most, len(self.running))
            self.started.append(id)
            attempt = self.started.count(id)
        try:
            time.sleep(self.slow_s)
            if attempt <= one.fails:
                raise ValueError(f"{id} fails")
            return value_of(id, given_args, one.extra, one.as_list)
        finally:
            with self.lock:
                self.running.discard(id)
                if attempt > one.fails:
                    self.done.add(id)

    def graph(self):
        graph = Graph()
        for id in self.case.order:
            one = self.case.specs[id]
            if one.kind == "input":
                graph.add(Function(id, type="input"))
                continue
            node = Collocated(one.node[1:]) if (one.node or "").startswith("@") else one.node
            graph.add(
                Function(
                    id,
                    self.code(id),
                    args=one.args,
                    extra_args=one.extra,
                    cost={"cpu": one.cpu, "memory": f"{one.memory}GB"},
                    node=node,
                    max_retries=one.retries,
                    type=one.kind,
                    argument_inclusion="as_list" if one.as_list else "variadic",
                )
            )
        return graph


@pytest.fixture(scope="module")
def grid():
    with Grid.in_memory() as opened:
        for name, has in NODES.items():
            opened.register_node(name, cpu=has["cpu"], memory=f"{has['memory']}GB")
        yield opened


def holds_nothing(grid):
    deadline = time.monotonic() + 10
    while grid.allocations():
        assert time.monotonic() < deadline, grid.allocations()
        time.sleep(0.001)
    assert grid.check() == []


def outcome(grid, graph, **options):
    """What came of it, or the error it met."""
    try:
        return grid.execute(graph, **options)
    except GridError as error:
        return error


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_a_random_graph_gives_what_a_plain_evaluation_gives(grid, case):
    watch = Watch(case)
    regular = [id for id, one in case.specs.items() if one.kind == "regular"]
    # Those that fail for good, and whose turn comes: nothing that they need fails.
    failing = {id for id in regular if case.specs[id].fails >= case.tries(id)}
    reached = {id for id in failing if not all_needs(case, id) & failing}
    refused = impossible(case)
    if case.options["claim"] == "whole" and not could_all_be_held_at_once(case):
        refused = (NotAssigned,)
    found = outcome(grid, watch.graph(), inputs=case.inputs, timeout=30, **case.options)
    event(type(found).__name__)
    if isinstance(found, NotAssigned):
        # First available is not the cleverest way: it may miss one that there is.
        assert case.options["claim"] == "whole"
        assert refused or not first_available_finds_it(case)
        assert not watch.started
    elif isinstance(found, FunctionFailed):
        assert not refused
        assert found.function in reached
        assert found.attempts == watch.started.count(found.function) == case.tries(found.function)
        assert str(found.__cause__) == f"{found.function} fails"
        after = {id for id in regular if all_needs(case, id) & failing}
        assert not after & set(watch.started)
    elif isinstance(found, GridError):
        assert isinstance(found, refused)
        assert not watch.started
    else:
        assert not refused
        assert not failing
        check_result(case, watch, found, regular)
    assert watch.faults == []
    limit = case.options["max_concurrency"]
    assert limit is None or watch.most <= limit
    holds_nothing(grid)


def check_result(case, watch, result, regular):
    values = evaluated(case)
    kept = regular if case.options["keep"] is None else case.options["keep"]
    assert result.results == {id: values[id] for id in kept}
    attempts = {id: case.specs[id].fails + 1 for id in regular}
    assert result.attempts == attempts == {id: watch.started.count(id) for id in regular}
    nodes = {id: used.node for id, used in result.allocations.items()}
    for first, ids in groups(case).items():
        pinned = case.specs[first].node
        assert len({nodes[id] for id in ids}) == 1
        assert pinned in (None, nodes[first])
        assert nodes[first] in NODES or (len(ids) == 1 and not has_cost(case, first))
    for id in regular:
        assert bool(result.allocations[id].id) == has_cost(case, id)


def has_cost(case, id):
    return bool(case.specs[id].cpu or case.specs[id].memory)


def first_available_finds_it(case):
    """Handoff's order: pinned groups, then the others; the node chosen last is tried first."""
    every = [(case.specs[first].node, first, ids) for first, ids in groups(case).items()]
    order = Graph([Function(id, int, args=case.specs[id].args) for id in case.order]).order()
    every.sort(key=lambda one: (one[0] is None, order.index(one[1])))
    taken = {name: [] for name in NODES}
    recent = []
    for pinned, _, ids in every:
        ones = [case.specs[id] for id in ids]
        places = [pinned] if pinned else [*recent, *(name for name in NODES if name not in recent)]
        for place in places:
            if fits(taken[place] + ones, place):
                taken[place] += ones
                if not pinned:
                    recent = [place, *(name for name in recent if name != place)]
                break
        else:
            return False
    return True


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(), seed=st.integers(0, 10**6))
def test_nodes_that_come_and_go_change_nothing_but_where_and_how_often(grid, case, seed):
    """Functions are run again when their node is lost; what they come to is the same."""
    for one in case.specs.values():
        one.fails = 0
    whole = case.options["claim"] == "whole"
    assume(first_available_finds_it(case) if whole else not impossible(case))
    watch = Watch(case, slow_s=0.003)
    stop, random = threading.Event(), Random(seed)

    def trouble():
        while not stop.is_set():
            name = random.choice(list(NODES))
            grid.set_health(name, "down")
            stop.wait(random.uniform(0, 0.004))
            grid.set_health(name, "up")
            stop.wait(random.uniform(0, 0.02))

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        found = outcome(grid, watch.graph(), inputs=case.inputs, timeout=60, **case.options)
    finally:
        stop.set()
        thread.join()
    again = not isinstance(found, GridError) and max(found.attempts.values(), default=1) > 1
    event("something was run again" if again else type(found).__name__)
    if isinstance(found, FunctionFailed):  # it was lost once too often
        assert found.attempts == 6
        assert found.__cause__.reason == "node_lost"
    else:
        values = evaluated(case)
        kept = [id for id, one in case.specs.items() if one.kind == "regular"]
        kept = kept if case.options["keep"] is None else case.options["keep"]
        assert found.results == {id: values[id] for id in kept}
    for name in NODES:
        grid.set_health(name, "up")
    holds_nothing(grid)
