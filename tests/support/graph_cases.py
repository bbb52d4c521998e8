"""Random graphs, what is expected of them, and the two ways to see what ran.

What is expected is worked out here with plain loops and numbers, and shares no code with what is
tested.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from gridhand import (
    Collocated,
    Function,
    FunctionFailed,
    Graph,
    GridError,
    ImpossibleCollocation,
    NeverFits,
    NotAssigned,
)

NODES = {"n1": {"cpu": 4, "memory": 2}, "n2": {"cpu": 2, "memory": 4}}  # memory in GB
AMOUNTS = {name: f"cpu={has['cpu']} memory={has['memory']}GB" for name, has in NODES.items()}


@dataclass
class Spec:
    """A function as these tests see it."""

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

    @property
    def has_cost(self):
        return bool(self.cpu or self.memory)


@dataclass
class Case:
    specs: dict[str, Spec]
    order: list[str]  # in which they are added
    options: dict
    inputs: dict

    @property
    def regular(self):
        return [id for id, one in self.specs.items() if one.kind == "regular"]

    @property
    def kept(self):
        return self.regular if self.options["keep"] is None else self.options["keep"]

    def tries(self, id):
        own = self.specs[id].retries
        return 1 + (self.options["max_retries"] if own is None else own)

    def without_failures(self):
        for one in self.specs.values():
            one.fails = 0
        return self

    def graph(self, code):
        """The graph itself; `code` gives what each function calls."""
        graph = Graph()
        for id in self.order:
            one = self.specs[id]
            if one.kind == "input":
                graph.add(Function(id, type="input"))
                continue
            node = Collocated(one.node[1:]) if (one.node or "").startswith("@") else one.node
            graph.add(
                Function(
                    id,
                    code(one),
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

    def outcome(self, grid, code, timeout):
        """What came of it on this grid, or the error it met."""
        try:
            return grid.execute(
                self.graph(code), inputs=self.inputs, timeout=timeout, **self.options
            )
        except GridError as error:
            return error


@st.composite
def cases(draw, fewest=1):
    specs = {}
    for number in range(draw(st.integers(fewest, 9))):
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


def a_bit_of_everything(claim):
    """One case that has it all, for where few are run."""
    specs = [
        Spec("x", "input"),
        Spec("a", args=["x"], extra=[1], cpu=1, node="n2"),
        Spec("b", args=["x"], fails=1),
        Spec("c", args=["b", "a"], extra=[3, 2], cpu=1, memory=1, retries=2, fails=2),
        Spec("i", "inline", args=["c", "x", "b"], as_list=True),
        Spec("d", args=["i", "b", "a"], cpu=1, node="@c"),
        Spec("e", args=["d", "a", "i", "c"], extra=[0], as_list=True, memory=1, node="@a"),
        Spec("f", args=["e", "e", "x"], cpu=2),
    ]
    options = {"max_retries": 1, "max_concurrency": 2, "claim": claim, "keep": {"f", "c", "e"}}
    return Case({one.id: one for one in specs}, list("fxbdieca"), options, {"x": 5})


# ---- what is expected


def value_of(id, given_args, extra, as_list):
    """What a function makes of what it is called with: another number for any difference."""
    seen = [list(given_args)] if as_list else list(given_args)
    return zlib.crc32(repr((id, seen, list(extra))).encode())


def value_from(one, args):
    """The same, from the arguments as they came."""
    if one.as_list:
        return value_of(one.id, args[0], args[1:], True)
    count = len(one.args)
    return value_of(one.id, args[:count], args[count:], False)


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
    for id in case.regular:
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


def can_run(case):
    whole = case.options["claim"] == "whole"
    return first_available_finds_it(case) if whole else not impossible(case)


# ---- whether it came


def check(case, found, seen):
    """That the outcome is right, and what was seen to run is what should have."""
    # Those that fail for good, and whose turn comes: nothing that they need fails.
    failing = {id for id in case.regular if case.specs[id].fails >= case.tries(id)}
    reached = {id for id in failing if not all_needs(case, id) & failing}
    refused = impossible(case)
    if case.options["claim"] == "whole" and not could_all_be_held_at_once(case):
        refused = (NotAssigned,)
    if isinstance(found, NotAssigned):
        # First available is not the cleverest way: it may miss one that there is.
        assert case.options["claim"] == "whole"
        assert refused or not first_available_finds_it(case)
        assert not seen.started
    elif isinstance(found, FunctionFailed):
        assert not refused
        assert found.function in reached
        assert found.attempts == seen.started[found.function] == case.tries(found.function)
        assert str(found.__cause__) == f"{found.function} fails"
        after = {id for id in case.regular if all_needs(case, id) & failing}
        assert not after & seen.started.keys()
    elif isinstance(found, GridError):
        assert isinstance(found, refused)
        assert not seen.started
    else:
        assert not refused
        assert not failing
        attempts = {id: case.specs[id].fails + 1 for id in case.regular}
        assert found.attempts == attempts == seen.started
        check_result(case, found)
    assert seen.faults == []
    limit = case.options["max_concurrency"]
    assert limit is None or seen.most <= limit


def check_result(case, result):
    """Values, pins and collocation."""
    values = evaluated(case)
    assert result.results == {id: values[id] for id in case.kept}
    nodes = {id: used.node for id, used in result.allocations.items()}
    for first, ids in groups(case).items():
        pinned = case.specs[first].node
        assert len({nodes[id] for id in ids}) == 1
        assert pinned in (None, nodes[first])
        assert nodes[first] in NODES or (len(ids) == 1 and not case.specs[first].has_cost)
    for id in case.regular:
        assert bool(result.allocations[id].id) == case.specs[id].has_cost


# ---- what is run


class Seen:
    """What ran: how often each was started, how many at once, and what should not have been."""

    def __init__(self, case):
        self.case = case
        self.started = Counter()
        self.running = set()
        self.done = set()
        self.most = 0
        self.faults = []

    def begin(self, id):
        """Tells the number of the attempt."""
        if not needs(self.case, id) <= self.done or id in self.done or id in self.running:
            self.faults.append(f"{id} started when it should not have")
        self.running.add(id)
        self.most = max(self.most, len(self.running))
        self.started[id] += 1
        return self.started[id]

    def end(self, id, attempt):
        self.running.discard(id)
        if attempt > self.case.specs[id].fails:
            self.done.add(id)


class Watch(Seen):
    """Sees what runs in threads of this process."""

    def __init__(self, case, slow_s=0.0):
        super().__init__(case)
        self.slow_s = slow_s
        self.lock = threading.Lock()

    def code(self, one):
        def call(*args):
            return value_from(one, args)

        def watched(*args):
            with self.lock:
                attempt = self.begin(one.id)
            try:
                time.sleep(self.slow_s)
                if attempt <= one.fails:
                    raise ValueError(f"{one.id} fails")
                return value_from(one, args)
            finally:
                with self.lock:
                    self.end(one.id, attempt)

        return watched if one.kind == "regular" else call


class Files:
    """Sees what runs in other processes, by the files that it leaves in a folder.

    Each attempt makes one file of its own when it begins, so that no two have the same number.
    """

    def __init__(self, case, folder, slow_s=0.0):
        self.case = case
        self.folder = str(folder)
        self.slow_s = slow_s

    def code(self, one):
        folder, slow_s = self.folder, self.slow_s

        def call(*args):
            return value_from(one, args)

        def filed(*args):
            attempt = 1
            while not leave(f"{folder}/{one.id}.{attempt}.begin"):
                attempt += 1
            try:
                time.sleep(slow_s)
                if attempt <= one.fails:
                    raise ValueError(f"{one.id} fails")
                return value_from(one, args)
            finally:
                leave(f"{folder}/{one.id}.{attempt}.end")

        return filed if one.kind == "regular" else call

    def seen(self):
        """What the files tell, in the order of the times that are in them."""
        seen = Seen(self.case)
        found = [(path.read_text(), path.name) for path in Path(self.folder).iterdir()]
        for _, name in sorted((int(ns), name) for ns, name in found if ns):  # not if it was killed
            id, attempt, what = name.split(".")
            if what == "begin":
                seen.begin(id)
            else:
                seen.end(id, int(attempt))
        return seen


def leave(path):
    """Make a file with the time in it, unless it is there: then it tells False."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(file, b"%d" % time.monotonic_ns())  # one clock for all processes
    os.close(file)
    return True
