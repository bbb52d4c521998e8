"""Functions as bytes: when they are pickled again, what is wrong with them, and how much they bring."""

import threading
import warnings

import cloudpickle
import pytest

from gridhand.core.errors import CallFailed
from gridhand.library.functions.pickled_function import Functions, packed_arguments
from gridhand.worker.encoded_values import Folders


@pytest.fixture
def run():
    """Run texts as the cells of a notebook; return what a function of it gives as it is sent."""
    cells = {"__name__": "__main__"}
    functions = Functions()

    def cell(text, name="f"):
        exec(text, cells)
        sent = functions.packed(cells[name])
        assert functions.packed(cells[name]) is sent  # as long as nothing changes
        return cloudpickle.loads(sent.data)()

    return cell


#    what has changed                 the first cell                             the second                the value then
CHANGES = {
    "a global is bound anew":         ("x = 1\ndef f(): return x",                "x = 2",                  2),
    "a global has changed":           ("x = [1]\ndef f(): return x",              "x.append(2)",            [1, 2]),
    "so has one in a container":      ("x = ({},)\ndef f(): return x",            "x[0]['a'] = 2",          ({"a": 2},)),
    "one of a function it calls":     ("x = 1\ndef g(): return x\ndef f(): return g()", "x = 2",            2),
    "a function it calls":            ("def g(): return 1\ndef f(): return g()",  "def g(): return 2",      2),
    "a global that was not there":    ("def f(): return globals().get('x') or x if 'x' in globals() else 1", "x = 2", 2),
    "a variable of a closure":        ("def made():\n  x = [1]\n  return lambda: x, x\nf, y = made()", "y.append(2)", [1, 2]),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "value"), CHANGES.values(), ids=CHANGES)
def test_a_function_is_sent_again_when_what_it_refers_to_has_changed(run, first, second, value):
    assert run(first) != value
    assert run(second) == value


def test_a_large_value_counts_once_it_is_bound_anew(run):
    """To pickle it for each call would cost more than the call."""
    assert run("x = list(range(1_000_000))\ndef f(): return len(x)") == 1_000_000
    assert run("x.append(1)") == 1_000_000
    assert run("x = list(x)") == 1_000_001


def test_a_function_that_is_found_by_its_name_is_pickled_once():
    functions = Functions()
    assert functions.packed(threading.Thread.join) is functions.packed(threading.Thread.join)


def test_what_cannot_be_pickled_is_named(tmp_path):
    cells = {"__name__": "__main__", "lock": threading.Lock()}
    exec("def f(): return lock\ndef made(guard):\n  return lambda: guard", cells)
    folders = Folders([str(tmp_path)], "c")
    with pytest.raises(CallFailed, match=r"f: the global 'lock' of the function, a lock, cannot"):
        Functions().packed(cells["f"])
    with pytest.raises(CallFailed, match=r"the variable 'guard' of the function, a lock, cannot"):
        Functions().packed(cells["made"](cells["lock"]))
    with pytest.raises(CallFailed, match=r"f: argument 2, a lock, cannot be pickled"):
        packed_arguments(folders, (1, cells["lock"]), {}, "f")
    with pytest.raises(CallFailed, match=r"f: argument 'guard', a lock, cannot be pickled"):
        packed_arguments(folders, (), {"guard": cells["lock"]}, "f")


def test_a_function_that_brings_much_along_is_warned_of_once():
    data = bytes(11_000_000)
    with pytest.warns(UserWarning, match=r"brings_much.* 11 MB .* as an argument, or load it"):
        Functions().packed(lambda: data, "brings_much")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Functions().packed(lambda: data, "brings_much")
