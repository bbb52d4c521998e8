"""Jobs from Python: a real controller, agent and starter, begun by `Grid()` itself."""

import asyncio
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from gridhand import AsyncGrid, Grid, GridClosed, GridError, InvalidInput, NeverFits, Request
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.core.errors import UnknownJob
from gridhand.home import Home
from gridhand.library.job_handle import AsyncJob, Job
from until import until


@pytest.fixture(scope="module")
def home():
    """A folder for a controller; whatever runs there at the end is ended."""
    folder = tempfile.mkdtemp(prefix="gh")
    yield Home(os.path.join(folder, "h"))
    stop(Home(os.path.join(folder, "h")))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def here(home, monkeypatch):
    monkeypatch.delenv("GRIDHAND_ADDRESS", raising=False)
    monkeypatch.setenv("GRIDHAND_HOME", home.folder)


@pytest.fixture
def grid():
    with Grid() as grid:
        yield grid
        assert grid.check() == []


def stop(home):
    with Client(Address(home.socket)) as client:
        facts = client.probe()
        if facts is None:
            return
        client.stop(jobs="kill")
    until(lambda: not os.path.exists(f"/proc/{facts['pid']}"), 30)


def test_a_command_is_run_and_waited_for(grid):
    job = grid.run(["sh", "-c", "echo out; echo err >&2; exit 3"], name="three", memory="100MB")
    assert job.wait(timeout=20) is job
    assert (job.state, job.exit_code, job.reason, job.name) == ("failed", 3, "exit", "three")
    assert (job.done, job.succeeded, job.node) == (True, False, grid.nodes()[0].name)
    assert (job.logs(), job.logs("stderr")) == ("out\n", "err\n")
    assert dict(job.follow()) == {"stdout": b"out\n", "stderr": b"err\n"}
    assert job.wait().exit_code == 3
    assert repr(job).startswith(f"<job {job.id} failed, exit code 3: sh -c")


def test_a_text_is_split_as_a_shell_would_and_nothing_more(grid):
    job = grid.run("echo 'a  b' $HOME ; *").wait()
    assert job.logs() == "a  b $HOME ; *\n"


def test_a_job_has_this_folder_and_environment_and_what_is_added(grid, monkeypatch, tmp_path):
    monkeypatch.setenv("MINE", "1")
    job = grid.run('sh -c "pwd; echo $MINE $GIVEN"', env={"GIVEN": "2"}, cwd=tmp_path).wait()
    assert job.logs() == f"{tmp_path}\n1 2\n"


def test_a_job_asks_for_one_core_unless_it_says_otherwise(grid):
    for given, asked in (
        ({}, {"cpu": 1}),
        ({"memory": "10MB"}, {"cpu": 1, "memory": 10**7}),
        ({"cpu": 0.5}, {"cpu": 0.5}),
        ({"resources": "num_cpus=2"}, {"cpu": 2}),
        ({"resources": Request.of(memory="10MB")}, {"memory": 10**7}),
    ):
        job = grid.run("true", **given)
        assert job.facts["request"] == asked
        job.wait(timeout=20)


def test_an_array_runs_once_for_each_place(grid):
    tasks = grid.run_array("sh -c 'echo $GRIDHAND_ARRAY_TASK_ID'", "3-5")
    assert [task.wait(timeout=20).logs() for task in tasks] == ["3\n", "4\n", "5\n"]
    assert tasks[0].id.endswith("_3")


def test_a_gang_has_a_member_on_each_node(grid):
    [member] = grid.run_gang("sh -c 'echo $RANK of $WORLD_SIZE'", 1)
    assert member.wait(timeout=20).logs() == "0 of 1\n"
    assert member.facts["nodes"] == 1
    with pytest.raises(NeverFits, match="2 nodes with cpu=1 each are needed, but only 1 node has"):
        grid.run_gang("true", 2)


def test_a_job_may_wait_for_others(grid):
    first = grid.run("false")
    never = grid.run("true", after=first)
    anyway = grid.run("true", after=[(first, "afterany")])
    assert anyway.wait(timeout=20).succeeded
    assert never.wait(timeout=20).state == "cancelled"
    assert never.reason == "dependency"


def test_waiting_has_an_end_and_cancelling_ends_it(grid):
    job = grid.run("sleep 60")
    with pytest.raises(TimeoutError, match=f"job {job.id} is still"):
        job.wait(timeout=0.1)
    with pytest.raises(TimeoutError):
        job.wait(timeout=0)
    assert [one.id for one in grid.jobs(state="open")] == [job.id]
    assert grid.cancel(job)[0].id == job.id
    assert job.wait(timeout=20).state == "cancelled"
    assert job.cancel().state == "cancelled"
    assert grid.job(job.id).reason == "cancelled"
    assert job.id in [one.id for one in grid.jobs(limit=5)]


def test_a_signal_is_passed_on(grid):
    job = grid.run(["sh", "-c", "trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done"])
    until(lambda: job.logs() == "ready\n")
    assert job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=20).exit_code == 7
    assert job.send_signal(signal.SIGUSR1) is False


def test_a_time_limit_ends_it(grid):
    job = grid.run("sleep 60", time_limit=0.3).wait(timeout=20)
    assert (job.state, job.reason) == ("failed", "timeout")


WRONG = {
    "no command": lambda g: g.run([]),
    "an empty text": lambda g: g.run(""),
    "a number": lambda g: g.run(7),
    "numbers among the words": lambda g: g.run(["sleep", 7]),
    "quotes that do not match": lambda g: g.run("echo 'a"),
    "a zero byte": lambda g: g.run(["echo", "a\0b"]),
    "a negative amount": lambda g: g.run("true", cpu=-1),
    "a misspelt keyword": lambda g: g.run("true", cwdd="x"),
    "an unknown priority": lambda g: g.run("true", priority="now"),
    "a time limit below nothing": lambda g: g.run("true", time_limit=-1),
    "retries in words": lambda g: g.run("true", retries="3"),
    "a variable that is a number": lambda g: g.run("true", env={"A": 1}),
    "a variable with =": lambda g: g.run("true", env={"A=B": "1"}),
    "to run after nothing": lambda g: g.run("true", after=[None]),
    "detached in words": lambda g: g.run("true", detach="no"),
    "an array that is none": lambda g: g.run_array("true", "x"),
    "a gang on no nodes": lambda g: g.run_gang("true", 0),
    "a gang that is pinned": lambda g: g.run_gang("true", 2, node="n1"),
    "nodes of a single job": lambda g: g.run("true", nodes=2),
    "an op id that is none": lambda g: g.run("true", op_id="a b"),
    "a job that is none": lambda g: g.cancel(7.5),
    "a state that is none": lambda g: g.jobs(state="done"),
    "a limit of nothing": lambda g: g.jobs(limit=0),
}


@pytest.mark.parametrize("ask", WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_refused_and_queues_nothing(grid, ask):
    before = [job.id for job in grid.jobs(limit=1)]
    with pytest.raises(InvalidInput) as caught:
        ask(grid)
    assert caught.value.hint
    assert [job.id for job in grid.jobs(limit=1)] == before


def test_what_could_never_run_is_refused_at_once(grid):
    with pytest.raises(NeverFits):
        grid.run("true", cpu=100_000)
    with pytest.raises(UnknownJob):
        grid.job("999999")


def test_the_same_op_id_is_the_same_job(grid):
    first = grid.run("true", op_id="only-once")
    assert grid.run("true", op_id="only-once").id == first.id
    with pytest.raises(GridError, match="only-once"):
        grid.run("false", op_id="only-once")


# ---- whose jobs they are


def test_a_job_ends_with_its_grid_unless_it_is_detached(grid):
    with Grid() as other:
        attached = other.run("sleep 60", cpu=0.1)
        detached = other.run("sleep 60", cpu=0.1, detach=True)
        until(lambda: detached.refresh().state == attached.refresh().state == "running")
    ended = grid.job(attached.id).wait(timeout=10)
    assert (ended.state, ended.reason) == ("cancelled", "client_gone")
    assert grid.job(detached.id).state == "running"
    grid.cancel(detached.id)
    with pytest.raises(GridClosed):
        attached.refresh()


KILLED = """
import time
from gridhand import Grid
grid = Grid()
held = grid.allocate(cpu=0.5)
job = grid.run("sleep 60", cpu=0.1)
while job.refresh().state != "running":
    time.sleep(0.01)
print(held.id, job.id, flush=True)
time.sleep(60)
"""


def test_t4_a_program_that_is_killed_gives_back_and_its_jobs_end(grid):
    program = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    try:
        held, job = program.stdout.readline().split()
        mine = grid.allocate(cpu=0.5)
    finally:
        program.kill()
    until(lambda: held not in [one.id for one in grid.allocations()], seconds=1.0)
    assert grid.job(job).wait(timeout=10).reason == "client_gone"
    assert mine.id in [one.id for one in grid.allocations()]
    program.wait(10)
    program.stdout.close()


def test_t11_a_controller_that_is_killed_comes_back_and_nothing_is_lost(grid, home):
    held, lease = grid.allocate(cpu=0.2), grid.allocate(cpu=0.2, ttl=60)
    job = grid.run(["sh", "-c", "sleep 2; echo done"], cpu=0.1)
    until(lambda: job.refresh().state == "running")
    with Client(Address(home.socket)) as client:
        os.kill(client.probe()["pid"], signal.SIGKILL)
    again = grid.allocate(cpu=0.2)  # starts another one
    assert {held.id, lease.id, again.id} <= {one.id for one in grid.allocations()}
    assert job.wait(timeout=30).exit_code == 0
    assert job.logs() == "done\n"
    for one in (held, lease, again):
        assert one.release().state == "released"


# ---- asyncio


def test_jobs_from_asyncio(grid):
    async def work():
        async with AsyncGrid() as twin:
            job = await twin.run("sh -c 'sleep 0.1; echo hi'", cpu=0.1)
            assert (await job.wait()).exit_code == 0
            assert await job.logs() == "hi\n"
            assert [piece async for piece in job.follow()] == [("stdout", b"hi\n")]
            slow = await twin.run("sleep 60", cpu=0.1)
            with pytest.raises(TimeoutError):
                await slow.wait(timeout=0.2)
            assert (await (await slow.cancel()).wait()).state == "cancelled"
            tasks = await twin.run_array("true", "1-4", cpu=0.1)
            assert {one.state for one in await asyncio.gather(*(t.wait() for t in tasks))} == {
                "succeeded"
            }
            assert (await twin.job(job.id)).id == job.id
            assert len(await twin.jobs(limit=3)) == 3

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_task_that_is_cancelled_while_it_submits_leaves_no_job(grid):
    async def work():
        async with AsyncGrid() as twin:
            await twin.run("true")  # the session is there
            for pause in (0, 0.001, 0.002, 0.004):
                task = asyncio.create_task(twin.run("sleep 60", cpu=0.1))
                await asyncio.sleep(pause)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            deadline = time.monotonic() + 10
            while await twin.jobs(state="open"):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_both_kinds_of_job_have_the_same_methods_and_facts():
    def methods(kind):
        found = inspect.getmembers(kind, callable)
        return {n: inspect.signature(f).parameters.keys() for n, f in found if n[0] != "_"}

    def facts(kind):
        return {n for n, _ in inspect.getmembers(kind, lambda one: isinstance(one, property))}

    assert methods(Job) == methods(AsyncJob)
    assert facts(Job) == facts(AsyncJob)
