"""Assignment of functions to nodes: Handoff's examples, and general properties."""

import copy
import itertools
import pickle
import random
import warnings
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gridhand
from example_budget import examples
from gridhand import (
    CircularCollocation,
    Collocated,
    DuplicateFunction,
    Function,
    Gpu,
    GraphError,
    GridError,
    InvalidAmount,
    InvalidInput,
    InvalidName,
    InvalidRequest,
    Node,
    NotAssigned,
    Request,
    Resources,
    UnknownFunction,
    UnknownNode,
    UnknownResource,
    assign,
)
from gridhand.core.ledger.devices import DeviceHold, DeviceUsage
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.resources import UNIT
from gridhand.core.placement.device_picks import pick_together
from gridhand.core.placement.strategies import STRATEGIES

GB = 10**9


def f(id, cost="", node=None):
    """Make a function; `@other` as its node collocates it with that function."""
    if node is not None and node.startswith("@"):
        node = Collocated(node[1:])
    return Function(id, cost=cost, node=node)


def refusal(functions, capacities, **options):
    with pytest.raises(NotAssigned) as caught:
        assign(functions, capacities, **options)
    return caught.value


SEED_NODES = {"node1": {"cpu": 4, "memory": 8000}, "node2": {"cpu": 2, "memory": 4000}}
SEED_COSTS = {
    "f1": {"cpu": 2, "memory": 2000},
    "f2": {"cpu": 1, "memory": 1000},
    "f3": {"cpu": 3, "memory": 4000},
    "f4": {"cpu": 1, "memory": 1000},
}


# ---- where they go

#    what it shows                                      functions                                                   nodes                                     where they go
CHOICES = {
    "p1 the first node is filled before the next":     ([f("f1", "cpu=2"), f("f2", "cpu=1"), f("f4", "cpu=1"), f("f5", "cpu=1")], {"node1": "cpu=4", "node2": "cpu=2"}, "node1 node1 node1 node2"),
    "p2 pinned, free and collocated":                  ([f("f1", "cpu=1", "node2"), f("f2", "cpu=1"), f("f3", "cpu=1", "@f2")], {"node1": "cpu=2", "node2": "cpu=2"}, "node2 node1 node1"),
    "p2 the same in any order of the functions":       ([f("f3", "cpu=1", "@f2"), f("f2", "cpu=1"), f("f1", "cpu=1", "node2")], {"node2": "cpu=2", "node1": "cpu=2"}, "node1 node1 node2"),
    "p3 by name, not in the order given":              ([f("a", "cpu=1")],                                          {"B": "cpu=4", "A": "cpu=4"},              "A"),
    "p3 the one chosen last is tried first":           ([f("a", "cpu=3"), f("b", "cpu=1")],                         {"A": "cpu=2", "B": "cpu=4"},              "B B"),
    "p3 until it is full, then by name again":         ([f("a", "cpu=3"), f("b", "cpu=2"), f("c", "cpu=1")],        {"A": "cpu=2", "B": "cpu=4", "C": "cpu=9"}, "B A B"),
    "p3 pinned ones come before free ones":            ([f("a", "cpu=2"), f("b", "cpu=2", "A")],                    {"A": "cpu=2", "B": "cpu=2"},              "B A"),
    "p3 a pinned one is not a choice":                 ([f("a", "cpu=1", "B"), f("b", "cpu=1")],                    {"A": "cpu=2", "B": "cpu=4"},              "B A"),
    "p3 nor is one that follows a pinned one":         ([f("a", "cpu=1", "B"), f("b", "cpu=1", "@a"), f("c", "cpu=1")], {"A": "cpu=2", "B": "cpu=4"},          "B B A"),
    "p4 collocated costs add up before a node is sought": ([f("a", "cpu=2"), f("b", "cpu=2", "@a")],                {"A": "cpu=3", "B": "cpu=4"},              "B B"),
    "p4 in a chain, too":                              ([f("c", "cpu=1", "@b"), f("b", "cpu=1", "@a"), f("a", "cpu=1")], {"A": "cpu=2", "B": "cpu=3"},         "B B B"),
    "p4 and where two follow the same one":            ([f("a"), f("b", "cpu=1", "@a"), f("c", "cpu=1", "@a")],     {"A": "cpu=1", "B": "cpu=2"},              "B B B"),
    "p4 of every resource":                            ([f("a", "cpu=1"), f("b", "memory=10", "@a")],               {"A": "cpu=1", "B": "memory=10", "C": "cpu=1 memory=10"}, "C C"),
    "p4 they follow a pinned one":                     ([f("a", "memory=1900", "B"), f("b", "memory=100", "@a")],   {"A": "memory=9000", "B": "memory=2000"},  "B B"),
    "p4 one that follows comes when its leader does":  ([f("c", "cpu=1", "@b"), f("a", "cpu=2"), f("b", "cpu=1")],  {"A": "cpu=2", "B": "cpu=2"},              "B A B"),
    "p5 a chain of four, and one of no cost":          ([f("a", "cpu=1"), f("b", "cpu=1", "@a"), f("c", "cpu=1", "@b"), f("d", "cpu=1", "@c"), f("e")], {"A": "cpu=4"}, "A A A A A"),
    "to the last byte":                                ([f("a", "memory=1B"), f("b", "memory=1999999999B")],        {"A": "memory=2GB", "B": "memory=2GB"},    "A A"),
    "and not one more":                                ([f("a", "memory=2B"), f("b", "memory=1999999999B")],        {"A": "memory=2GB", "B": "memory=2GB"},    "A B"),
    "tenths add up to what they are":                  ([f(c, "cpu=0.1") for c in "abcdefghij"],                    {"A": "cpu=1"},                            "A " * 10),
    "a whole device is nobody else's":                 ([f("a", "gpu=1"), f("b", "gpu=0.1")],                       {"A": "gpu=1", "B": "gpu=1"},              "A B"),
    "shares of one device":                            ([f("a", "gpu=0.5"), f("b", "gpu=0.5"), f("c", "gpu=0.5")],  {"A": "gpu=1", "B": "gpu=1"},              "A A B"),
    "two that go together need two devices":           ([f("a", "gpu=1"), f("b", "gpu=1", "@a")],                   {"A": "gpu=1", "B": "gpu=2"},              "B B"),
    "but shares of them may be on one":                ([f("a", "gpu=0.5"), f("b", "gpu=0.5", "@a")],               {"A": "gpu=1", "B": "gpu=2"},              "A A"),
    "two halves that are more than one":               ([f("a", "gpu=0.6"), f("b", "gpu=0.6", "@a")],               {"A": "gpu=1", "B": "gpu=2"},              "B B"),
    "a share and a whole one":                         ([f("a", "gpu=0.5"), f("b", "gpu=1", "@a")],                 {"A": "gpu=1", "B": "gpu=2"},              "B B"),
    "memory of one device":                            ([f("a", "gpu_memory=6GB"), f("b", "gpu_memory=6GB", "@a")], {"A": "gpu=1 gpu_memory=10GB", "B": "gpu=2 gpu_memory=10GB"}, "B B"),
    "what they hold is held for those who come later": ([f("a", "gpu=0.5"), f("b", "gpu=0.5", "@a"), f("c", "gpu=0.5")], {"A": "gpu=1", "B": "gpu=1"},         "A A B"),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "nodes", "where"), CHOICES.values(), ids=CHOICES)
def test_where_they_go(functions, nodes, where):
    found = assign(functions, nodes)
    assert found == dict(zip([one.id for one in functions], where.split(), strict=True))
    assert list(found) == [one.id for one in functions]
    assert found.forced == {}


def test_p3_the_local_node_comes_first_but_after_the_one_chosen_last():
    nodes = {"A": "cpu=2", "B": "cpu=2", "C": "cpu=4"}
    assert assign({"a": "cpu=1"}, nodes, local="B") == {"a": "B"}
    after = assign([f("a", "cpu=4"), f("b", "cpu=2"), f("c", "cpu=2")], nodes, local="B")
    assert after == {"a": "C", "b": "B", "c": "A"}
    last = assign([f("a", "cpu=3"), f("b", "cpu=1")], nodes, local="B")
    assert last == {"a": "C", "b": "C"}


def test_handoff_spells_a_collocated_node_as_a_pair():
    functions = [
        {"id": "f1", "cost": {"cpu": 1}, "node": "node2"},
        {"id": "f2", "cost": {"cpu": 1}},
        {"id": "f3", "cost": {"cpu": 1}, "node": ("collocated", "f2")},
        {"id": "f4", "node": ["collocated", "f3"]},
    ]
    where = {"f1": "node2", "f2": "node1", "f3": "node1", "f4": "node1"}
    assert assign(functions, {"node1": {"cpu": 2}, "node2": {"cpu": 2}}) == where
    assert Function("a", node=("collocated", "b")).node == Collocated("b")


#    what it shows                     functions                                      nodes
SPELLINGS = {
    "functions":                      ([f("a", {"cpu": 2}), f("b", {"cpu": 2})],      {"A": {"cpu": 3}, "B": {"cpu": 2}}),
    "mappings":                       ([{"id": "a", "cost": {"cpu": 2}}, {"id": "b", "cost": {"cpu": 2}}], {"A": {"cpu": 3}, "B": {"cpu": 2}}),
    "ids and costs":                  ({"b": {"cpu": 2}, "a": {"cpu": 2}},            {"A": {"cpu": 3}, "B": {"cpu": 2}}),
    "text":                           ({"a": "cpu=2", "b": "cpu=2"},                  {"A": "cpu=3", "B": "cpu=2"}),
    "Resources":                      ({"a": Resources.of(cpu=2), "b": Resources.of(cpu=2)}, {"A": Resources.of(cpu=3), "B": Resources.of(cpu=2)}),
    "a Request":                      ({"a": Request.of(cpu=2), "b": Request.of(cpu=2)}, {"A": "cpu=3", "B": "cpu=2"}),
    "a seed's words":                 ({"a": {"cpu_cores": 2}, "b": {"cpu_cores": 2}}, {"A": {"cpu_cores": 3}, "B": {"cpu_cores": 2}}),
    "nodes in a list":                ({"a": "cpu=2", "b": "cpu=2"},                  [Node.of("B", cpu=2), Node.of("A", cpu=3)]),
    "nodes by name":                  ({"a": "cpu=2", "b": "cpu=2"},                  {"A": Node.of("A", cpu=3), "B": "cpu=2"}),
    "anything that is gone through":  ((one for one in [f("a", "cpu=2"), f("b", "cpu=2")]), iter([Node.of("B", cpu=2), Node.of("A", cpu=3)])),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "nodes"), SPELLINGS.values(), ids=SPELLINGS)
def test_however_it_is_written(functions, nodes):
    assert assign(functions, nodes) == {"a": "A", "b": "B"}


def test_gpu_model_and_capability_are_part_of_the_cost():
    nodes = [
        Node.of("old", cpu=8, gpus=[{"model": "V100", "memory": "16GB", "capability": "7.0"}]),
        Node.of("new", cpu=8, gpus=[{"model": "A100", "memory": "40GB", "capability": "8.0"}]),
    ]
    costs = {"a": {"gpu": 0.5, "gpu_capability": "7.0"}, "b": {"gpu": 0.5, "gpu_model": "V100"}}
    assert assign(costs, nodes) == {"a": "new", "b": "old"}


def test_a_node_that_takes_no_work_gets_none():
    drained = replace(Node.of("a", cpu=4), draining=True)
    assert assign({"f": "cpu=1", "g": ""}, [drained, Node.of("b", cpu=4)]) == {"f": "b", "g": "b"}
    assert refusal({"f": ""}, [drained]).reasons == {"f": {"a": ["the node is draining"]}}


# ---- other strategies


def test_another_strategy_ranks_the_nodes_that_fit():
    nodes = {"A": "cpu=8", "B": "cpu=3", "C": "cpu=2"}
    assert assign({"a": "cpu=2", "b": "cpu=2"}, nodes, "best_fit") == {"a": "C", "b": "B"}
    together = [f("a", "cpu=1"), f("b", "cpu=2", "@a")]
    assert assign(together, nodes, strategy="best_fit") == {"a": "B", "b": "B"}


def test_a_strategy_of_ones_own():
    def last(asked, snapshot, rows):
        return [float(row) for row in rows]

    assert assign({"a": "cpu=1"}, {"A": "cpu=1", "B": "cpu=1", "C": ""}, last) == {"a": "B"}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_devices_of_several_are_sought_on_one_node_after_another(strategy):
    nodes = {"A": "cpu=4 gpu=1", "B": "cpu=4 gpu=1", "C": "cpu=40 gpu=3"}
    shares = [f("a", "cpu=1 gpu=0.7"), f("b", "gpu=0.7", "@a"), f("c", "gpu=0.7", "@b")]
    assert set(assign(shares, nodes, strategy).values()) == {"C"}
    with pytest.raises(NotAssigned):
        assign([*shares, f("d", "gpu=0.7", "@a")], nodes, strategy)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_cost_of_nothing_fits_a_full_node(strategy):
    found = assign([f("a", "cpu=1"), f("b"), f("c", "", "@a")], {"A": "cpu=1"}, strategy)
    assert found == {"a": "A", "b": "A", "c": "A"}


# ---- what fits nowhere


def test_p1_a_function_that_fits_nowhere_is_named_with_the_reasons():
    error = refusal(SEED_COSTS, SEED_NODES)
    assert error.functions == ["f3"]
    short = "Insufficient CPU: worker has {}.00 available, task requires 3.00"
    assert error.reasons == {"f3": {"node1": [short.format(1)], "node2": [short.format(2)]}}
    assert str(error) == f"no room for f3: node1: {short.format(1)}; node2: {short.format(2)}"
    assert error.code == "not_assigned"
    assert "strict=False" in error.hint


def test_p1_unless_strict_it_goes_to_the_first_node_and_that_is_said():
    found = assign(SEED_COSTS, SEED_NODES, strict=False)
    assert found == {"f1": "node1", "f2": "node1", "f3": "node1", "f4": "node1"}
    why = "Insufficient CPU: worker has 1.00 available, task requires 3.00"
    assert found.forced == {"f3": f"f3 does not fit on node1: {why}"}
    assert f"f3 → node1, although f3 does not fit on node1: {why}" in str(found).splitlines()
    assert "f2 → node1" in str(found).splitlines()


def test_handoffs_big_task_goes_to_the_first_node_though_it_does_not_fit():
    nodes = {"node2": {"cpu": 1, "memory": 1000}, "node1": {"cpu": 1, "memory": 1000}}
    found = assign({"big_task": {"cpu": 2, "memory": 2000}}, nodes, strict=False)
    assert found == {"big_task": "node1"}
    assert found.forced.keys() == {"big_task"}


def test_the_first_node_is_that_of_the_current_order():
    nodes = {"A": "cpu=1", "B": "cpu=2", "C": "cpu=1"}
    assert assign({"a": "cpu=9"}, nodes, strict=False, local="C") == {"a": "C"}
    assert assign([f("a", "cpu=2"), f("b", "cpu=9")], nodes, strict=False, local="C")["b"] == "B"
    assert assign([f("a", "cpu=2", "B"), f("b", "cpu=9")], nodes, strict=False)["b"] == "A"
    assert assign({"a": "cpu=9"}, nodes, "best_fit", strict=False) == {"a": "A"}


def test_a_forced_function_takes_nothing_from_the_others():
    found = assign([f("a", "cpu=9"), f("b", "cpu=2")], {"A": "cpu=2"}, strict=False)
    assert found == {"a": "A", "b": "A"}
    assert found.forced.keys() == {"a"}


def test_p4_of_two_pinned_ones_the_second_is_named_with_the_node():
    functions = [f("f1", "memory=1900", "n1"), f("f2", "memory=150", "n1")]
    error = refusal(functions, {"n1": "memory=2000", "n2": "memory=2000"})
    short = "Insufficient Memory: worker has 0.10 GB available, task requires 0.15 GB"
    assert error.reasons == {"f2": {"n1": [short]}}
    assert str(error) == f"no room for f2: n1: {short}"


@pytest.mark.parametrize("node", ["n1", None])
def test_p4_if_it_is_collocated_both_are_named(node):
    functions = [f("f1", "memory=1900", node), f("f2", "memory=150", "@f1")]
    error = refusal(functions, {"n1": "memory=2000"})
    short = "Insufficient Memory: worker has 2.00 GB available, task requires 2.05 GB"
    assert error.reasons == {"f1": {"n1": [short]}, "f2": {"n1": [short]}}
    assert str(error) == f"no room for f1 with f2: n1: {short}"


def test_a_pinned_function_that_does_not_fit_stays_on_its_node():
    nodes = {"n1": "cpu=9", "n2": "cpu=1"}
    found = assign([f("a", "cpu=2", "n2"), f("b", "cpu=1", "@a")], nodes, strict=False)
    assert found == {"a": "n2", "b": "n2"}
    sentence = "a with b does not fit on n2: Insufficient CPU: worker has 1.00 available, task requires 3.00"
    assert found.forced == {"a": sentence, "b": sentence}


#    what it shows                          the second ask   the reason
DEVICES = {
    "whole devices are counted together":  ("gpu=1",         "Insufficient GPU: worker has 1.00 available, task requires 2.00"),
    "a share, beside the others":          ("gpu=0.5",       "Insufficient GPU: worker has 0.00 available, task requires 0.50 (for b, beside the others)"),
    "plain amounts come first":            ("gpu=1 cpu=9",   "Insufficient CPU: worker has 4.00 available, task requires 9.00"),
}  # fmt: skip


@pytest.mark.parametrize(("second", "reason"), DEVICES.values(), ids=DEVICES)
def test_why_the_devices_of_several_do_not_fit(second, reason):
    functions = [f("a", "gpu=1"), f("b", second, "@a"), f("c", "cpu=4 gpu=1")]
    nodes = {"n1": Node.of("n1", cpu=4, gpu=1)}
    found = assign(functions, nodes, strict=False)
    assert found.forced["b"] == f"a with b does not fit on n1: {reason}"
    assert found.forced.keys() == {"a", "b"}  # looking for the reason left nothing behind


def test_p8_an_empty_cluster_is_refused_with_a_reason():
    for strict in (True, False):
        error = refusal({"f1": "cpu=1", "f2": ""}, {}, strict=strict)
        assert str(error) == "no room for f1: there are no nodes; nor for f2: there are no nodes"
        assert error.hint == "Give at least one node."
    assert assign([], {}) == {}
    assert str(assign([], {})) == "no functions"


def test_all_that_fit_nowhere_are_named():
    functions = [f("a", "cpu=2", "n2"), f("b", "cpu=1"), f("c", "cpu=3"), f("d", "cpu=3", "@c")]
    error = refusal(functions, {"n1": "cpu=1", "n2": "cpu=1"})
    assert error.functions == ["a", "c", "d"]
    assert error.reasons["a"].keys() == {"n2"}
    assert error.reasons["d"].keys() == {"n1", "n2"}
    for words in ("no room for a: n2: ", "nor for c with d: n1: "):
        assert words in str(error)


def test_a_long_message_is_cut_but_has_all_reasons_as_data():
    error = refusal({f"f{n:04}": "cpu=9" for n in range(2000)}, {f"n{n}": "" for n in range(9)})
    assert len(error.reasons) == len(error.functions) == 2000
    assert len(error.reasons["f0000"]) == 9
    assert str(error).endswith("f0022 and 1977 more")
    assert (
        "n2: Insufficient CPU: worker has 0.00 available, task requires 9.00; and other nodes"
        in str(error)
    )
    assert "n3" not in str(error)
    assert len(str(error)) < 2000


def test_an_unknown_resource_is_named_with_its_function_and_the_nearest():
    functions = [f("a", "cpu=1"), f("b", "memmory=1", "@a")]
    with pytest.raises(UnknownResource, match=r"function b: .*'memmory'; did you mean memory"):
        assign(functions, {"n1": "cpu=1 memory=1"})
    assert assign(functions, {"n1": "cpu=1 memory=1"}, strict=False).forced.keys() == {"a", "b"}


# ---- the result


def test_an_assignment_is_a_dict_that_survives_being_copied_and_pickled():
    found = assign({"a": "cpu=2", "b": "cpu=1"}, {"A": "cpu=1"}, strict=False)
    assert isinstance(found, dict)
    assert repr(found) == "{'a': 'A', 'b': 'A'}"
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(again) is type(found)
        assert again == found == {"a": "A", "b": "A"}
        assert again.forced == found.forced != {}


def test_a_function_is_a_value_apart_from_what_it_was_made_of():
    cost = {"cpu": 1}
    made = Function("a", len, ["b"], [1], cost, "n1")
    cost["cpu"] = 99
    assert made == Function(
        id="a", code=len, args=("b",), extra_args=(1,), cost={"cpu": 1}, node="n1"
    )
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(copy.copy(made))
    assert {Function("a"): 1}[Function("a")] == 1
    with pytest.raises(AttributeError):
        made.id = "b"
    assert Function("a").cost == {}


def test_nothing_is_said_and_nothing_given_is_changed(caplog, capsys):
    functions, nodes = copy.deepcopy(SEED_COSTS), copy.deepcopy(SEED_NODES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = random.getstate()
        assign(functions, nodes, strict=False)
    assert random.getstate() == state
    assert (functions, nodes) == (SEED_COSTS, SEED_NODES)
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


# ---- what cannot be read

THING = object()
N1 = {"n1": "cpu=4"}

#    what is wrong                                 the call                                                            error                words
FAULTS = {
    "an id twice":                                (lambda: assign([f("a"), f("b"), f("a")], N1),                       DuplicateFunction,   "'a'"),
    "collocated with one that is not there":      (lambda: assign([f("load"), f("b", "", "@laod")], N1),               UnknownFunction,     "function b refers to 'laod', which is not in the graph; did you mean load?"),
    "collocated with itself":                     (lambda: assign([f("a", "", "@a")], N1),                             CircularCollocation, "a → a"),
    "collocated in a circle":                     (lambda: assign([f("d", "", "@a"), f("a", "", "@b"), f("b", "", "@c"), f("c", "", "@a")], N1), CircularCollocation, "circle: a → b → c → a"),
    "pinned to a node that is not there":         (lambda: assign([f("a", "", "nod1")], {"node1": ""}),                UnknownNode,         "function a: there is no node named 'nod1'; did you mean node1?"),
    "the same without strict":                    (lambda: assign([f("a", "", "n2")], {"n1": ""}, strict=False),       UnknownNode,         "function a"),
    "a local node that is not there":             (lambda: assign([], N1, local="n9"),                                 UnknownNode,         "'n9'"),
    "a negative cost":                            (lambda: Function("f1", cost={"cpu": -1}),                           InvalidAmount,       "function f1: cpu: -1 is not valid"),
    "the same among ids and costs":               (lambda: assign({"a": "cpu=1", "b": {"memory": "4 QB"}}, N1),        InvalidAmount,       "function b: memory: '4 QB' is not valid"),
    "a cost that is no cost":                     (lambda: assign({"f1": 5}, N1),                                      InvalidRequest,      "function f1: resources: 5"),
    "a device and a half":                        (lambda: assign({"f1": "gpu=1.5"}, N1),                              InvalidRequest,      "function f1: gpu: '1.5'"),
    "a model without a device":                   (lambda: assign({"f1": {"gpu_model": "A100"}}, N1),                  InvalidRequest,      "function f1: "),
    "a cost that says where":                     (lambda: Function("f1", cost=Request.of(cpu=1, node="n1")),          InvalidRequest,      "function f1: cost: "),
    "a cost with alternatives":                   (lambda: Function("f1", cost=Request.of(cpu=1, gpu=1, fallback="cpu")), InvalidRequest,   "function f1: cost: "),
    "a node that is no name":                     (lambda: Function("f1", node=5),                                     InvalidName,         "function f1: node: 5"),
    "a pair that is none":                        (lambda: Function("f1", node=("beside", "f2")),                      InvalidName,         "function f1: node: "),
    "collocated with no id":                      (lambda: Function("f1", node=("collocated", None)),                  InvalidName,         "function f1: collocated: None"),
    "Collocated of no id":                        (lambda: Collocated(None),                                           InvalidName,         "collocated: None"),
    "args as text":                               (lambda: Function("f1", args="f2"),                                  InvalidInput,        "function f1: args: 'f2'"),
    "extra_args as a number":                     (lambda: Function("f1", extra_args=5),                               InvalidInput,        "function f1: extra_args: 5"),
    "an id that is none":                         (lambda: Function(None),                                             InvalidName,         "function id: None"),
    "an id with a newline":                       (lambda: assign({"a\nb": "cpu=1"}, N1),                              InvalidName,         "function id"),
    "an id of a megabyte":                        (lambda: assign({"a" * 10**6: "cpu=1"}, N1),                         InvalidName,         "function id"),
    "ids of two kinds":                           (lambda: assign({"a": "cpu=1", 5: "cpu=1"}, N1),                     InvalidName,         "function id: 5"),
    "no id":                                      (lambda: assign([{"cost": {"cpu": 1}}], N1),                         InvalidInput,        "functions: {'cost'"),
    "a field there is not":                       (lambda: assign([{"id": "a", "cots": {}}], N1),                      InvalidInput,        "functions: 'cots'"),
    "a function that is none":                    (lambda: assign([THING], N1),                                        InvalidInput,        "functions: <object"),
    "functions as text":                          (lambda: assign("f1", N1),                                           InvalidInput,        "functions: 'f1'"),
    "functions in a set, which has no order":     (lambda: assign({f("a")}, N1),                                       InvalidInput,        "functions: {"),
    "functions as a number":                      (lambda: assign(5, N1),                                              InvalidInput,        "functions: 5"),
    "nodes as a number":                          (lambda: assign([], 5),                                              InvalidInput,        "capacities: 5"),
    "nodes as text":                              (lambda: assign([], "cpu=4"),                                        InvalidInput,        "capacities: 'cpu=4'"),
    "names without resources":                    (lambda: assign([], ["n1"]),                                         InvalidInput,        "capacities: 'n1'"),
    "a node twice":                               (lambda: assign([], [Node.of("n1", cpu=1), Node.of("n1", cpu=2)]),   InvalidInput,        "capacities: 'n1'"),
    "a node under another name":                  (lambda: assign([], {"n1": Node.of("n2", cpu=1)}),                   InvalidInput,        "capacities: 'n1'"),
    "a node's bad name":                          (lambda: assign([], {"n\n1": "cpu=1"}),                              InvalidName,         "node: "),
    "a node's bad amount":                        (lambda: assign([], {"n1": "cpu=1", "n2": {"cpu": -1}}),             InvalidAmount,       "node n2: cpu: -1 is not valid"),
    "a node put together badly":                  (lambda: assign([], [Node("n1", 5)]),                                InvalidInput,        "capacity: 5"),
    "a device on two nodes":                      (lambda: assign([], [Node.of(name, gpus=[{"id": "X"}]) for name in ("n1", "n2")]), InvalidInput, "gpu id: 'X'"),
    "a strategy there is not":                    (lambda: assign([], N1, "luck"),                                     GridError,           "luck"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "words"), FAULTS.values(), ids=FAULTS)
def test_invalid_input_is_refused(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert words in message
    assert len(message) < 500
    assert "\n" not in message
    assert caught.value.hint.strip()
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_the_error_does_not_depend_on_the_order_of_a_mapping():
    for names in (("n1", "n2"), ("n2", "n1")):
        with pytest.raises(InvalidAmount, match="node n1"):
            assign([], {name: {"cpu": -1} for name in names})
        with pytest.raises(InvalidAmount, match="function n1"):
            assign({name: {"cpu": -1} for name in names}, {})


def test_faults_of_a_graph_have_one_root():
    assert issubclass(DuplicateFunction, GraphError)
    assert issubclass(UnknownFunction, GraphError)
    assert issubclass(CircularCollocation, GraphError)


def test_a_chain_or_a_circle_may_be_long():
    chain = [f("f0", "cpu=1"), *(f(f"f{n}", "cpu=0.001", f"@f{n - 1}") for n in range(1, 5001))]
    random.Random(1).shuffle(chain)
    assert set(assign(chain, {"a": "cpu=5.9999", "b": "cpu=6"}).values()) == {"b"}
    circle = [f(f"f{n}", "", f"@f{(n + 1) % 5000}") for n in range(5000)]
    with pytest.raises(CircularCollocation) as caught:
        assign(circle, {})
    assert len(caught.value.ids) == 5000
    assert len(str(caught.value)) < 500


# ---- what holds for all of them: recounted with plain numbers

NAMES = ["n1", "n2", "n3", "n10"]


@st.composite
def problems(draw):
    """Functions as (id, cpu, memory, node or (other,) or None), and nodes as (cpu, memory)."""
    nodes = {
        name: (draw(st.integers(0, 6)), draw(st.integers(0, 6)))
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    }
    functions = []
    for number in range(draw(st.integers(0, 8))):
        others = [(f"f{one}",) for one in range(number)]
        node = draw(st.sampled_from([None, None, None, *nodes, *others]))
        functions.append((f"f{number}", draw(st.integers(0, 4)), draw(st.integers(0, 4)), node))
    return draw(st.permutations(functions)), nodes


def solved(functions, nodes, **options):
    return assign(
        [
            Function(id, cost={"cpu": cpu, "memory": f"{memory}GB"}, node=written(node))
            for id, cpu, memory, node in functions
        ],
        {name: {"cpu": cpu, "memory": f"{memory}GB"} for name, (cpu, memory) in nodes.items()},
        **options,
    )


def written(node):
    return ("collocated", *node) if isinstance(node, tuple) else node


def leader(id, functions):
    nodes = {one: node for one, _, _, node in functions}
    while isinstance(nodes[id], tuple):
        [id] = nodes[id]
    return id


def total(those):
    return sum(cpu for _, cpu, _, _ in those), sum(memory for _, _, memory, _ in those)


def used(found, functions):
    return {
        name: total([one for one in functions if found.get(one[0]) == name])
        for name in set(found.values())
    }


ANY_STRATEGY = st.sampled_from(sorted(STRATEGIES))


@settings(max_examples=examples(60))
@given(problems(), ANY_STRATEGY)
def test_no_node_is_promised_more_than_it_has(problem, strategy):
    functions, nodes = problem
    found = solved(*problem, strategy=strategy, strict=False)
    assert list(found) == [id for id, *_ in functions]
    fitting = {id: name for id, name in found.items() if id not in found.forced}
    for name, (cpu, memory) in used(fitting, functions).items():
        assert cpu <= nodes[name][0]
        assert memory <= nodes[name][1]


@settings(max_examples=examples(60))
@given(problems(), ANY_STRATEGY)
def test_pinned_ones_are_where_they_are_pinned_and_collocated_ones_together(problem, strategy):
    functions, _ = problem
    found = solved(*problem, strategy=strategy, strict=False)
    for id, _, _, node in functions:
        assert found[id] == (found[node[0]] if isinstance(node, tuple) else node or found[id])


@settings(max_examples=examples(60))
@given(problems(), ANY_STRATEGY)
def test_a_refusal_is_right_and_names_every_one(problem, strategy):
    functions, nodes = problem
    found = solved(*problem, strategy=strategy, strict=False)
    fitting = {id: name for id, name in found.items() if id not in found.forced}
    taken = used(fitting, functions)
    for id in found.forced:
        first = leader(id, functions)
        [pin] = [node for one, _, _, node in functions if one == first]
        those = [one for one in functions if leader(one[0], functions) == first]
        assert {one[0] for one in those} <= found.forced.keys()
        cpu, memory = total(those)
        for name in [pin] if pin else nodes:
            spent = taken.get(name, (0, 0))
            assert cpu > nodes[name][0] - spent[0] or memory > nodes[name][1] - spent[1]
    if not found.forced:
        assert solved(*problem, strategy=strategy) == found
        return
    with pytest.raises(NotAssigned) as caught:
        solved(*problem, strategy=strategy)
    assert sorted(caught.value.functions) == sorted(found.forced)
    for id, reasons in caught.value.reasons.items():
        assert all(reasons.values()), id


@settings(max_examples=examples(60))
@given(problems(), st.sampled_from([None, *NAMES]))
@example(([("f0", 3, 0, None), ("f1", 1, 0, None)], {"n1": (2, 0), "n2": (4, 0)}), None)
@example(
    (
        [("f0", 0, 1, None), ("f1", 2, 0, None), ("f2", 1, 0, None)],
        {"n1": (1, 0), "n2": (2, 0), "n3": (1, 1)},
    ),
    None,
)  # the one before the last comes before those that were never chosen
def test_first_available_keeps_handoffs_order(problem, local):
    functions, nodes = problem
    local = local if local in nodes else None
    free = {name: list(has) for name, has in nodes.items()}
    expected, recent = {}, []
    leaders = [one for one in functions if not isinstance(one[3], tuple)]
    for id, _, _, pin in sorted(leaders, key=lambda one: one[3] is None):
        those = [one for one in functions if leader(one[0], functions) == id]
        cpu, memory = total(those)
        order = [pin] if pin else recent + [local] * (local is not None) + sorted(nodes)
        fits = [name for name in order if cpu <= free[name][0] and memory <= free[name][1]]
        if fits:
            free[fits[0]][0] -= cpu
            free[fits[0]][1] -= memory
            recent = recent if pin else [fits[0], *(one for one in recent if one != fits[0])]
        expected |= {one[0]: (fits or order)[0] for one in those}
    assert solved(functions, nodes, local=local, strict=False) == expected


@settings(max_examples=examples(50))
@given(problems(), ANY_STRATEGY, st.randoms(use_true_random=False))
def test_the_order_of_mappings_changes_nothing(problem, strategy, chance):
    functions, nodes = problem
    shuffled = dict(chance.sample(list(nodes.items()), len(nodes)))
    found = solved(functions, nodes, strategy=strategy, strict=False)
    again = solved(functions, shuffled, strategy=strategy, strict=False)
    assert list(again.items()) == list(found.items())
    assert again.forced == found.forced
    costs = {id: {"cpu": cpu} for id, cpu, _, _ in functions}
    mixed = {id: costs[id] for id in chance.sample(list(costs), len(costs))}
    has = {name: {"cpu": cpu} for name, (cpu, _) in nodes.items()}
    found = assign(costs, has, strategy, strict=False)
    again = assign(mixed, has, strategy, strict=False)
    assert list(again.items()) == list(found.items())
    assert again.forced == found.forced


# ---- devices that are picked together

#                          model, GB    what is asked: devices, share in tenths (10: whole, 0: by memory), GB, model
ANY_DEVICE = st.tuples(st.sampled_from("AB"), st.integers(4, 8))
ANY_ASK = st.one_of(
    st.tuples(st.integers(1, 2), st.just(10), st.none(), st.sampled_from(["A", None])),
    st.tuples(st.just(1), st.integers(1, 9), st.sampled_from([None, 1, 3]), st.sampled_from(["A", None])),
    st.tuples(st.integers(1, 2), st.just(0), st.integers(1, 6), st.sampled_from(["B", None])),
)  # fmt: skip


def may_be_held(holds, devices):
    """Return whether pairs of (request, device number) respect the limits of every device."""
    for number, (model, size) in enumerate(devices):
        here = [ask for ask, where in holds if where == number]
        if any(share == 10 for _, share, _, _ in here) and len(here) > 1:
            return False
        memory = sum(
            Fraction(size * share, 10) if size_of is None else size_of
            for _, share, size_of, _ in here
        )
        if sum(share for _, share, _, _ in here) > 10 or memory > size:
            return False
        if any(wanted not in (None, model) for _, _, _, wanted in here):
            return False
    return True


def can_be_picked(asks, devices):
    """Return whether any assignment exists, by trying them all."""
    ways = [list(itertools.combinations(range(len(devices)), ask[0])) for ask in asks]
    return any(
        may_be_held([(a, d) for a, where in zip(asks, way, strict=True) for d in where], devices)
        for way in itertools.product(*ways)
    )


@settings(max_examples=examples(100))
@given(st.lists(ANY_ASK, min_size=1, max_size=6), st.lists(ANY_DEVICE, min_size=1, max_size=3))
@example([(1, 0, 4, None), (1, 10, None, "A")], [("A", 4), ("B", 4)])
@example([(1, share, None, None) for share in (4, 4, 3, 3, 3, 3)], [("A", 4), ("A", 4)])
@example([(1, 5, 3, None), (1, 0, 5, None), (1, 0, 4, None)], [("A", 4), ("A", 8)])
def test_devices_are_found_together_whenever_there_is_a_way(asks, devices):
    found = pick_together(
        [
            GpuRequest(count, share * UNIT // 10, None if size is None else size * GB, model)
            for count, share, size, model in asks
        ],
        [
            DeviceUsage(Gpu(str(number), number, model, size * GB))
            for number, (model, size) in enumerate(devices)
        ],
    )
    assert (found is not None) == can_be_picked(asks, devices)
    if found is None:
        return
    assert [len(holds) for holds in found] == [ask[0] for ask in asks]
    for holds in found:
        assert max(Counter(hold.device for hold in holds).values()) == 1
    pairs = [(a, int(hold.device)) for a, holds in zip(asks, found, strict=True) for hold in holds]
    assert may_be_held(pairs, devices)


def test_existing_allocations_are_counted_and_kept():
    use = DeviceUsage(Gpu("x", memory_bytes=10 * GB))
    use.add(DeviceHold.of(GpuRequest(1, UNIT // 2, None), use.gpu))
    half, more = GpuRequest(1, UNIT // 4, None), GpuRequest(1, UNIT // 4 + 1, None)
    assert pick_together([half, half], [use]) is not None
    assert pick_together([half, more], [use]) is None
    assert (use.share, use.memory_bytes, use.holds) == (UNIT // 2, 5 * GB, 1)


def test_a_contrived_packing_is_given_up_and_not_searched_for_ever():
    asks = [GpuRequest(1, 3334 + n, None) for n in range(24)]  # two to a device, and no third
    assert pick_together(asks, [DeviceUsage(Gpu(str(n))) for n in range(11)]) is None


def test_the_public_names():
    assert {"Function", "Collocated", "assign", "NotAssigned"} <= set(gridhand.__all__)
