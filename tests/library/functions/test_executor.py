"""What the documentation of `concurrent.futures` says of executors and futures, on `GridExecutor`.

Each test quotes, or sums up, the sentence that it checks.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    as_completed,
    wait,
)

import cloudpickle
import pytest

from gridhand import Grid, GridExecutor, InvalidInput, task
from gridhand.library.functions.function_runner import close_runner
from until import until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def nap(seconds, value=None):
    time.sleep(seconds)
    return value


def fails(seconds=0.0):
    time.sleep(seconds)
    raise LookupError("nothing")


def pid(*_):
    return os.getpid()


@pytest.fixture
def executor(grid):
    with GridExecutor(cpu=0.1) as made:
        yield made


@pytest.fixture
def cores(grid):
    return int(grid.nodes()[0].total["cpu"] // 10_000)


# ---- Executor objects


def test_it_is_an_executor(executor):
    assert isinstance(executor, Executor)


def test_submit_schedules_the_callable_and_returns_a_future(executor):
    future = executor.submit(pow, 323, 1235)
    assert isinstance(future, Future)
    assert future.result(20) == pow(323, 1235)
    assert executor.submit(dict, [(1, 2)], a=3).result(20) == {1: 2, "a": 3}
    assert executor.submit(nap, seconds=0.0, value=7).result(20) == 7
    assert executor.submit(lambda fn, self: (fn, self), fn=1, self=2).result(20) == (1, 2)


def test_what_cannot_be_called_is_refused(executor):
    with pytest.raises(TypeError):
        executor.submit(7)
    with pytest.raises(TypeError):
        executor.submit()


def test_map_is_like_map(executor):
    assert list(executor.map(pow, range(10), range(10))) == list(map(pow, range(10), range(10)))
    assert list(executor.map(pow, [2, 3], [4])) == [16]
    assert list(executor.map(str, [])) == []


def test_map_collects_the_iterables_immediately_and_runs_asynchronously(executor):
    taken = []

    def items():
        for number in range(5):
            taken.append(number)
            yield number

    results = executor.map(str, items())
    assert taken == [0, 1, 2, 3, 4]
    assert list(results) == ["0", "1", "2", "3", "4"]


def test_map_raises_timeout_error_if_next_is_called_and_the_result_is_not_there(executor):
    list(executor.map(nap, [0, 0]))  # so that no process has to be started first
    results = executor.map(nap, [0, 5], timeout=2)
    assert next(results) is None
    with pytest.raises(TimeoutError):
        next(results)


def test_map_raises_what_a_call_raised_when_its_value_is_retrieved(executor):
    results = executor.map(divmod, [1, 1, 1], [1, 0, 1])
    assert next(results) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.parametrize("chunksize", [1, 2, 7, 100])
def test_map_chops_iterables_into_chunks(executor, chunksize):
    assert list(executor.map(pow, range(23), range(23), chunksize=chunksize)) == list(
        map(pow, range(23), range(23))
    )
    with pytest.raises(ZeroDivisionError):
        list(executor.map(divmod, range(5), [1, 1, 0, 1, 1], chunksize=chunksize))


def test_a_chunk_is_one_call(executor):
    found = list(
        executor.map(lambda _: (os.getpid(), time.monotonic_ns()), range(20), chunksize=10)
    )
    assert len({process for process, _ in found[:10]}) == 1


@pytest.mark.parametrize("chunksize", [0, -1])
def test_chunksize_must_be_positive(executor, chunksize):
    with pytest.raises(ValueError):
        executor.map(str, range(3), chunksize=chunksize)


def test_calls_after_shutdown_raise_runtime_error(executor):
    executor.shutdown()
    for call in (lambda: executor.submit(str, 1), lambda: executor.map(str, [1])):
        with pytest.raises(RuntimeError):
            call()
    executor.shutdown()


def test_shutdown_waits_for_all_that_is_pending(grid):
    executor = GridExecutor(cpu=0.1)
    futures = [executor.submit(nap, 0.2, number) for number in range(4)]
    executor.shutdown(wait=True)
    assert all(one.done() for one in futures)
    assert [one.result() for one in futures] == [0, 1, 2, 3]


def test_shutdown_without_wait_returns_at_once_and_the_rest_is_done_later(grid):
    executor = GridExecutor(cpu=0.1)
    future = executor.submit(nap, 3, 7)
    executor.shutdown(wait=False)
    assert not future.done()
    assert future.result(60) == 7


def test_cancel_futures_cancels_what_has_not_started_and_finishes_what_has(grid, cores):
    executor = GridExecutor(cpu=cores)
    futures = [executor.submit(nap, 2, number) for number in range(4)]
    while not futures[0].running():
        time.sleep(0.01)
    executor.shutdown(wait=True, cancel_futures=True)
    assert futures[0].result(0) == 0
    assert all(one.cancelled() for one in futures[1:])


def test_the_with_statement_shuts_it_down_and_waits(grid):
    with GridExecutor(cpu=0.1) as executor:
        future = executor.submit(nap, 0.3, 7)
    assert future.done()
    with pytest.raises(RuntimeError):
        executor.submit(str)


PROGRAM = """
import time
from gridhand import GridExecutor
def late(path):
    time.sleep(0.5)
    open(path, "w").write("done")
executor = GridExecutor(cpu=0.1)
executor.submit(late, "left.txt")
executor.shutdown(wait=False)
"""


def test_regardless_of_wait_the_program_does_not_exit_until_all_is_done(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "left.txt").read_text() == "done"


LONG = """
import time
from gridhand import GridExecutor
def late(path):
    open(path, "w").close()
    time.sleep(100)
def begun():
    while not os.path.exists("begun"):
        time.sleep(0.01)
    print("begun", flush=True)
import os
"""
INTERRUPTED = {
    "inside of the block": """
with GridExecutor(2, cpu=0.1) as executor:
    futures = [executor.submit(late, "begun") for _ in range(10)]
    begun()
    futures[0].result()
""",
    "while it is left": """
with GridExecutor(2, cpu=0.1) as executor:
    futures = [executor.submit(late, "begun") for _ in range(10)]
    begun()
""",
    "without a block": """
executor = GridExecutor(2, cpu=0.1)
futures = [executor.submit(late, "begun") for _ in range(10)]
begun()
futures[0].result()
""",
}


@pytest.mark.parametrize("program", INTERRUPTED.values(), ids=INTERRUPTED)
def test_ctrl_c_ends_the_program_and_what_it_has_submitted(tmp_path, program, grid):
    (tmp_path / "program.py").write_text(LONG + program)
    words = [sys.executable, "program.py"]
    running = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "begun\n"
    time.sleep(0.2)  # for it to be where it waits
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == -signal.SIGINT
    assert said.count("KeyboardInterrupt") == 1
    assert not grid.allocations()


def test_an_error_inside_of_the_block_waits_as_elsewhere(grid):
    futures = []

    def block():
        with GridExecutor(cpu=0.1) as executor:
            futures.append(executor.submit(nap, 0.3, 7))
            fails()

    with pytest.raises(LookupError):
        block()
    assert futures[0].result(0) == 7


# ---- max_workers and initializer, as ProcessPoolExecutor has them


def test_at_most_max_workers_run(grid):
    with GridExecutor(2, cpu=0.1) as executor:
        found = {one.result(30) for one in [executor.submit(pid, nap(0)) for _ in range(40)]}
        sleepers = [executor.submit(nap, 0.2) for _ in range(6)]
        begin = time.monotonic()
        wait(sleepers, 30)
        assert time.monotonic() - begin > 0.55
    assert 1 <= len(found) <= 2


@pytest.mark.parametrize(
    ("count", "error"), [(0, ValueError), (-1, ValueError), ("2", TypeError), (1.5, InvalidInput)]
)
def test_max_workers_is_a_positive_number(grid, count, error):
    with pytest.raises(error):
        GridExecutor(count)


def initialize(value):
    import builtins

    builtins.was_set = value


def test_the_initializer_is_called_at_the_start_of_each_worker(grid):
    with GridExecutor(2, cpu=0.1, initializer=initialize, initargs=(42,)) as executor:
        assert set(executor.map(lambda _: was_set, range(20))) == {42}  # noqa: F821


def set_mark(value):
    os.environ["GRIDHAND_TEST_MARK"] = value


def mark():
    return os.environ.get("GRIDHAND_TEST_MARK")


def test_an_initializer_runs_in_the_workers_of_its_own_executor_only(grid):
    one = {"cpu": 0.1, "max_workers": 1, "initializer": set_mark}
    with GridExecutor(initargs=("a",), **one) as first, GridExecutor(cpu=0.1) as plain:
        assert first.submit(mark).result(60) == "a"
        assert plain.submit(mark).result(60) is None
    with GridExecutor(initargs=("a",), **one) as first:
        here = first.submit(pid).result(60)
        with GridExecutor(initargs=("a",), **one) as second:
            assert second.submit(pid).result(60) != here


def test_a_single_worker_stays_while_the_executor_is_open(grid, monkeypatch):
    monkeypatch.setenv("GRIDHAND_LINGER_S", "0")
    close_runner(grid)  # so that the next one reads it
    with GridExecutor(1, cpu=0.1) as kept, GridExecutor(2, cpu=0.1) as others:
        first, other = kept.submit(pid).result(60), others.submit(pid).result(60)
        until(lambda: not os.path.exists(f"/proc/{other}"))
        assert kept.submit(pid).result(60) == first
        grid.allocate(grid.status().total).release()  # but it is in nobody's way
        assert kept.submit(pid).result(60) != first


def test_max_tasks_per_child_replaces_a_worker_after_so_many_calls(grid):
    with GridExecutor(1, cpu=0.1, max_tasks_per_child=2) as executor:
        pids = [executor.submit(pid).result(60) for _ in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


def test_a_call_is_tried_again_in_a_worker_of_the_executor(grid, tmp_path):
    def fails_once():
        if not (tmp_path / "tried").exists():
            (tmp_path / "tried").touch()
            raise LookupError("not yet")
        return mark()

    with GridExecutor(
        1, cpu=0.1, retries=1, initializer=set_mark, initargs=("b",), name="again",
        mp_context=multiprocessing.get_context("spawn"),
    ) as executor:  # fmt: skip
        future = executor.submit(fails_once)
        assert future.result(60) == "b"
        assert "again" in repr(future)


def test_options_of_other_executors_are_no_resources(grid):
    for wrong in ({"max_tasks_per_child": 0}, {"mp_context": "spawn"}, {"max_retries": 1}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            GridExecutor(**wrong)


def test_should_it_raise_all_pending_calls_and_any_more_are_broken(grid):
    executor = GridExecutor(1, cpu=0.1, initializer=fails)
    pending = executor.submit(str, 1)
    error = pending.exception(20)
    assert isinstance(error, BrokenExecutor)
    assert isinstance(error.__cause__, LookupError)
    with pytest.raises(BrokenExecutor):
        executor.submit(str, 2)
    executor.shutdown()


def test_the_initializer_must_be_callable(grid):
    with pytest.raises(TypeError):
        GridExecutor(initializer=7)


# ---- Future objects


def test_cancel_of_what_runs_or_has_ended_is_false(executor):
    future = executor.submit(nap, 0.5)
    while not future.running():
        time.sleep(0.01)
    assert not future.cancel()
    assert not future.cancelled()
    future.result(20)
    assert not future.cancel()
    assert (future.running(), future.done()) == (False, True)


def test_cancel_of_what_waits_is_true(grid, cores):
    with GridExecutor(cpu=cores) as executor:
        blocker = executor.submit(nap, 0.4)
        future = executor.submit(nap, 0.4)
        assert future.cancel()
        assert future.cancel()
        assert (future.cancelled(), future.done(), future.running()) == (True, True, False)
        for ask in (future.result, future.exception):
            with pytest.raises(CancelledError):
                ask()
        blocker.result(20)


def test_result_and_exception_wait_for_so_long(executor):
    future = executor.submit(nap, 1.0, 7)
    for ask in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            ask(timeout=0.1)
    assert future.exception() is None
    assert future.result(0) == 7


def test_what_the_call_raised_is_raised(executor):
    future = executor.submit(fails)
    with pytest.raises(LookupError, match="nothing"):
        future.result(20)
    assert isinstance(future.exception(), LookupError)


def test_callbacks_are_called_with_the_future_in_the_order_they_were_added(executor):
    told, done = [], threading.Event()
    future = executor.submit(nap, 0.2)
    for number in range(3):
        future.add_done_callback(lambda one, number=number: told.append((number, one)))
    future.add_done_callback(lambda one: done.set())
    assert done.wait(20)
    assert told == [(0, future), (1, future), (2, future)]
    future.add_done_callback(told.append)  # at once
    assert told[-1] is future


def test_a_callback_that_raises_is_logged_and_the_next_one_called(executor, caplog):
    done = threading.Event()
    future = executor.submit(nap, 0.2)
    future.add_done_callback(lambda one: 1 / 0)
    future.add_done_callback(lambda one: done.set())
    assert done.wait(20)
    assert "exception calling callback" in caplog.text


def test_callbacks_of_what_is_cancelled_are_called(grid, cores):
    with GridExecutor(cpu=cores) as executor:
        blocker, told = executor.submit(nap, 0.3), []
        future = executor.submit(nap, 0.3)
        future.add_done_callback(told.append)
        future.cancel()
        assert told == [future]
        blocker.result(20)


def test_a_future_that_is_done_cannot_be_set_again(executor):
    future = executor.submit(str, 1)
    future.result(20)
    with pytest.raises(InvalidStateError):
        future.set_result(2)


# ---- module functions


def test_wait_for_all_first_or_first_exception(executor):
    quick, slow = executor.submit(nap, 0), executor.submit(nap, 1.0)
    first = wait([quick, slow], return_when=FIRST_COMPLETED)
    assert (first.done, first.not_done) == ({quick}, {slow})
    failing = executor.submit(fails)
    last = executor.submit(nap, 1.0)
    found = wait([failing, last], return_when=FIRST_EXCEPTION)
    assert failing in found.done
    assert wait([quick, slow, last], return_when=ALL_COMPLETED).not_done == set()
    late = executor.submit(nap, 0.6)
    assert wait([late], timeout=0.1).not_done == {late}
    late.result(20)


def test_as_completed_yields_each_once_as_they_complete(executor):
    slow, quick = executor.submit(nap, 0.6, "slow"), executor.submit(nap, 0, "quick")
    assert [one.result() for one in as_completed([slow, quick, slow])] == ["quick", "slow"]
    late = executor.submit(nap, 0.6)
    with pytest.raises(TimeoutError):
        list(as_completed([late], timeout=0.1))
    late.result(20)


def test_futures_of_two_executors_can_be_waited_for_together(executor):
    with ProcessPoolExecutor(1) as other:
        futures = [executor.submit(str, 1), other.submit(str, 2)]
        assert {one.result() for one in as_completed(futures, 30)} == {"1", "2"}


# ---- what is ours


def test_it_holds_what_it_says_while_it_works(grid):
    with GridExecutor(cpu=0.5, memory="200MB") as executor:
        future = executor.submit(lambda: os.environ["GRIDHAND_MEMORY_BYTES"])
        assert future.result(20) == "200000000"
        assert {str(one.resources) for one in grid.allocations()} == {"cpu=0.5 memory=200MB"}


def test_tasks_are_called_as_functions(executor):
    assert executor.submit(task(cpu=1)(lambda x: x + 1), 1).result(20) == 2


def test_in_memory_it_calls_in_threads():
    with Grid.in_memory() as grid:
        grid.register_node("here", cpu=2)
        with GridExecutor(grid=grid) as executor:
            assert list(executor.map(pid, range(4))) == [os.getpid()] * 4
            with pytest.raises(LookupError):
                executor.submit(fails).result(20)
        with pytest.raises(InvalidInput):
            GridExecutor(3, grid=grid)
