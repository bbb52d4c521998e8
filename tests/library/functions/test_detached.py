"""Calls that outlive the program that made them."""

import asyncio
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import cloudpickle
import pytest

from gridhand import (
    AsyncGrid,
    CallFailed,
    CallTimeout,
    Grid,
    GridError,
    GridExecutor,
    InvalidInput,
    task,
)
from until import until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@task(cpu=0.1, detach=True)
def add(a, b=1):
    return a + b


@task(cpu=0.1, detach=True)
def nap(seconds):
    time.sleep(seconds)
    return "rested"


def test_its_result_is_there_later_and_for_anyone_who_knows_the_id(grid):
    call = add.submit(20, b=22)
    assert call.result(20) == 42
    assert (call.state, call.done()) == ("succeeded", True)
    with Grid() as another:
        assert another.result(call.id) == 42
        assert another.result(another.job(call.id), timeout=5) == 42
    assert grid.job(call.id).name == "add"
    assert repr(call) == f"<detached call, job {call.id} succeeded>"


def test_it_can_be_asked_for_by_an_option(grid):
    plain = task(cpu=0.1)(lambda x: x + 1)
    assert plain.options(detach=True).submit(1).result(20) == 2


PROGRAM = """
import os, sys, time
from gridhand import task

@task(cpu=0.1)
def late(value):
    time.sleep(1)
    return value, os.path.basename(os.getcwd())

print(late.options(detach=True).submit("later").id, flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_goes_on_when_its_program_is_killed(grid, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert grid.result(done.stdout.strip(), timeout=20) == ("later", tmp_path.name)


def test_what_it_raises_is_raised_and_the_job_has_failed(grid):
    @task(cpu=0.1, detach=True)
    def fails():
        raise LookupError("nothing")

    call = fails.submit()
    with pytest.raises(LookupError, match="nothing") as caught:
        call.result(20)
    assert "in fails" in str(caught.value.__cause__)
    assert call.state == "failed"
    assert "LookupError: nothing" in call.job.logs("stderr")


def test_values_of_other_tasks_are_written_down_with_it(grid):
    first = task(cpu=0.1)(lambda: list(range(100_000))).submit()
    assert task(cpu=0.1, detach=True)(lambda them: sum(map(sum, them))).submit([first]).result(
        20
    ) == sum(range(100_000))


def test_it_is_tried_again_ended_and_cancelled_as_jobs_are(grid, tmp_path, tools):
    path = tmp_path / "count"

    @task(cpu=0.1, detach=True, retries=1)
    def second_time():
        with open(path, "a") as file:
            file.write("x")
        if path.stat().st_size == 1:
            raise LookupError
        return "again"

    assert second_time.submit().result(30) == "again"
    with pytest.raises(CallTimeout):
        nap.options(timeout=0.3).submit(60).result(30)
    call = nap.submit(60)
    tools.until(lambda: call.state == "running")
    assert call.cancel()
    with pytest.raises(CancelledError):
        call.result(20)
    assert not call.cancel()


def test_it_can_be_awaited(grid, tools):
    async def work():
        assert await asyncio.gather(add.submit(1), add.submit(2)) == [2, 3]
        call = nap.submit(60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.2)
        assert not call.done()  # it goes on
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(asyncio.wait_for(work(), 60))


def test_it_is_no_argument_but_its_result_is(grid):
    call, plain = add.submit(1), task(cpu=0.1)(lambda x: x)
    for submit in (plain.submit, add.submit):
        for given in (call, [call], {"a": (call,)}):
            with pytest.raises(TypeError, match=r"detached call.* result\(\)"):
                submit(given)
    assert plain.submit(call.result(20)).result(20) == 2
    with GridExecutor(cpu=0.1) as executor:
        error = executor.submit(str, call).exception(20)
    assert "give what its result() returns" in str(error)


def test_only_ones_own_results_are_read(grid):
    call = add.submit(1)
    call.result(20)
    folder = os.path.dirname(call.job.command[-1])
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert all(
        os.stat(os.path.join(folder, name)).st_mode & 0o777 == 0o600 for name in ("call", "result")
    )
    os.chmod(folder, 0o755)
    with pytest.raises(CallFailed, match="another user"):
        call.result(20)
    shutil.rmtree(folder)
    with pytest.raises(CallFailed, match="not there any more"):
        call.result(20)


def test_other_jobs_have_no_result(grid):
    job = grid.run("true", cpu=0.1)
    with pytest.raises(InvalidInput):
        grid.result(job.id)


def test_what_cannot_be_sent_is_refused_and_leaves_nothing(grid, home):
    calls = os.path.join(home.folder, "calls")
    before = set(os.listdir(calls)) if os.path.isdir(calls) else set()
    with pytest.raises(CallFailed, match="pickle"):
        add.submit(threading.Lock())
    with pytest.raises(GridError):
        add.options(cpu=100_000).submit(1)
    assert set(os.listdir(calls)) == before


def test_from_asyncio(grid):
    async def work():
        async with AsyncGrid() as twin:
            call = await asyncio.to_thread(add.submit, 1)
            return await twin.result(call.id, timeout=20)

    assert asyncio.run(asyncio.wait_for(work(), 60)) == 2


def test_a_grid_in_memory_cannot():
    with Grid.in_memory() as grid, pytest.raises(GridError, match="controller"):
        add.options(grid=grid).submit(1)


def test_it_has_what_a_future_has(grid):
    def half(number):
        return 1 / number

    made = task(cpu=0.1, detach=True)(half)
    well, wrong = made.submit(2), made.submit(0)
    ended = queue.SimpleQueue()
    well.add_done_callback(ended.put)
    assert ended.get(timeout=60) is well
    assert (well.result(60), well.exception(60), well.running(), well.cancelled()) == (
        0.5, None, False, False,
    )  # fmt: skip
    assert isinstance(wrong.exception(60), ZeroDivisionError)
    gone = task(cpu=0.1, detach=True)(time.sleep).submit(600)
    gone.cancel()
    until(gone.done)
    assert gone.cancelled()
