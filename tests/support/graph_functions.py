"""What the tests of graphs share: the functions that graphs call, and looks at a grid.

Functions speak with the test through files, so that the same tests can be run where they are
called in other processes.
"""

import threading
import time

from gridhand import Function, Graph
from gridhand.library.functions.function_runner import runner_of
from gridhand.library.thread_runner.thread_runner import ThreadRunner
from until import until

TWO_NODES = {"n1": {"cpu": 4, "memory": 2000}, "n2": {"cpu": 4, "memory": 2000}}


def register(grid, nodes):
    """Have the nodes up and ready, whatever became of them in the test before."""
    for name, has in nodes.items():
        grid.register_node(name, has)
        grid.set_health(name, "up")
        grid.resume(name)


def in_threads(grid):
    return type(runner_of(grid)) is ThreadRunner


def holds_nothing(grid):
    """Threads that were stopped hold what they have until they end by themselves."""
    until(lambda: not grid.allocations())
    assert grid.check() == []


def nodes_of(result):
    return {id: used.node for id, used in result.allocations.items()}


def waiting(grid):
    """Whether somebody stands in the keeper's line."""
    return bool(grid._backend._keeper._waiting)


class running:
    """A graph that runs beside the test; `result()` is what came of it."""

    def __init__(self, grid, graph, **options):
        self.found = []
        self.thread = threading.Thread(target=self._run, args=(grid, graph, options))

    def _run(self, grid, graph, options):
        try:
            self.found.append(grid.execute(graph, **options))
        except BaseException as error:
            self.found.append(error)

    def __enter__(self):
        self.thread.start()
        return self.result

    def __exit__(self, *_):
        self.thread.join(20)
        assert not self.thread.is_alive()

    def result(self):
        self.thread.join(20)
        [found] = self.found
        if isinstance(found, BaseException):
            raise found
        return found


# ---- what functions do


def add(*numbers):
    return sum(numbers)


def times(number, factor):
    return number * factor


def together(*values):
    return list(values)


def noted(notes, name, *values):
    notes.add(name)
    return [name, *values]


def counted(value, notes, name="counted"):
    notes.add(name)
    return value


def noted_after(value, notes):
    notes.add("after")


def fails(notes, name, most, *values):
    """Raise for the first so many times."""
    if notes.add(name) <= most:
        raise ValueError(f"{name} failed\non purpose")
    return name


def meets(notes, name, other):
    """Return once the other one has begun, too."""
    notes.add(name)
    notes.wait(other)
    return name


def waits(notes, name, *_):
    """Begin, and end when the test lets it."""
    notes.add(name)
    notes.wait("go")
    return name


def busy(notes, name):
    """Note how many run at the same time."""
    running = notes.add("begin") - notes.count("end")
    notes.add(f"at-once-{running}")
    time.sleep(0.01)
    notes.add("end")
    return name


def d8():
    return Graph(
        [
            Function("source", add, extra_args=[42], node="n1", cost={"cpu": 1, "memory": 1950}),
            Function("second", together, args=["source"], extra_args=[1337],
                     cost={"cpu": 1, "memory": 2000}),
            Function("final", together, args=["second"], cost={"cpu": 1, "memory": 50}),
        ]
    )  # fmt: skip
