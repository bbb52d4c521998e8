"""Graphs: validation, order, call plans and pictures."""

import copy
import pickle
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import (
    CircularCollocation,
    CircularDependency,
    Collocated,
    DuplicateFunction,
    Function,
    Graph,
    GraphError,
    ImpossibleCollocation,
    InvalidAmount,
    InvalidInput,
    InvalidName,
    Resources,
    UnknownFunction,
)
from gridhand.core.graph.call_plan import MOST_EVALUATIONS, plan
from gridhand.core.graph.layout import layout

SVG = "{http://www.w3.org/2000/svg}"


def f(id, *args, **fields):
    return Function(id, fields.pop("code", int), args=args, **fields)


# ---- functions

#    what is wrong                      how it is made                                                words
FAULTS = {
    "a number of retries below none":  (lambda: f("a", max_retries=-1),                               "max_retries: -1"),
    "half a retry":                    (lambda: f("a", max_retries=0.5),                              "max_retries: 0.5"),
    "True for a number":               (lambda: f("a", max_retries=True),                             "max_retries: True"),
    "retries without end":             (lambda: f("a", max_retries=10**9),                            "max_retries"),
    "a type there is not":             (lambda: f("a", type="lazy"),                                  "type: 'lazy'"),
    "a type that is no text":          (lambda: f("a", type=None),                                    "type: None"),
    "arguments in another way":        (lambda: f("a", argument_inclusion="as_dict"),                 "argument_inclusion: 'as_dict'"),
    "code that cannot be called":      (lambda: Function("a", "print"),                               "code: 'print'"),
    "a value among the ids":           (lambda: Function("a", int, args=[42]),                        "args: 42"),
    "None among the ids":              (lambda: Function("a", int, args=[None]),                      "args: None"),
    "an inline one with a node":       (lambda: f("a", type="inline", node="n1"),                     "node: 'n1'"),
    "an inline one beside another":    (lambda: f("a", type="inline", node=Collocated("b")),          "node"),
    "an inline one with a cost":       (lambda: f("a", type="inline", cost={"cpu": 1}),               "cost"),
    "an inline one with retries":      (lambda: f("a", type="inline", max_retries=0),                 "max_retries: 0"),
    "an inline one with a set-up":     (lambda: f("a", type="inline", init=int),                      "init"),
    "an input with code":              (lambda: Function("a", int, type="input"),                     "code"),
    "an input that takes another":     (lambda: Function("a", args=["b"], type="input"),              "args"),
    "an input with arguments":         (lambda: Function("a", extra_args=[1], type="input"),          "extra_args"),
    "an input with a cost":            (lambda: Function("a", cost="cpu=1", type="input"),            "cost"),
    "an input with a node":            (lambda: Function("a", node="n1", type="input"),               "node"),
    "a set-up that cannot be called":  (lambda: f("a", init=5),                                       "init: 5"),
    "no worker at all":                (lambda: f("a", parallelism=0),                                "parallelism: 0"),
    "batches of nothing":              (lambda: f("a", batch_size=0),                                 "batch_size: 0"),
    "a batch that never waits enough": (lambda: f("a", batch_timeout=-1),                             "batch_timeout: -1"),
    "a batch that waits for NaN":      (lambda: f("a", batch_timeout=float("nan")),                   "batch_timeout: nan"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "words"), FAULTS.values(), ids=FAULTS)
def test_a_function_that_makes_no_sense_is_refused(made, words):
    with pytest.raises(InvalidInput, match=r"^function a: ") as caught:
        made()
    assert words in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_value_in_args_is_refused_with_a_hint_to_extra_args():
    with pytest.raises(InvalidInput) as caught:
        Function("a", int, args=[42])
    assert "extra_args" in caught.value.hint


def test_a_function_may_be_named_by_itself():
    source = f("source")
    assert Function("next", int, args=[source, "other"]).args == ("source", "other")


def test_a_cost_of_nothing_is_none():
    for nothing in ({}, "", Resources(), {"cpu": 0}):
        assert f("a", type="inline", cost=nothing).type == "inline"


def test_everything_a_function_of_handoff_has_is_there_and_stays():
    made = Function(
        "a", len, ("b",), (1,), {"cpu": 1}, "n1", 0, "regular", "as_list", int, 4, 16, 0.5
    )  # fmt: skip
    assert (made.max_retries, made.type, made.argument_inclusion) == (0, "regular", "as_list")
    assert (made.init, made.parallelism, made.batch_size, made.batch_timeout) == (int, 4, 16, 0.5)
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)
    plain = Function("a")
    assert (plain.max_retries, plain.type, plain.argument_inclusion) == (
        None,
        "regular",
        "variadic",
    )


# ---- adding


def test_adding_is_chained_and_takes_mappings_and_several():
    graph = Graph().add(f("a")).add({"id": "b", "code": abs, "args": ["a"]}, f("c", "b"))
    assert [one.id for one in graph] == ["a", "b", "c"]
    assert graph["b"] == f("b", "a", code=abs)
    assert ("b" in graph, "x" in graph, len(graph)) == (True, False, 3)
    assert list(Graph(graph).functions) == ["a", "b", "c"]


def test_d3_the_same_id_twice_is_refused_and_nothing_of_it_added():
    graph = Graph([f("a")])
    with pytest.raises(DuplicateFunction, match="'a'"):
        graph.add(f("b"), f("a"))
    with pytest.raises(DuplicateFunction, match="'c'"):
        graph.add(f("c"), f("c"))
    assert list(graph.functions) == ["a"]


def test_the_functions_of_a_graph_cannot_be_changed_behind_it():
    with pytest.raises(TypeError):
        Graph([f("a")]).functions["b"] = f("b")


def test_anything_but_a_function_is_refused():
    for wrong in (5, "abc", {"a": {"cpu": 1}}, [5], [{"cost": {}}], {f("a")}):
        with pytest.raises(InvalidInput):
            Graph(wrong)


# ---- checking

#    what is wrong                                     the functions                                                             error                  words
BROKEN = {
    "d3 three in a circle":                           ([f("a", "c"), f("b", "a"), f("c", "b")],                                  CircularDependency,    "a → b → c → a"),
    "d3 one that needs itself":                       ([f("a", "a")],                                                            CircularDependency,    "a → a"),
    "a circle through an inline one":                 ([f("a", "b"), f("b", "a", type="inline")],                                CircularDependency,    "a → b → a"),
    "a circle at the end of a chain":                 ([f("z"), f("y", "z", "a"), f("b", "y"), f("a", "b")],                     CircularDependency,    "y → b → a → y"),
    "d3 an argument that is not there":               ([f("load"), f("b", "laod")],                                              UnknownFunction,       "function b refers to 'laod', which is not in the graph; did you mean load?"),
    "d3 beside one that is not there":                ([f("a", node=Collocated("x"))],                                           UnknownFunction,       "function a refers to 'x'"),
    "d3 beside each other in a circle":               ([f("a", node=Collocated("b")), f("b", node=Collocated("a"))],             CircularCollocation,   "a → b → a"),
    "beside an inline one":                           ([f("i", type="inline"), f("a", node=Collocated("i"))],                    ImpossibleCollocation, "function a with i: i is inline"),
    "beside an input":                                ([Function("i", type="input"), f("a", node=Collocated("i"))],              ImpossibleCollocation, "function a with i: i is input"),
    "nothing to call":                                ([Function("a")],                                                          InvalidInput,          "function a: code: None"),
    "nothing to call, inline":                        ([Function("a", type="inline")],                                           InvalidInput,          "function a: code: None"),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "kind", "words"), BROKEN.values(), ids=BROKEN)
def test_a_graph_that_cannot_run_is_refused_by_name(functions, kind, words):
    graph = Graph(functions)
    with pytest.raises(kind) as caught:
        graph.validate()
    assert words in str(caught.value)
    assert caught.value.hint
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_d3_a_circle_names_an_edge_of_itself():
    graph = Graph([f("a", "c"), f("b", "a"), f("c", "b")])
    with pytest.raises(CircularDependency) as caught:
        graph.order()
    assert caught.value.ids == ["a", "b", "c"]
    above, below = caught.value.edge
    assert above in graph[below].args
    assert issubclass(CircularDependency, GraphError)
    assert issubclass(ImpossibleCollocation, GraphError)


def test_a_circle_may_be_long():
    graph = Graph([f(f"f{n}", f"f{(n + 1) % 5000}") for n in range(5000)])
    with pytest.raises(CircularDependency) as caught:
        graph.validate()
    assert len(caught.value.ids) == 5000
    assert len(str(caught.value)) < 500


def test_a_missing_function_may_be_added_later():
    graph = Graph([f("b", "a")])
    with pytest.raises(UnknownFunction):
        graph.validate()
    assert graph.add(f("a")).validate() is graph
    assert graph.order() == ["a", "b"]


def test_an_empty_graph_is_one():
    assert Graph().validate().order() == []
    assert repr(Graph()) == "<graph of 0 functions>"


@st.composite
def drawn(draw):
    ids = [f"f{n}" for n in range(draw(st.integers(1, 15)))]
    functions = []
    for place, id in enumerate(ids):
        args = draw(st.lists(st.sampled_from(ids[:place]), max_size=3)) if place else []
        functions.append(f(id, *args, cost=draw(st.sampled_from(["", "cpu=1 memory=2GB gpu=1"]))))
    return Graph(draw(st.permutations(functions)))


@given(drawn())
def test_the_order_has_each_after_what_it_takes(graph):
    order = graph.validate().order()
    assert sorted(order) == sorted(graph.functions)
    places = {id: place for place, id in enumerate(order)}
    assert all(places[arg] < places[one.id] for one in graph for arg in one.args)
    assert Graph(graph).order() == order


# ---- what is called


def called(graph, id, **values):
    """Call a function by its plan, with these values for its needs."""
    made = plan(graph[id], graph.functions)
    sent = pickle.loads(pickle.dumps(made.code)) if made.code is not graph[id].code else made.code
    return sent(*(values[one] for one in made.needs), *made.extra_args)


def pair(*args):
    return args


def test_d1_extra_arguments_come_after_the_results():
    graph = Graph([f("a"), f("b"), f("c", "b", "a", code=pair, extra_args=[7, None])])
    assert called(graph, "c", a=1, b=2) == (2, 1, 7, None)
    assert plan(graph["c"], graph.functions).code is pair  # nothing stands between


def test_d2_as_a_list_the_results_are_one_argument():
    fields = {"code": pair, "argument_inclusion": "as_list"}
    graph = Graph([f("a"), f("b"), f("c", "a", "b", extra_args=[7], **fields), f("d", **fields)])
    assert called(graph, "c", a=1, b=2) == ([1, 2], 7)
    assert called(graph, "d") == ([],)


def test_d5_inline_functions_are_evaluated_within_the_call_that_uses_them():
    graph = Graph(
        [
            f("a"),
            f("b"),
            f("i", "a", type="inline", code=pair, extra_args=["i"]),
            f("j", "i", "b", type="inline", code=pair, argument_inclusion="as_list"),
            f("c", "j", "a", "i", code=pair, extra_args=["c"]),
        ]
    )
    i = ("A", "i")
    assert called(graph, "c", a="A", b="B") == (([i, "B"],), "A", i, "c")
    assert plan(graph["c"], graph.functions).needs == ("a", "b")


def test_an_inline_function_is_evaluated_once_for_each_use():
    counted = []
    graph = Graph(
        [
            f("i", type="inline", code=lambda: counted.append(1) or len(counted)),
            f("j", "i", "i", type="inline", code=pair),
            f("c", "i", "j", code=pair),
        ]
    )
    made = plan(graph["c"], graph.functions)
    assert made.code() == (1, (2, 3))


def test_a_chain_of_inline_ones_may_be_longer_than_python_recurses():
    chain = [f("f0", type="inline", code=int)]
    chain += [f(f"f{n}", f"f{n - 1}", type="inline", code=one_more) for n in range(1, 5000)]
    graph = Graph([*chain, f("end", "f4999", code=one_more)])
    assert called(graph, "end") == 5000


def one_more(number):
    return number + 1


def test_inline_ones_that_would_be_evaluated_without_end_are_refused():
    doubling = [f(f"f{n}", *[f"f{n - 1}"] * 2, type="inline") for n in range(1, 40)]
    graph = Graph([f("f0", type="inline"), *doubling, f("end", "f39")])
    with pytest.raises(InvalidInput, match="function end: type: 'inline'") as caught:
        plan(graph["end"], graph.functions)
    assert str(MOST_EVALUATIONS) in caught.value.hint


def test_an_error_names_the_inline_function_that_raised_it():
    graph = Graph([f("i", type="inline", code=lambda: 1 / 0), f("c", "i")])
    made = plan(graph["c"], graph.functions)
    with pytest.raises(ZeroDivisionError) as caught:
        made.code()
    assert caught.value.__notes__ == ["Raised in the inline function i."]
    own = Graph([f("i", type="inline", code=int), f("c", "i", code=lambda x: 1 / x)])
    with pytest.raises(ZeroDivisionError) as caught:
        plan(own["c"], own.functions).code()
    assert not hasattr(caught.value, "__notes__")


# ---- how it looks

SHOWN = Graph(
    [
        f("load", cost="cpu=2 memory=4GB", node="n1"),
        Function("x", type="input"),
        f("clean", "load", "x", type="inline"),
        f("end", "clean", node=Collocated("load")),
        f("a<b&c:1".replace("<", "-").replace("&", "+"), "load"),
    ]
)


def test_mermaid_has_every_function_and_link():
    assert SHOWN.mermaid() == (
        "graph TD\n"
        '  load["load<br/>cpu=2 memory=4GB<br/>on n1"]\n'
        '  _1[/"x<br/>input"/]\n'
        '  clean(["clean<br/>inline"])\n'
        '  _3["end<br/>with load"]\n'  # "end" would end the diagram
        '  _4["a-b+c:1"]\n'
        "  load --> clean\n"
        "  _1 --> clean\n"
        "  clean --> _3\n"
        "  load --> _4\n"
        "  load -.- _3\n"
    )


def boxes(svg):
    """Return left, top, right and bottom of every box, and the paths of the links."""
    root = ElementTree.fromstring(svg)
    found = {}
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        x, y, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
        found[group.find(f"{SVG}title").text.split(" ")[0]] = (x, y, x + width, y + height)
    return root, found, [path.get("d") for path in root.findall(f"{SVG}path")]


def test_a_plot_is_svg_with_a_box_for_each_and_a_path_for_each_link():
    svg = SHOWN.plot()
    root, found, paths = boxes(svg)
    assert set(found) == set(SHOWN.functions)
    assert len(paths) == 4
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "cpu=2 memory=4GB" in texts
    assert "with load" in texts
    assert svg._repr_svg_() == SHOWN._repr_svg_() == str(svg)
    assert svg in SHOWN._repr_html_()


@given(drawn())
def test_boxes_are_below_what_they_take_and_clear_of_each_other(graph):
    root, found, paths = boxes(graph.plot())
    for one in graph:
        for arg in one.args:
            assert found[arg][3] < found[one.id][1]
    left, top, width, height = map(float, root.get("viewBox").split())
    for id, (x, y, right, bottom) in found.items():
        assert left <= x < right <= left + width
        assert top <= y < bottom <= top + height
        for other, (x2, y2, right2, bottom2) in found.items():
            clear = right <= x2 or right2 <= x or bottom <= y2 or bottom2 <= y
            assert clear or other == id
    assert len(paths) == sum(len(set(one.args)) for one in graph)
    assert graph.plot() == Graph(graph).plot()


@given(drawn())
def test_links_run_between_the_boxes_of_a_layer_and_not_behind_them(graph):
    _, found, paths = boxes(graph.plot())
    for path in paths:
        # Where a link is upright it passes a layer: its x must be beside every box there.
        for x, y, lower in re.findall(r"([\d.-]+) ([\d.-]+)V([\d.-]+)", path):
            for left, top, right, bottom in found.values():
                beside = not left < float(x) < right
                elsewhere = bottom <= float(y) or top >= float(lower)
                assert beside or elsewhere


def test_a_graph_that_is_not_finished_can_be_drawn():
    graph = Graph([f("a", "b"), f("b", "a"), f("c", "nowhere")])
    _, found, paths = boxes(graph.plot())
    assert set(found) == {"a", "b", "c"}
    assert len(paths) == 2
    assert "nowhere" not in graph.mermaid()


def test_large_graphs_are_drawn_in_reasonable_time():
    chain = Graph([f("f0"), *(f(f"f{n}", f"f{n - 1}", "f0") for n in range(1, 1000))])
    assert chain.plot().count("<rect") == 1000


def test_names_in_a_drawing_are_escaped_even_if_they_could_not_be_names_today():
    one = Function("a", int)
    object.__setattr__(one, "id", "<script>")
    graph = Graph()
    graph._functions["<script>"] = one
    assert "<script" not in graph.plot()
    assert "<script" not in graph.mermaid()


def test_a_graph_of_nothing_can_be_drawn():
    assert boxes(Graph().plot())[1] == {}


def test_the_repr_of_a_graph_is_one_line():
    assert repr(Graph([f("a")])) == "<graph of 1 function: a()>"
    assert repr(Graph([f("a"), f("b", "a")])) == "<graph of 2 functions: a(), b(a)>"
    many = Graph([f(f"f{n}") for n in range(50)])
    assert repr(many).endswith("and 40 more>")


def test_few_links_cross_where_none_need_to():
    """Two ladders side by side, added the wrong way round: a fixed order would cross them."""
    needs = {"a": [], "b": [], "b1": ["b"], "a1": ["a"], "b2": ["b1"], "a2": ["a1"]}
    found = layout(needs, dict.fromkeys(needs, 50.0))
    sides = [[found.middles[id] for id in (one, f"{one}1", f"{one}2")] for one in "ab"]
    assert all(left < right for left, right in zip(*sides, strict=True))


def test_amounts_in_a_function_are_read_as_everywhere():
    with pytest.raises(InvalidAmount):
        f("a", cost={"cpu": "many"})
    with pytest.raises(InvalidName):
        f("a", node="no node")
