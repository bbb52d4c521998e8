"""Whatever is given that is wrong: a named error that helps, and nothing is changed."""

import copy
import inspect
import math
import pickle
import traceback
from decimal import Decimal

import numpy as np
import pytest

from gridhand import (
    Gpu,
    Grid,
    GridError,
    InvalidInput,
    MoveRefused,
    Node,
    NoRoom,
    Request,
    Resources,
    UnknownAllocation,
    UnknownNode,
    UnknownResource,
)
from gridhand.core import errors

SQL = "x'; DROP TABLE nodes; --"
LONG = "x" * 10**6
THING = object()


@pytest.fixture
def grid():
    with Grid.in_memory(owner="ann") as opened:
        furnish(opened)
        yield opened


def furnish(grid):
    """A bit of everything, so that a mistake has something to spoil."""
    grid.register_node("n1", cpu=4, memory="8GB", gpus=[{"id": "A", "memory": "24GB"}])
    grid.register_node("n2", cpu=4, labels={"zone": "a"})
    grid.allocate(cpu=1, gpu=0.5, holder="train", node="n1")
    grid.allocate(cpu=1, ttl=600, node="n2")
    grid.reserve(cpu=1, ttl=600, node="n2")
    grid.report_foreign("n1", {"A": "1GB"})


def seen(grid):
    return {key: value for key, value in grid.dump().items() if key != "now"}


def refused(grid, call):
    """The error of `call`, after all that is true of every such error was checked."""
    before, events = seen(grid), len(grid.events())
    with pytest.raises(GridError) as caught:
        call(grid)
    error = caught.value
    assert isinstance(
        error,
        InvalidInput | UnknownNode | UnknownResource | UnknownAllocation | NoRoom | MoveRefused,
    )
    message = str(error)
    assert message.strip()
    assert "\n" not in message
    assert "\r" not in message
    assert len(message) < 500
    assert error.hint.strip()
    assert len(error.hint) < 500
    assert "\n" not in error.hint
    assert error.code == type(error).code
    assert seen(grid) == before
    assert len(grid.events()) == events
    assert grid.check() == []
    return error


# ---- amounts

AMOUNTS = {
    "negative": -1,
    "a negative fraction": -0.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "True": True,
    "False": False,
    "None": None,
    "a list": [1],
    "a mapping": {"cpu": 1},
    "bytes": b"4",
    "an object": THING,
    "a unit there is not": "4 QB",
    "an exponent in text": "1e3",
    "NaN in text": "nan",
    "a minus in text": "-4",
    "empty text": "",
    "a word": "many",
    "a newline": "4\n",
    "a NUL": "4\0",
    "digits of another script": "٤",
    "SQL": SQL,
    "a megabyte of text": LONG,
    "a megabyte of digits": "1" * 10**6,
    "10**30": 10**30,
    "10**5000": 10**5000,
    "a float of 1e300": 1e300,
    "1e-12": 1e-12,
    "the smallest float": 5e-324,
    "a tiny decimal": Decimal("1e-2000000"),
    "a NaN of numpy": np.float64("nan"),
    "an array of numpy": np.array([[1, 2], [3, 4]]),
}

#    where the amount is given            the call                                              how the field is called
AMOUNT_PLACES = {
    "allocate cpu":                      (lambda g, v: g.allocate(cpu=v),                       "cpu"),
    "allocate memory of a mapping":      (lambda g, v: g.allocate({"cpu": 1, "memory": v}),     "memory"),
    "allocate in a seed's spelling":     (lambda g, v: g.allocate(memory_gb=v),                 "memory"),
    "allocate gpu":                      (lambda g, v: g.allocate(gpu=v),                       "gpu"),
    "reserve":                           (lambda g, v: g.reserve(cpu=v),                        "cpu"),
    "fits":                              (lambda g, v: g.fits("n1", cpu=v),                     "cpu"),
    "a group":                           (lambda g, v: g.allocate_group([{"cpu": 1}, {"cpu": v}]), "cpu"),
    "an alternative":                    (lambda g, v: g.allocate(cpu=1, alternatives=[{"cpu": v}]), "cpu"),
    "a factor of quality":               (lambda g, v: g.allocate(cpu=1, quality="high", scaling={"cpu": v}), "cpu factor"),
    "a node":                            (lambda g, v: g.register_node("n3", cpu=v),            "cpu"),
    "a node's number of devices":        (lambda g, v: g.register_node("n3", gpu=v),            "gpu"),
    "a device":                          (lambda g, v: g.register_node("n3", gpus=[{"memory": v}]), "gpu_memory"),
    "a price":                           (lambda g, v: g.register_node("n3", cpu=1, price=v),   "price"),
    "what strangers use":                (lambda g, v: g.report_foreign("n1", {"A": v}),        "gpu_memory"),
}  # fmt: skip


def problems(call, values, then=None):
    """What is wrong with the refusals of `call`, value by value: nothing, if all is well.

    One grid serves all values, and a fresh one comes after any that was not refused rightly.
    """
    found, grid = [], None
    for name, value in values.items():
        if grid is None:
            grid = Grid.in_memory(owner="ann")
            furnish(grid)
        try:
            error = refused(grid, lambda g, v=value: call(g, v))
            if then is not None:
                then(str(error))
        except (Exception, pytest.fail.Exception) as error:
            found.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            grid.close()
            grid = None
    if grid is not None:
        grid.close()
    return found


@pytest.mark.parametrize("place", AMOUNT_PLACES)
def test_an_amount_that_is_none(place):
    call, field = AMOUNT_PLACES[place]

    def named(message):
        assert message.startswith(f"{field}: "), message
        assert message.endswith(" is not valid"), message

    assert problems(call, AMOUNTS, named) == []


def test_the_value_is_shown_as_it_was_given(grid):
    for value, words in ((-1, "-1"), ("4 QB", "'4 QB'"), (True, "True"), (None, "None")):
        error = refused(grid, lambda g, v=value: g.allocate(cpu=v))
        assert str(error) == f"cpu: {words} is not valid"


# ---- names

NAMES = {
    "None": None,
    "a number": 5,
    "a float": 1.5,
    "True": True,
    "a list": ["n1"],
    "a mapping": {"n1": 1},
    "bytes": b"n1",
    "an object": THING,
    "empty": "",
    "a blank": " ",
    "a newline": "n1\n",
    "a newline within": "n\n1",
    "a carriage return": "n1\r",
    "a NUL": "n1\0",
    "an escape": "\x1b[31mn1",
    "an umlaut": "knöten",
    "a look-alike": "n１",
    "right to left": "\u202en1",
    "a lone surrogate": "\ud800",
    "an emoji": "🚀",
    "SQL": SQL,
    "a path": "../n1",
    "a megabyte": LONG,
}

NAME_PLACES = {
    "register_node": lambda g, v: g.register_node(v, cpu=1),
    "register_nodes": lambda g, v: g.register_nodes([Node(v, Resources.of(cpu=1))]),
    "node": lambda g, v: g.node(v),
    "drain": lambda g, v: g.drain(v),
    "resume": lambda g, v: g.resume(v),
    "set_health": lambda g, v: g.set_health(v, "down"),
    "unregister": lambda g, v: g.unregister(v, force=True),
    "report_foreign": lambda g, v: g.report_foreign(v, {}),
    "fits": lambda g, v: g.fits(v, cpu=1),
    "prefer among others": lambda g, v: g.allocate(cpu=1, prefer=["n1", v]),
    "exclude among others": lambda g, v: g.allocate(cpu=1, exclude=("n1", v)),
    "a label's name": lambda g, v: g.register_node("n3", cpu=1, labels=pair(v, "x")),
    "a label's value": lambda g, v: g.register_node("n3", cpu=1, labels={"zone": v}),
    "a label that is asked for": lambda g, v: g.allocate(cpu=1, labels={"zone": v}),
    "release": lambda g, v: g.release(v),
    "confirm": lambda g, v: g.confirm(v),
    "renew": lambda g, v: g.renew(v),
    "owner": lambda g, v: g.for_owner(v),
    "a Gpu": lambda g, v: g.register_node("n3", gpus=[Gpu(id=v)]),
}
# Where None means that nothing was said.
OPTIONAL_NAME_PLACES = {
    "pinned": lambda g, v: g.allocate(cpu=1, node=v),
    "holder": lambda g, v: g.allocate(cpu=1, holder=v),
    "holder of a reservation": lambda g, v: g.reserve(cpu=1, holder=v),
    "holder of a group": lambda g, v: g.allocate_group([{"cpu": 1}], holder=v),
    "op_id of allocate": lambda g, v: g.allocate(cpu=1, op_id=v),
    "op_id of a group": lambda g, v: g.allocate_group([{"cpu": 1}], op_id=v),
    "op_id of reserve": lambda g, v: g.reserve(cpu=1, op_id=v),
    "op_id of confirm": lambda g, v: g.confirm("a1-3", op_id=v),
    "op_id of renew": lambda g, v: g.renew("a1-2", op_id=v),
    "op_id of release": lambda g, v: g.release("a1-1", op_id=v),
    "op_id of register_node": lambda g, v: g.register_node("n3", cpu=1, op_id=v),
    "op_id of drain": lambda g, v: g.drain("n1", op_id=v),
    "op_id of resume": lambda g, v: g.resume("n1", op_id=v),
    "op_id of set_health": lambda g, v: g.set_health("n1", "down", op_id=v),
    "op_id of unregister": lambda g, v: g.unregister("n1", force=True, op_id=v),
}


def pair(key, value):
    """A mapping with that key, or something no better where it can be none."""
    try:
        return {key: value}
    except TypeError:
        return [key, value]


@pytest.mark.parametrize("place", NAME_PLACES)
def test_a_name_that_is_none(place):
    assert problems(NAME_PLACES[place], NAMES) == []


@pytest.mark.parametrize("place", OPTIONAL_NAME_PLACES)
def test_a_name_that_may_be_absent_but_is_none(place):
    given = {name: value for name, value in NAMES.items() if value is not None}
    assert problems(OPTIONAL_NAME_PLACES[place], given) == []


#    what is wrong                             the call                                                       words
TEXTS = {
    "an unknown node is named":               (lambda g: g.node("n9"),                                        "'n9'"),
    "a long name is shortened":               (lambda g: g.node(LONG),                                        "..."),
    "an unknown resource is named":           (lambda g: g.allocate(cpu=1, fpga=1),                           "'fpga'"),
    "the nearest resource is named":          (lambda g: g.allocate(memmory=1),                               "did you mean memory?"),
    "an unknown allocation is named":         (lambda g: g.release("a1-99"),                                  "'a1-99'"),
    "a resource's name with a newline":       (lambda g: g.allocate({"cpu\n": 1}),                            r"resource name: 'cpu\n'"),
    "a resource's name with a NUL":           (lambda g: g.allocate({"cpu\0": 1}),                            "resource name"),
    "a resource's name with SQL":             (lambda g: g.allocate({SQL: 1}),                                "resource name"),
    "a resource's name of a megabyte":        (lambda g: g.allocate({LONG: 1}),                               "resource name"),
    "a resource's name in another script":    (lambda g: g.allocate({"память": 1}),                           "resource name"),
    "a resource's name that is a number":     (lambda g: g.allocate({5: 1}),                                  "resource name"),
    "a node's resource with SQL":             (lambda g: g.register_node("n3", {SQL: 1}),                     "resource name"),
    "10,000 names":                           (lambda g: g.allocate({f"r{n}": 1 for n in range(10_000)}),     "10000 names"),
    "10,000 names of a node":                 (lambda g: g.register_node("n3", {f"r{n}": 1 for n in range(10_000)}), "10000 names"),
    "10,000 names in text":                   (lambda g: g.allocate(" ".join(f"r{n}=1" for n in range(10_000))), "10000 names"),
    "64 long names that no node has":         (lambda g: g.allocate({f"r{n:02}" + "x" * 60: 1 for n in range(64)}), "no node has"),
    "64 long names that a node has":          (lambda g: g.allocate({"cpu": 99} | dict.fromkeys(["memory", "disk", "bandwidth"], 1)), "Insufficient CPU"),
    "a name that is a parameter of ours":     (lambda g: g.allocate(given=1),                                 "'given'"),
    "another that is":                        (lambda g: g.allocate(cls=1),                                   "'cls'"),
    "a priority there is not":                (lambda g: g.allocate(cpu=1, priority="highest"),               "priority"),
    "nothing is asked for":                   (lambda g: g.allocate(),                                        "resources"),
    "nothing, as a mapping":                  (lambda g: g.allocate({}),                                      "resources"),
    "nothing but zeros":                      (lambda g: g.allocate(cpu=0, memory="0GB"),                     "resources"),
    "nothing is reserved":                    (lambda g: g.reserve(),                                         "resources"),
    "nothing fits":                           (lambda g: g.fits("n1"),                                        "resources"),
    "resources as a number":                  (lambda g: g.allocate(5),                                       "resources: 5"),
    "resources as a list":                    (lambda g: g.allocate(["cpu"]),                                 "resources: ['cpu']"),
    "resources as bytes":                     (lambda g: g.allocate(b"cpu=1"),                                "resources: b'cpu=1'"),
    "resources as an object":                 (lambda g: g.allocate(THING),                                   "resources: <object"),
    "resources of a node as a number":        (lambda g: g.register_node("n3", 5),                            "resources: 5"),
    "text that does not parse":               (lambda g: g.allocate("cpu"),                                   "resources: 'cpu'"),
    "the same resource twice":                (lambda g: g.allocate({"cpu": 1}, cpu=1),                       "resources: 'cpu'"),
    "the same in two spellings":              (lambda g: g.allocate(cpu=1, cpu_cores=1),                      "resources: 'cpu'"),
    "a device and a half":                    (lambda g: g.allocate(gpu=1.5),                                 "gpu: '1.5'"),
    "the same node twice in one call":        (lambda g: g.register_nodes([Node.of("n3", cpu=1), Node.of("n3", cpu=2)]), "nodes: 'n3'"),
    "the same device twice on one node":      (lambda g: g.register_node("n3", gpus=[{"id": "X"}, {"id": "X"}]), "gpus: ['X', 'X']"),
    "a device of another node":               (lambda g: g.register_node("n3", gpus=[{"id": "A"}]),           "gpu id: 'A'"),
    "the same device on two nodes":           (lambda g: g.register_nodes([Node.of("n3", gpus=[{"id": "X"}]), Node.of("n4", gpus=[{"id": "X"}])]), "gpu id: 'X'"),
    "a field of a device there is not":       (lambda g: g.register_node("n3", gpus=[{"ram": 1}]),            "gpus: 'ram'"),
    "gpus as a number":                       (lambda g: g.register_node("n3", gpus=2),                       "gpus: 2"),
    "gpus as text":                           (lambda g: g.register_node("n3", gpus="A100"),                  "gpus: 'A100'"),
    "gpus of None":                           (lambda g: g.register_node("n3", gpus=[None]),                  "gpus: None"),
    "a device with an id that is SQL":        (lambda g: g.register_node("n3", gpus=[{"id": SQL}]),           "gpu id"),
    "a device with a model that is SQL\\n":   (lambda g: g.register_node("n3", gpus=[{"model": SQL + "\n"}]), "gpu_model"),
    "a health of a device there is not":      (lambda g: g.register_node("n3", gpus=[{"health": "fine"}]),    "gpu health: 'fine'"),
    "a Gpu with negative memory":             (lambda g: g.register_node("n3", gpus=[Gpu("X", memory_bytes=-1)]), "memory"),
    "too many devices":                       (lambda g: g.register_node("n3", gpu=1025),                     "gpu"),
    "labels as a list":                       (lambda g: g.register_node("n3", cpu=1, labels=["a"]),          "labels: ['a']"),
    "labels as text":                         (lambda g: g.register_node("n3", cpu=1, labels="a"),            "labels: 'a'"),
    "too many labels":                        (lambda g: g.register_node("n3", cpu=1, labels={f"l{n}": "x" for n in range(65)}), "labels"),
    "an address with a newline":              (lambda g: g.register_node("n3", cpu=1, address="a\nb"),        "address"),
    "an address that is a number":            (lambda g: g.register_node("n3", cpu=1, address=5),             "address: 5"),
    "nodes as None":                          (lambda g: g.register_nodes(None),                              "nodes: None"),
    "nodes as a number":                      (lambda g: g.register_nodes(5),                                 "nodes: 5"),
    "nodes as a mapping":                     (lambda g: g.register_nodes({"n3": {"cpu": 1}}),                "nodes"),
    "nodes as text":                          (lambda g: g.register_nodes("n3"),                              "nodes: 'n3'"),
    "one node, not in a list":                (lambda g: g.register_nodes(Node.of("n3", cpu=1)),              "nodes"),
    "a node that is a mapping":               (lambda g: g.register_nodes([{"name": "n3"}]),                  "nodes"),
    "a Node with a mapping as capacity":      (lambda g: g.register_nodes([Node("n3", {"cpu": 1})]),          "capacity"),
    "a Node with a health there is not":      (lambda g: g.register_nodes([Node("n3", Resources.of(cpu=1), health="fine")]), "health"),
    "a Node with a price of -1":              (lambda g: g.register_nodes([Node("n3", Resources.of(cpu=1), price=-1)]), "price"),
    "a Node with labels of None":             (lambda g: g.register_nodes([Node("n3", Resources.of(cpu=1), labels=None)]), "labels"),
    "a Node with no devices but 5":           (lambda g: g.register_nodes([Node("n3", Resources.of(cpu=1), gpus=5)]), "gpus"),
    "a group of None":                        (lambda g: g.allocate_group(None),                              "requests: None"),
    "a group of a number":                    (lambda g: g.allocate_group(5),                                 "requests: 5"),
    "a group of nothing":                     (lambda g: g.allocate_group([]),                                "requests: []"),
    "a group as text":                        (lambda g: g.allocate_group("cpu=1"),                           "requests: 'cpu=1'"),
    "a group as a mapping":                   (lambda g: g.allocate_group({"cpu": 1}),                        "requests"),
    "a group with None in it":                (lambda g: g.allocate_group([{"cpu": 1}, None]),                "resources"),
    "a group with a number in it":            (lambda g: g.allocate_group([{"cpu": 1}, 5]),                   "resources: 5"),
    "a group that is too large":              (lambda g: g.allocate_group([{"cpu": 0.001}] * 1001),           "requests"),
    "a quality there is not":                 (lambda g: g.allocate(cpu=1, quality="best"),                   "quality: 'best'"),
    "a quality that is a list":               (lambda g: g.allocate(cpu=1, quality=[]),                       "quality: []"),
    "an override that is a number":           (lambda g: g.allocate(cpu=1, quality="high", scaling=5),        ": 5 is not valid"),
    "an override of what does not scale":     (lambda g: g.allocate(cpu=1, quality="high", scaling={"disk": 2}), "'disk'"),
    "alternatives of None":                   (lambda g: g.allocate(cpu=1, alternatives=None),                "alternatives: None"),
    "alternatives as a number":               (lambda g: g.allocate(cpu=1, alternatives=5),                   "alternatives: 5"),
    "a fallback there is not":                (lambda g: g.allocate(cpu=1, gpu=1, fallback="tpu"),            "fallback: 'tpu'"),
    "preferred nodes as a number":            (lambda g: g.allocate(cpu=1, prefer=5),                         "prefer: 5"),
    "excluded nodes as None":                 (lambda g: g.allocate(cpu=1, exclude=None),                     "exclude: None"),
    "pinned to what is excluded":             (lambda g: g.allocate(cpu=1, node="n1", exclude="n1"),          "exclude: 'n1'"),
    "a model that is a number":               (lambda g: g.allocate(gpu=1, gpu_model=5),                      "gpu_model: 5"),
    "a model that is 0":                      (lambda g: g.allocate(gpu=0.1, gpu_model=0),                    "gpu_model: 0"),
    "a model with a newline":                 (lambda g: g.allocate(gpu=1, gpu_model="A\n"),                  "gpu_model"),
    "a capability that is a word":            (lambda g: g.allocate(gpu=1, gpu_capability="new"),             "gpu_capability: 'new'"),
    "a health there is not":                  (lambda g: g.set_health("n1", "fine"),                          "health: 'fine'"),
    "a health in capitals":                   (lambda g: g.set_health("n1", "UP"),                            "health: 'UP'"),
    "a health of None":                       (lambda g: g.set_health("n1", None),                            "health: None"),
    "a health that is a list":                (lambda g: g.set_health("n1", []),                              "health: []"),
    "strangers as None":                      (lambda g: g.report_foreign("n1", None),                        "used: None"),
    "strangers as a list":                    (lambda g: g.report_foreign("n1", ["A"]),                       "used: ['A']"),
    "strangers as text":                      (lambda g: g.report_foreign("n1", "A"),                         "used: 'A'"),
    "strangers on an unknown device":         (lambda g: g.report_foreign("n1", {"B": 1}),                    "gpu id: 'B'"),
    "strangers on a device of SQL":           (lambda g: g.report_foreign("n1", {SQL: 1}),                    "gpu id"),
    "strangers on a device that is a number": (lambda g: g.report_foreign("n1", {5: 1}),                      "gpu id: 5"),
    "a release of amounts":                   (lambda g: g.release({"cpu": 1}),                               "allocation: {'cpu': 1}"),
    "a release of a node's status":           (lambda g: g.release(g.node("n1")),                             "allocation"),
    "a renewal of what is no lease":          (lambda g: g.renew("a1-1"),                                     "a1-1"),
    "a confirmation of what is active":       (lambda g: g.confirm("a1-1"),                                   "a1-1"),
    "events after None":                      (lambda g: g.events(after=None),                                "after: None"),
    "events after a word":                    (lambda g: g.events(after="x"),                                 "after: 'x'"),
    "events after an object":                 (lambda g: g.events(after=THING),                               "after: <object"),
    "events after 10**30":                    (lambda g: g.events(after=10**30),                              "after: 1000"),
    "events after -1":                        (lambda g: g.events(after=-1),                                  "after: -1"),
    "events after a fraction":                (lambda g: g.events(after=1.5),                                 "after: 1.5"),
    "no events":                              (lambda g: g.events(limit=0),                                   "limit: 0"),
    "too many events":                        (lambda g: g.events(limit=10_001),                              "limit: 10001"),
    "events up to None":                      (lambda g: g.events(limit=None),                                "limit: None"),
    "events up to a word":                    (lambda g: g.events(limit="x"),                                 "limit: 'x'"),
    "events up to a fraction":                (lambda g: g.events(limit=1.5),                                 "limit: 1.5"),
    "pruning from None":                      (lambda g: list(g.prune(None)),                                 "older_than_s: None"),
    "pruning from -1":                        (lambda g: list(g.prune(-1)),                                   "older_than_s: -1"),
    "pruning from NaN":                       (lambda g: list(g.prune(math.nan)),                             "older_than_s: nan"),
    "pruning from a word":                    (lambda g: list(g.prune("x")),                                  "older_than_s: 'x'"),
    "pruning 0 at a time":                    (lambda g: list(g.prune(60, most=0)),                           "most: 0"),
    "pruning -1 at a time":                   (lambda g: list(g.prune(60, most=-1)),                          "most: -1"),
    "pruning None at a time":                 (lambda g: list(g.prune(60, most=None)),                        "most: None"),
    "pruning a word at a time":               (lambda g: list(g.prune(60, most="x")),                         "most: 'x'"),
    "a ttl of 0":                             (lambda g: g.allocate(cpu=1, ttl=0),                            "ttl: 0"),
    "a ttl of -1":                            (lambda g: g.reserve(cpu=1, ttl=-1),                            "ttl: -1"),
    "a ttl of NaN":                           (lambda g: g.renew("a1-2", ttl=math.nan),                       "ttl: nan"),
    "a ttl of infinity":                      (lambda g: g.confirm("a1-3", ttl=math.inf),                     "ttl: inf"),
    "a ttl of True":                          (lambda g: g.allocate(cpu=1, ttl=True),                         "ttl: True"),
    "a ttl in text":                          (lambda g: g.allocate(cpu=1, ttl="60"),                         "ttl: '60'"),
    "retries by two names":                   (lambda g: g.execute([], retries=1, max_retries=2),             "max_retries: 2"),
    "a ttl of a thousand years":              (lambda g: g.allocate(cpu=1, ttl=3e10),                         "ttl"),
    "a ttl of 10**400":                       (lambda g: g.allocate(cpu=1, ttl=10**400),                      "ttl"),
    "a reservation without a ttl":            (lambda g: g.reserve(cpu=1, ttl=None),                          "ttl: None"),
    "force in text":                          (lambda g: g.unregister("n1", force="no"),                      "force: 'no'"),
    "a strategy of another name":             (lambda g: g.allocate(cpu=1, strategy="bestfit"),               "strategy: 'bestfit'"),
    "an unknown strategy of a pinned one":    (lambda g: g.allocate(cpu=1, node="n1", strategy="x"),          "strategy: 'x'"),
    "an unknown strategy in a group":         (lambda g: g.allocate_group([Request.of(cpu=1, strategy="x")] * 2), "strategy: 'x'"),
    "an unknown strategy to explain":         (lambda g: g.explain(cpu=1, strategy="x"),                      "strategy: 'x'"),
    "an unknown strategy to fit":             (lambda g: g.fits("n1", cpu=1, strategy="x"),                   "strategy: 'x'"),
    "a strategy with a space":                (lambda g: g.reserve(cpu=1, strategy="best fit"),               "strategy: 'best fit'"),
    "a number as a strategy":                 (lambda g: g.reserve(cpu=1, strategy=1),                        "strategy: 1"),
    "a function as a request's strategy":     (lambda g: g.allocate(cpu=1, strategy=max),                     "strategy: <built-in"),
    "a Request of an unknown strategy":       (lambda g: g.allocate(Request(Resources({"cpu": 1}), strategy="x")), "strategy: 'x'"),
    "a Request with a mapping in it":         (lambda g: g.allocate(Request(amounts={"cpu": 1})),             "amounts"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "words"), TEXTS.values(), ids=TEXTS)
def test_what_is_wrong_is_named_and_changes_nothing(grid, call, words):
    assert words in str(refused(grid, call))


def test_the_whole_table_leaves_a_file_as_it_was(tmp_path):
    path = str(tmp_path / "grid.db")
    with Grid.at(path, owner="ann") as grid:
        furnish(grid)
        before = seen(grid)
        for call, _ in TEXTS.values():
            with pytest.raises(Exception):  # noqa: B017 - the kind is tested above
                call(grid)
        for place in (*NAME_PLACES.values(), *OPTIONAL_NAME_PLACES.values()):
            for name in ("a newline", "a NUL", "a lone surrogate", "SQL", "a megabyte"):
                with pytest.raises(GridError):
                    place(grid, NAMES[name])
        assert seen(grid) == before
        assert grid.check() == []
    with Grid.at(path, owner="ann") as grid:
        again = seen(grid)
        assert again["nodes"] == before["nodes"]
        assert [row["id"] for row in again["allocations"]] == ["a1-1", "a1-2", "a1-3"]


@pytest.mark.parametrize("why", ["a\nb", "\0", "\ud800", SQL, LONG, "ünï"], ids=ascii)
def test_a_reason_may_be_any_text_and_spoils_nothing(grid, why):
    ids = sorted(held.id for held in grid.allocations())
    try:
        grid.set_health("n1", "suspect", why=why)
    except GridError as error:
        assert "why" in str(error)  # noqa: PT017 - refusing it is as good as taking it
    assert sorted(held.id for held in grid.allocations()) == ids
    assert grid.allocate(cpu=1, node="n2").release().state == "released"
    assert all(len(event.why) <= 500 for event in grid.events())
    assert grid.check() == []


def test_names_that_look_dangerous_but_are_allowed_are_kept_as_they_are(grid):
    name = "drop.table-nodes@host:8080"
    held = grid.for_owner("o/rm-rf").allocate(cpu=1, holder="a=b+c", op_id="x/../y")
    assert held.holder == "a=b+c"
    grid.register_node(name, {"nvidia.com/gpu": 1}, labels={"a/b": "c=d"})
    assert grid.node(name).node.labels == {"a/b": "c=d"}
    assert grid.allocate({"nvidia.com/gpu": 1}).node == name


# ---- opening a grid

STRATEGIES = {"unknown": "worst", "empty": "", "a number": 5, "None": None, "a list": [], "bytes": b"best_fit"}  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_there_is_not(strategy, tmp_path):
    for call in (
        lambda: Grid.in_memory(strategy=strategy),
        lambda: Grid.at(str(tmp_path / "grid.db"), strategy=strategy),
    ):
        with pytest.raises(InvalidInput, match="strategy: "):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("owner", ["", "a\n", 5, [], b"ann", LONG, SQL], ids=lambda v: repr(v)[:12])
def test_an_owner_that_is_none(owner):
    with pytest.raises(InvalidInput, match="owner: "):
        Grid.in_memory(owner=owner)


#    what is wrong
URLS = {
    "None": None,
    "a number": 5,
    "bytes": b"grid.db",
    "a list": [],
    "empty": "",
    "a NUL": "grid\0.db",
    "a scheme there is not": "mongodb://host/db",
    "no path": "sqlite://",
    "a host": "sqlite://host/grid.db",
    "memory by its name": "sqlite:///:memory:",
    "an option there is not": "sqlite:///{dir}/grid.db?mode=ro",
    "a timeout that is a word": "sqlite:///{dir}/grid.db?timeout=soon",
    "a timeout that is negative": "sqlite:///{dir}/grid.db?timeout=-1",
    "a timeout of NaN": "sqlite:///{dir}/grid.db?timeout=nan",
    "no URL at all": "http://[bad",
    "a home there is not": "~nobody-at-all/grid.db",
    "a lone surrogate": "{dir}/\ud800.db",
    "a name too long": "{dir}/" + "x" * 5000,
    "a path too long": "{dir}" + "/x" * 5000,
    "a folder": "{dir}",
    "a folder that cannot be made": "/proc/nowhere/grid.db",
    "a newline, where nothing can be made": "/proc/no\nwhere/grid.db",
    "a device file": "/dev/null",
}


@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_a_store_that_cannot_be(url, tmp_path):
    url = url.replace("{dir}", str(tmp_path)) if isinstance(url, str) else url
    with pytest.raises(GridError) as caught:
        Grid.at(url, owner="ann")
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 500
    assert caught.value.hint


def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes, longer than a hundred bytes: " + "x" * 200)
    before = path.read_bytes()
    with pytest.raises(GridError) as caught:
        Grid.at(str(path), owner="ann")
    assert caught.value.code in ("store_invalid", "store_damaged")
    assert path.read_bytes() == before


# ---- the errors themselves

CODES = {
    "GridError": "grid_error",
    "InvalidInput": "invalid_input",
    "InvalidAmount": "invalid_amount",
    "InvalidName": "invalid_name",
    "InvalidRequest": "invalid_request",
    "InvalidDependency": "invalid_dependency",
    "StrategyFailed": "strategy_failed",
    "NodeSuperseded": "node_superseded",
    "UnknownResource": "unknown_resource",
    "UnknownNode": "unknown_node",
    "UnknownAllocation": "unknown_allocation",
    "UnknownJob": "unknown_job",
    "UnknownCall": "unknown_call",
    "NoRoom": "no_room",
    "NeverFits": "never_fits",
    "NotAssigned": "not_assigned",
    "GraphError": "graph_error",
    "DuplicateFunction": "duplicate_function",
    "UnknownFunction": "unknown_function",
    "CircularDependency": "circular_dependency",
    "CircularCollocation": "circular_collocation",
    "ImpossibleCollocation": "impossible_collocation",
    "FunctionFailed": "function_failed",
    "GraphTimeout": "graph_timeout",
    "CallFailed": "call_failed",
    "CallTimeout": "call_timeout",
    "WorkerLost": "worker_lost",
    "OutOfMemory": "out_of_memory",
    "HolderBusy": "holder_busy",
    "NotYours": "not_yours",
    "NodeElsewhere": "node_elsewhere",
    "NodeInUse": "node_in_use",
    "MoveRefused": "move_refused",
    "ReservationExpired": "reservation_expired",
    "LeaseExpired": "lease_expired",
    "AllocationBusy": "allocation_busy",
    "JobRefused": "job_refused",
    "NodeTaken": "node_taken",
    "WorkerUnknown": "worker_unknown",
    "UnknownFile": "unknown_file",
    "UnknownToken": "unknown_token",
    "TokenRefused": "token_refused",
    "ScopeTooNarrow": "scope_too_narrow",
    "TooManyRequests": "too_many_requests",
    "JobsFull": "jobs_full",
    "OverLimit": "over_limit",
    "UnknownQueue": "unknown_queue",
    "QueueNotAllowed": "queue_not_allowed",
    "QuotaExceeded": "quota_exceeded",
    "QueueFull": "queue_full",
    "JobsRunning": "jobs_running",
    "ControllerUnavailable": "controller_unavailable",
    "VersionMismatch": "version_mismatch",
    "OperationReused": "operation_reused",
    "GridClosed": "grid_closed",
    "ControllerStopping": "controller_stopping",
    "StoreError": "store_error",
    "StoreUnavailable": "store_unavailable",
    "OutcomeUnknown": "store_outcome_unknown",
    "StoreOwned": "store_owned",
    "StoreRemoved": "store_removed",
    "StoreFenced": "store_fenced",
    "StoreInvalid": "store_invalid",
    "StoreFull": "store_full",
    "StoreDamaged": "store_damaged",
}


def error_classes():
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in found if issubclass(kind, GridError)}


def test_every_error_has_a_code_of_its_own_that_never_changes():
    codes = {name: kind.code for name, kind in error_classes().items()}
    assert codes == CODES
    assert len(set(codes.values())) == len(codes)


def test_every_error_is_public_drawn_in_the_tree_and_has_its_own_code():
    import gridhand

    for name, kind in error_classes().items():
        assert name in gridhand.__all__
        assert name in errors.__doc__
        assert "code" in vars(kind)


def an_error_of_every_class():
    with Grid.in_memory(owner="ann") as grid:
        grid.register_node("n1", cpu=1)
        grid.allocate(cpu=1)
        with pytest.raises(NoRoom) as room:
            grid.allocate(cpu=1)
        with pytest.raises(NoRoom) as never:
            grid.allocate(cpu=2)
    return [
        GridError("it broke", hint="Mend it."),
        errors.JobsFull(9, 8),
        errors.OverLimit("cpu", "9", "queue short", "at most 8"),
        errors.UnknownQueue("gup", "gpu", ["gpu", "short"]),
        errors.QueueNotAllowed("gpu", "bob", ["short"]),
        errors.QuotaExceeded("ann", "queued jobs", 4, 1, 4),
        errors.QueueFull("short", 4, 1, 4),
        errors.JobsRunning(2),
        errors.ControllerUnavailable("none runs", hint="Start one."),
        errors.VersionMismatch("2", "1"),
        errors.InvalidInput("field", {"a": [1]}, "less"),
        errors.InvalidAmount("cpu", -1, "more"),
        errors.InvalidName("node", "a\nb", "a name"),
        errors.InvalidRequest("gpu", "1.5", "a whole number"),
        errors.InvalidDependency("j1-2", "j1-9"),
        errors.StrategyFailed("coolest", "returned 1 scores for 2 nodes"),
        errors.UnknownResource("fgpa", "fpga", ["cpu", "fpga"]),
        errors.UnknownNode("n2", "n1"),
        errors.UnknownAllocation("a1-9"),
        errors.UnknownJob("j1-9"),
        errors.UnknownCall("9f3a1c02b7de.17"),
        errors.NodeTaken("n1", "another machine has it"),
        errors.WorkerUnknown("n1"),
        errors.UnknownFile("out.csv"),
        errors.UnknownToken("0123456789"),
        errors.TokenRefused("a request over the network needs a token"),
        errors.ScopeTooNarrow("read", "submit"),
        errors.TooManyRequests("requests", 1),
        room.value,
        never.value,
        errors.NotAssigned({("f1", "f2"): {"n1": ["Insufficient CPU"]}, ("f3",): {"n1": ["down"]}}),
        errors.GraphError("no such graph", hint="Draw another."),
        errors.DuplicateFunction("f1"),
        errors.UnknownFunction("f9", "f1", "f8"),
        errors.CircularDependency(["f1", "f2"]),
        errors.CircularCollocation(["f1", "f2"]),
        errors.ImpossibleCollocation(["f1", "f2"], "no node could hold both"),
        errors.FunctionFailed("f1", ValueError("it\nbroke"), 3),
        errors.GraphTimeout(1.5, 2, 4, ["f3"]),
        errors.CallFailed("f1", "node_lost", "its node is down"),
        errors.CallTimeout("f1", 1.5),
        errors.WorkerLost("f1", "signal", "its worker is gone (job 7): signal 9 ended it"),
        errors.OutOfMemory("f1", "it needed more than its 100 MB of memory", 10**8, 10**9),
        errors.HolderBusy("train", "a1-1"),
        errors.NotYours("a1-1", "bob"),
        errors.NodeElsewhere("n1", "m1"),
        errors.NodeSuperseded("n1", 1, 2),
        errors.NodeInUse("n1", 2),
        errors.MoveRefused("renew", "a1-1", "it is released"),
        errors.ReservationExpired("confirm", "a1-1", "it had already expired"),
        errors.LeaseExpired("renew", "a1-1", "it had already expired"),
        errors.AllocationBusy("run in", "a1-1", "job 7 runs in it"),
        errors.JobRefused("start", "j1-1", "it is cancelled"),
        errors.OperationReused("op-1"),
        errors.GridClosed("the grid was closed", hint="Open it again."),
        errors.ControllerStopping(),
        errors.StoreError("the store is odd", hint="Look at it."),
        errors.StoreUnavailable("disk full"),
        errors.OutcomeUnknown("the connection was lost"),
        errors.StoreOwned("sqlite:////x", 4711),
        errors.StoreFenced(3),
        errors.StoreInvalid("not ours", hint="Give another."),
        errors.StoreFull("no space left"),
        errors.StoreRemoved("/home/grid.db"),
        errors.StoreDamaged("sqlite:////x", "page 7"),
    ]


ERRORS = {type(error).__name__: error for error in an_error_of_every_class()}


def test_there_is_an_example_of_every_error():
    assert ERRORS.keys() == CODES.keys()


def comparable(error):
    found = dict(vars(error))
    refusal = found.pop("refusal", None)
    if refusal is not None:
        found["refusal"] = (refusal.asked, refusal.reasons(), refusal.ever, refusal.sentence())
    return found


@pytest.mark.parametrize("name", CODES)
def test_an_error_survives_being_copied_and_pickled(name):
    error = ERRORS[name]
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert again.code == error.code == CODES[name]
        assert comparable(again) == comparable(error)
        assert again is not error
    assert error.hint
    assert "\n" not in str(error)


def test_an_error_is_raised_without_the_workings_behind_it(grid):
    """What the caller sees is the mistake, not a lookup of ours that came before it."""
    for call in (lambda: grid.allocate(cpu=-1), lambda: grid.allocate({"cpu": -1})):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_traceback_shows_the_hint():
    with Grid.in_memory() as grid:
        grid.register_node("n1", cpu=1)
        with pytest.raises(errors.NeverFits) as caught:
            grid.allocate(cpu=2)
    error = caught.value
    assert f"hint: {error.hint}" in "".join(traceback.format_exception(error))
    error.add_note("and more")
    assert error.__notes__ == [f"hint: {error.hint}", "and more"]
    assert pickle.loads(pickle.dumps(error)).__notes__ == error.__notes__
    with pytest.raises(TypeError):
        error.add_note(5)
