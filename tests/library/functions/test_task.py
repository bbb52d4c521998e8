"""@task: functions that are called with what they need, and graphs of their futures."""

import asyncio
import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque, namedtuple
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytest

from gridhand import (
    CallFailed,
    CallTimeout,
    Function,
    Grid,
    GridClosed,
    InvalidInput,
    NeverFits,
    OutOfMemory,
    Request,
    Resources,
    Task,
    TaskFuture,
    WorkerLost,
    task,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(params=["processes", "in memory"])
def either(request, tools):
    """Tasks behave the same in threads of this process."""
    if request.param == "in memory":
        with Grid.in_memory() as grid:
            grid.register_node("here", cpu=2, memory="2GB")
            yield grid
            tools.until(lambda: not grid.allocations())  # threads cannot be ended
        return
    with Grid() as grid:
        yield grid


@task(cpu=0.1)
def add(a, b=1):
    """Adds."""
    return a + b


@task(cpu=0.1)
def total(numbers):
    return sum(numbers.values() if isinstance(numbers, dict) else numbers)


@task(cpu=0.1)
def fails(number=0):
    raise LookupError(f"no {number}")


@task(cpu=0.1)
def nap(seconds, value=None):
    time.sleep(seconds)
    return value


# ---- what a task is


def test_calling_it_runs_it_here():
    assert add(1) == 2
    assert add(1, b=5) == 6
    with pytest.raises(LookupError):
        fails()


def test_it_looks_like_its_function():
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Adds.", __name__)
    assert repr(add) == "<task add: cpu=0.1>"


#    what is written                                    what it asks for
ASKED = {
    "nothing":         (task,                                      "cpu=1"),
    "empty brackets":  (task(),                                    "cpu=1"),
    "amounts":         (task(cpu=2, memory="4GB"),                 "cpu=2 memory=4GB"),
    "a gpu":           (task(gpu=1),                               "cpu=1 gpu=1"),
    "the words of Ray": (task(num_cpus=2, num_gpus=0.5),           "cpu=2 gpu=0.5"),
    "a text":          (task("cpu=2 memory=1GB"),                  "cpu=2 memory=1GB"),
    "a mapping":       (task({"cpu": 3}),                          "cpu=3"),
    "a request":       (task(Request.of(memory="1GB")),            "memory=1GB"),
    "a quality":       (task(cpu=2, quality="high"),               "cpu=3"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "asked"), ASKED.values(), ids=ASKED)
def test_what_it_asks_for(made, asked):
    assert str(made(lambda: None).request.resources) == asked


def test_options_are_as_before_unless_they_are_given():
    first = task(cpu=2, retries=3, timeout=5)(time.sleep)
    second = first.options(name="other", retries=0)
    assert str(second.request.resources) == "cpu=2"
    assert (second._options.retries, second._options.timeout, second._name) == (0, 5, "other")
    assert str(first.options(memory="1GB").request.resources) == "cpu=2 memory=1GB"
    assert first._options.retries == 3


#    what it shows                    made with                               options                        asks for
CHANGED = {
    "the rest is kept":               ({"cpu": 1, "memory": "1GB", "timeout": 9},   {"cpu": 2},                   ("cpu=2 memory=1GB", 9.0)),
    "None removes a resource":        ({"cpu": 1, "memory": "1GB", "timeout": 9},   {"memory": None},             ("cpu=1", 9.0)),
    "None removes an option":         ({"cpu": 1, "timeout": 9},                 {"timeout": None},            ("cpu=1", None)),
    "another name is the same":       ({"num_cpus": 1, "memory_gb": 1},          {"cpu": 2, "memory": "2GB"},     ("cpu=2 memory=2GB", None)),
    "a duration with a unit":         ({"cpu": 1, "timeout": "5m"},              {"cpu": 2},                   ("cpu=2", 300.0)),
}  # fmt: skip


@pytest.mark.parametrize(("made", "options", "asked"), CHANGED.values(), ids=CHANGED)
def test_options_change_what_they_name(made, options, asked):
    changed = task(**made)(time.sleep).options(**options)
    assert (str(changed.request.resources), changed._timeout_s) == asked


@pytest.mark.parametrize(
    "whole", ["cpu=1 memory=1GB", {"cpu": 1, "memory": "1GB"}, Resources.of("cpu=1,memory=1GB")]
)
def test_options_change_what_was_given_as_a_whole(whole):
    first = task(whole)(time.sleep)
    assert str(first.options(cpu=2).request.resources) == "cpu=2 memory=1GB"
    assert str(first.options("cpu=3").request.resources) == "cpu=3"
    with pytest.raises(InvalidInput, match="whole request"):
        task(Request.of(cpu=1))(time.sleep).options(cpu=2)


WRONG = {
    "a negative amount": lambda: task(cpu=-1),
    "retries in words": lambda: task(retries="3"),
    "a time-out below nothing": lambda: task(timeout=-1),
    "a name that is a number": lambda: task(name=7),
    "detached in words": lambda: task(detach="yes"),
    "no function": lambda: task()(7),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_refused_where_it_is_written(make):
    with pytest.raises(InvalidInput):
        make()


# ---- submitting


def test_a_result_to_come(either):
    future = add.submit(20, b=22)
    assert isinstance(future, TaskFuture)
    assert isinstance(future, Future)
    assert future.result(20) == 42
    assert future.exception() is None
    assert future.node == either.nodes()[0].name
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert "add state=finished" in repr(future)


def test_its_error(either):
    future = fails.submit(3)
    with pytest.raises(LookupError, match="no 3"):
        future.result(20)
    assert isinstance(future.exception(), LookupError)
    assert future.node is None


def test_futures_work_with_the_standard_library(either):
    futures = [add.submit(number) for number in range(20)]
    assert sorted(one.result() for one in as_completed(futures, 20)) == list(range(1, 21))
    assert wait(futures, 20).not_done == set()
    told = []
    futures[0].add_done_callback(told.append)
    assert told == [futures[0]]


def test_map_gives_results_in_order(either):
    assert list(add.map(range(50))) == list(range(1, 51))
    assert list(add.map([1, 2, 3], [10, 20, 30])) == [11, 22, 33]
    assert list(add.map([])) == []


def test_map_takes_what_never_ends(either):
    def numbers():
        number = 0
        while True:
            yield number
            number += 1

    results = add.map(numbers())
    assert [next(results) for _ in range(5)] == [1, 2, 3, 4, 5]
    results.close()


def test_a_failure_in_a_map_comes_in_its_place(either):
    @task(cpu=0.1)
    def third_fails(number):
        if number == 3:
            raise LookupError(number)
        return number

    results = third_fails.map(range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError):
        next(results)
    assert list(results) == []


def test_a_map_has_a_time_limit(either):
    assert list(nap.map([0, 0])) == [None, None]  # so that no process has to be started first
    results = nap.map([0.01, 6.0], timeout=2)
    assert next(results) is None
    with pytest.raises(TimeoutError):
        next(results)


# ---- graphs


def test_futures_as_arguments_make_graphs(either):
    a = add.submit(1)
    b = add.submit(a, b=a)
    assert b.result(20) == 4
    assert total.submit([a, b, 10, (2, {"x": 3})[0]]).result(20) == 18
    assert total.submit({"a": a, "b": b}).result(20) == 6
    nested = task(cpu=0.1)(lambda them: [them[0][0], them[1]["deep"][0]])
    assert nested.submit(((a,), {"deep": [b]})).result(20) == [2, 4]


def test_a_dependent_starts_when_its_inputs_are_there(either):
    slow = nap.submit(0.3, 20)
    after = add.submit(slow, b=nap.submit(0.1, 22))
    assert not after.done()
    assert after.result(20) == 42


def test_a_chain_of_a_hundred_stages(either):
    future = add.submit(0)
    for _ in range(99):
        future = add.submit(future)
    assert future.result(30) == 100


def test_a_failed_input_fails_all_that_need_it_with_the_same_error(either):
    first = fails.submit(7)
    last = add.submit(add.submit(first))
    beside = total.submit([first, nap.submit(5)])
    for future in (last, beside):
        error = future.exception(20)
        assert error is first.exception(20)


def test_what_is_cancelled_cancels_what_needs_it(either):
    blocker = nap.options(cpu=2).submit(0.5)
    first = add.options(cpu=2).submit(1)
    second = add.submit(first)
    assert first.cancel()
    with pytest.raises(CancelledError):
        second.result(20)
    assert second.cancelled()
    blocker.result(20)


def test_arrays_pass_from_one_to_the_next_and_not_through_here(grid):
    made = task(cpu=0.1)(np.ones).submit(1_000_000)
    doubled = task(cpu=0.1)(lambda array: array * 2).submit(made)
    assert task(cpu=0.1)(lambda array: float(array.sum())).submit(doubled).result(20) == 2_000_000
    array = doubled.result()
    assert array is doubled.result()
    path = doubled.value.path
    assert os.path.exists(path)
    del doubled
    assert not os.path.exists(path)
    assert array[0] == 2


def test_many_futures_in_an_argument_are_not_searched_one_by_one(grid, monkeypatch):
    compared = []
    monkeypatch.setattr(TaskFuture, "__eq__", lambda one, other: compared.append(one) or False)
    assert total.submit([add.submit(number) for number in range(50)]).result(30) == sum(range(51))
    assert compared == []


def test_a_future_hidden_in_an_object_is_refused_whether_or_not_it_is_done(grid):
    class Box:
        pass

    box = Box()
    box.inside = nap.submit(0.5, 1)
    error = task(cpu=0.1)(lambda box: box.inside).submit(box).exception(20)
    assert "cannot be waited for" in str(error)
    box.inside.result(20)
    again = task(cpu=0.1)(lambda box: box.inside).submit(box).exception(20)
    assert "cannot be waited for" in str(again)


# ---- retries, limits and cancelling


@task(cpu=0.1, retries=2)
def counts(path, fail_first, how="raise"):
    with open(path, "a") as file:
        file.write("x")
    count = os.path.getsize(path)
    if count <= fail_first:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise LookupError(count)
    return count


def test_it_is_tried_again_as_often_as_was_said(either, tmp_path):
    assert counts.submit(str(tmp_path / "a"), 2).result(30) == 3
    failed = counts.submit(str(tmp_path / "b"), 3)
    assert failed.exception(30).args == (3,)
    assert (tmp_path / "b").read_text() == "xxx"


def test_also_when_its_worker_dies(grid, tmp_path):
    assert counts.submit(str(tmp_path / "a"), 1, "kill").result(30) == 2
    lost = counts.options(retries=0).submit(str(tmp_path / "b"), 1, "kill")
    assert isinstance(lost.exception(30), WorkerLost)


def test_after_too_little_memory_it_gets_more(grid):
    @task(cpu=0.1, memory="120MB", retries=2)
    def hoard():
        kept = bytearray(200_000_000)
        time.sleep(1.5)
        return len(kept), int(os.environ["GRIDHAND_MEMORY_BYTES"]) > 200_000_000

    assert hoard.submit().result(60) == (200_000_000, True)
    assert isinstance(hoard.options(retries=0).submit().exception(60), OutOfMemory)


def test_what_cannot_succeed_is_not_tried_again(grid):
    begin = time.monotonic()
    assert isinstance(
        nap.options(cpu=0.1, retries=999, timeout=0.2).submit(30).exception(20), CallTimeout
    )
    assert isinstance(add.options(cpu=10_000, retries=999).submit(1).exception(20), NeverFits)
    lock = add.options(retries=999).submit(threading.Lock())
    assert lock.exception(20).reason == "unsendable"
    assert time.monotonic() - begin < 60


def test_what_waits_is_cancelled_and_what_runs_is_stopped(either):
    whole = nap.options(cpu=2)
    runs, waits, again = whole.submit(4.0), whole.submit(4.0), whole.options(retries=3).submit(4.0)
    time.sleep(0.3)
    assert waits.cancel()
    assert again.cancel()
    runs.stop()
    assert runs.cancelled()
    assert wait([runs, waits, again], 20).not_done == set()


def test_one_with_retries_can_be_stopped_while_it_runs(grid, tools):
    runs = nap.options(cpu=0.1, retries=3).submit(60)
    tools.until(lambda: grid.jobs(state="running"))
    runs.stop()
    assert runs.cancelled()


def test_what_has_no_place_is_told_as_by_allocate(either):
    with pytest.raises(NeverFits, match="no room for cpu=100000"):
        add.options(cpu=100_000).submit(1).result(20)


def test_one_who_waits_too_short_is_told_what_it_does(either):
    (node,) = either.nodes()
    whole = nap.options(cpu=node.total["cpu"] / 10_000)
    first, second = whole.submit(1.5), whole.submit(0)
    third = add.submit(second)
    while not first.running() and not (first._inner and first._inner.running()):
        time.sleep(0.01)
    for future, said in (
        (first, "nap still runs"),
        (second, "nap still waits for room"),
        (third, "add still waits for its arguments"),
    ):
        for ask in (future.result, future.exception):
            with pytest.raises(TimeoutError, match=said):
                ask(timeout=0.01)


@task(cpu=0.1)
def is_late():
    raise TimeoutError


def test_a_timeout_of_its_own_is_as_it_is(either):
    with pytest.raises(TimeoutError) as caught:
        is_late.submit().result(60)
    assert caught.value.args == ()


def test_a_future_of_somebody_else_is_no_argument(either):
    with ThreadPoolExecutor(1) as other:
        future = other.submit(int)
        for given in (future, [future], {"a": {future}}):
            with pytest.raises(TypeError, match=r"cannot be an argument of a task: give what its"):
                add.submit(given)


# ---- asyncio


def test_futures_can_be_awaited(either):
    async def work():
        assert await add.submit(1) == 2
        assert await asyncio.gather(*[add.submit(n) for n in range(10)]) == list(range(1, 11))
        with pytest.raises(LookupError):
            await fails.submit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(nap.submit(0.7), 0.1)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_asyncio_can_wait_for_some_of_them(either):
    async def work():
        quick, slow = add.submit(1), nap.submit(1.0)
        done, left = await asyncio.wait([quick, slow], return_when=asyncio.FIRST_COMPLETED)
        assert (done, left) == ({quick}, {slow})
        assert quick.result() == 2
        assert await asyncio.wait([quick, slow], timeout=0.01) == ({quick}, {slow})
        done, left = await asyncio.wait([slow, fails.submit()])
        assert len(done) == 2
        assert not left
        found = [await one for one in asyncio.as_completed([add.submit(1), add.submit(2)])]
        assert sorted(found) == [2, 3]

    asyncio.run(asyncio.wait_for(work(), 60))


def test_one_who_is_cancelled_stops_what_he_waits_for(grid):
    async def work():
        future = nap.submit(60)
        waiting = asyncio.ensure_future(future._awaited())
        await asyncio.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert future.cancelled()

    asyncio.run(asyncio.wait_for(work(), 30))


def test_an_async_function_is_run_to_its_end(grid):
    @task(cpu=0.1)
    async def waits(seconds):
        await asyncio.sleep(seconds)
        return "done"

    assert waits.submit(0.01).result(20) == "done"


# ---- which grid


def test_the_grid_of_the_block_is_meant_and_one_that_is_named_before_it(grid):
    with Grid.in_memory() as inner:
        inner.register_node("inner", cpu=1)
        first = add.submit(1)
        first.result(20)
        assert first.node == "inner"
        named = add.options(grid=grid).submit(1)
        named.result(20)
        assert named.node == grid.nodes()[0].name
        found = []
        thread = threading.Thread(target=lambda: found.append(add.submit(1)))
        thread.start()
        thread.join()
        found[0].result(20)
        assert found[0].node == "inner"
    outer = add.submit(1)
    outer.result(20)
    assert outer.node == grid.nodes()[0].name


PROGRAM = """
import os, sys
from gridhand import task

FACTOR = 3

class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b

@task
def triple(number):
    return FACTOR * number

@task(cpu=1)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@task(cpu=0.5)
def pair(a, b):
    return Pair(a, b)

@task(cpu=0.1)
def outer(n):
    return sum(f.result() for f in [triple.submit(i) for i in range(n)])

if __name__ == "__main__":
    print(triple.submit(14).result(), fib.submit(10).result())
    made = pair.submit(1, triple.submit(2)).result()
    print(type(made) is Pair, made.a, made.b)
    print(outer.submit(4).result())
    pid = os.fork()
    if pid == 0:
        print(triple.submit(5).result())
        sys.stdout.flush()
        sys.exit(0)
    print(os.waitpid(pid, 0)[1])
"""


def test_a_program_without_a_grid_uses_that_of_the_machine(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "program.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["42 55", "True 1 6", "18", "15", "0", ""]
    assert "Traceback" not in done.stderr


def test_tasks_of_a_module_are_found_by_their_names(grid, tmp_path, monkeypatch):
    (tmp_path / "of_a_module.py").write_text(
        "from gridhand import task\n"
        "SEEN = []\n"
        "@task(cpu=0.1)\n"
        "def note(x):\n"
        "    SEEN.append(x)\n"
        "    return __name__, len(SEEN)\n"
        "class Thing:\n"
        "    def __init__(self, a): self.a = a\n"
        "    @task(cpu=0.1)\n"
        "    def plus(self, b): return self.a + b\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import of_a_module

    assert note_of(of_a_module) == [("of_a_module", 1), ("of_a_module", 2)]
    assert pickle.loads(pickle.dumps(of_a_module.note)) is of_a_module.note
    assert of_a_module.Thing(40).plus(2) == 42
    assert of_a_module.Thing(40).plus.submit(2).result(20) == 42
    add_twice = task(cpu=0.1)(lambda note: note(0))  # a task as an argument
    assert add_twice.submit(of_a_module.note).result(20)[0] == "of_a_module"


def note_of(module):
    return [module.note.submit(number).result(20) for number in range(2)]


def test_a_task_in_this_file_can_be_sent_as_well(grid):
    again = pickle.loads(cloudpickle.dumps(add.options(name="other")))
    assert isinstance(again, Task)
    assert again(1) == 2
    assert again._name == "other"


def test_after_the_end_of_its_grid_nothing_is_left_pending():
    with Grid() as grid:
        runs = nap.options(grid=grid).submit(60)
        waits = add.options(grid=grid).submit(runs)
    assert runs.cancelled()
    assert waits.cancelled()


def test_what_a_closed_grid_refuses_fails_the_future(grid):
    with Grid() as other:
        first = add.options(grid=other).submit(1)
        assert first.result(20) == 2
    with pytest.raises(GridClosed):
        add.options(grid=other).submit(1)


# ---- said in one go


def test_a_function_may_be_given_with_what_it_needs():
    made = task(len, cpu=2, memory="100MB", retries=3, timeout=5, name="size")
    assert repr(made) == "<task size: cpu=2 memory=100MB>"
    assert made([1, 2]) == 2
    assert (made._options.retries, made._options.timeout) == (3, 5)
    with pytest.raises(InvalidInput):
        task(len, timeout=-4)
    with pytest.raises(InvalidInput, match="resources: 5"):
        task(5)


def test_a_future_of_another_grid_arrives_as_what_it_stands_for():
    with Grid.in_memory() as memory, Grid() as grid:
        memory.register_node("here", cpu=2)
        there, here = add.options(grid=memory), add.options(grid=grid)
        assert here.submit(there.submit(1)).result(30) == 3
        assert there.submit(here.submit(1)).result(30) == 3
        sums = total.options(grid=grid)
        assert sums.submit([there.submit(1), here.submit(2)]).result(30) == 5


@pytest.mark.parametrize("nothing", [{"cpu": 0}, {"num_cpus": 0}, {"cpu": 0, "memory": 0}])
def test_a_function_may_need_nothing(either, nothing):
    started = task(**nothing)(time.sleep)
    future = started.submit(0.5)
    assert either.allocations() == []
    assert future.result(20) is None
    assert not started.request.resources
    assert not task("cpu=0")(len).request.resources
    assert not task({"cpu": 0})(len).request.resources
    assert str(task("")(len).request.resources) == "cpu=1"


def test_nothing_is_not_a_job_of_its_own(grid):
    with pytest.raises(InvalidInput, match="cpu") as caught:
        task(cpu=0, detach=True)(len).submit([])
    assert "detach" in caught.value.hint


def test_nothing_has_no_wishes():
    with pytest.raises(InvalidInput):
        task(cpu=0, node="somewhere")(len)
    assert str(task(cpu=0, memory="1GB")(len).request.resources) == "memory=1GB"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("retrys", "retries"),
        ("max_retries", "retries"),
        ("time_out", "timeout"),
        ("detatch", "detach"),
    ],
)
def test_an_option_that_was_mistyped_is_not_a_resource(given, meant):
    with pytest.raises(InvalidInput, match=given) as caught:
        task(**{given: 1})(len)
    assert f"{meant}=" in caught.value.hint
    with pytest.raises(InvalidInput, match=given):
        task(len).options(**{given: 1})
    assert task(slots=1, tokens=2)(len).request.resources["tokens"]


class Refused(Exception):
    """Hands on less than it is given, and keeps something that cannot be sent."""

    def __init__(self, what, why):
        super().__init__(f"{what} was refused")
        self.what, self.why = what, why
        self.lock = threading.Lock()


def refuse():
    raise Refused("this", "that")


def test_an_exception_of_any_kind_arrives_as_what_it_is(grid):
    with pytest.raises(Exception, match="this was refused") as caught:
        task(cpu=0.1)(refuse).submit().result(20)
    error = caught.value
    assert (type(error).__name__, error.what, error.why) == ("Refused", "this", "that")
    assert not hasattr(error, "lock")
    assert "refuse" in str(error.__cause__)


def test_a_future_shows_what_it_knows(either):
    future = add.submit(1, 2)
    wait([future], 20)
    assert repr(future).endswith("add state=finished>")
    future.result()
    assert repr(future).endswith("add state=finished returned int>")


# ---- names

#    what is meant        what is written             the hint
TYPOS = {
    "memory":             ({"mem": "1GB"},            "memory="),
    "cpu":                ({"cpus": 2},               "cpu="),
    "node":               ({"nodes": 2},              "node="),
    "bytes":              ({"memory": 4 * 1024**3},   '"4.29497GB"; a bare number is in MB'),
}  # fmt: skip


@pytest.mark.parametrize(("written", "hint"), TYPOS.values(), ids=TYPOS)
def test_what_is_mistyped_is_refused_where_it_is_written(written, hint):
    for made in (lambda: task(**written), lambda: task(written), lambda: add.options(**written)):
        with pytest.raises(InvalidInput) as refused:
            made()
        assert hint in refused.value.hint


def test_a_parameter_may_be_called_self(either):
    @task(cpu=0.1)
    def plus(self, other):
        return self + other

    assert plus(self=1, other=2) == plus.submit(self=1, other=2).result(60) == 3


def test_a_task_in_a_graph_brings_its_cost(either):
    function = Function("y", task(cpu=0.5)(abs), args=["x"])
    assert str(function.asked().resources) == "cpu=0.5"
    assert Function("y", task(cpu=0.5)(abs), cost={"cpu": 1}).cost == {"cpu": 1}
    graph = [Function("x", type="input"), function]
    assert either.execute(graph, inputs={"x": -3})["y"] == 3


# ---- futures inside of arguments


Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Config:
    name: str
    value: object


class Holder:
    def __init__(self, value):
        self.value = value


#    where the future is              the argument                                   what the function gets
PLACES = {
    "a named tuple":                  (lambda one: Pair(one, 5),                        Pair(3, 5)),
    "a dataclass":                    (lambda one: Config("a", [one]),                  Config("a", [3])),
    "a defaultdict":                  (lambda one: defaultdict(list, {"a": one}),       {"a": 3}),
    "a deque in a dictionary":        (lambda one: {"a": deque([one, 4], 2)},           {"a": deque([3, 4])}),
}  # fmt: skip
HIDDEN = {
    "an attribute":                   Holder,
    "a closure":                      lambda one: lambda: one,
    "a partial":                      lambda one: functools.partial(print, one),
}  # fmt: skip


def same(value):
    return value


def nap_and_return(seconds, value):
    time.sleep(seconds)
    return value


@pytest.mark.parametrize(("place", "given"), PLACES.values(), ids=PLACES)
def test_futures_in_containers_are_waited_for(either, place, given):
    later = task(cpu=0.1)(nap_and_return).submit(0.2, 3)
    found = task(cpu=0.1)(same).submit(place(later)).result(60)
    assert found == given
    assert type(found) is type(place(None))


@pytest.mark.parametrize("place", HIDDEN.values(), ids=HIDDEN)
def test_futures_that_cannot_be_waited_for_are_refused_even_if_they_are_done(grid, place):
    done = add.submit(1)
    assert done.result(60) == 2
    with pytest.raises((TypeError, CallFailed), match=r"future|refers to"):
        task(cpu=0.1)(same).submit(place(done)).result(60)


def test_a_task_that_refers_to_a_future_is_refused(either):
    done = add.submit(1)

    @task(cpu=0.1)
    def refers():
        return done

    with pytest.raises(TypeError, match="give that as an argument"):
        refers.submit()


def test_a_container_may_contain_itself(either):
    ring = [1]
    ring.append(ring)
    found = task(cpu=0.1)(same).submit(ring).result(60)
    assert found[0] == 1
    assert found[1] is found
