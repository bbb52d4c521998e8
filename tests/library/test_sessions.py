"""Programs that hold resources at a controller, and end: properly, killed, or forked."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from gridhand import (
    AsyncGrid,
    ControllerUnavailable,
    Grid,
    GridClosed,
    InvalidInput,
    NoRoom,
    Request,
    Resources,
)
from gridhand.core.ledger.allocations import Allocation, AllocationState, Lifetime, Terms
from gridhand.core.operations import Allocate
from gridhand.core.rows.ledger import allocation_row
from gridhand.library.remote_operations import RemoteAllocate
from nodeless_controller import Running
from until import until

HOLDER = """
import os, sys, time
from gridhand import Grid

grid = Grid(sys.argv[1])
{work}
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def server(tmp_path):
    with Running(tmp_path / "home") as running:
        yield running


@pytest.fixture
def address(server):
    return f"unix:{server.home.socket}"


@pytest.fixture
def grid(address):
    with Grid(address) as grid:
        grid.register_node("n1", cpu=8)
        yield grid
        assert grid.check() == []


class Program:
    """Another process that holds something, and waits."""

    def __init__(self, address, work):
        code = HOLDER.format(work=work)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, address], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        assert self.process.stdout.readline() == "held\n"
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()


def free(grid, cpu):
    return grid.node("n1").available == Resources.of(cpu=cpu)


def test_t4_a_client_that_is_killed_gives_back_within_a_second_and_others_keep_theirs(
    grid, address
):
    mine = grid.allocate(cpu=1)
    with (
        Program(address, "grid.allocate(cpu=2); grid.reserve(cpu=1, ttl=60)") as killed,
        Program(address, "grid.allocate(cpu=1, holder='other')"),
    ):
        assert free(grid, 3)
        killed.send_signal(signal.SIGKILL)
        until(lambda: free(grid, 6), seconds=1.0)
        assert {one.holder for one in grid.allocations()} == {mine.holder, "other"}
        assert mine.release().state == "released"
    until(lambda: free(grid, 8))


ENDS = {
    "at the end of the program": "sys.exit(0)",
    "by an exception": "raise SystemExit(3)",
    "by a signal": "os.kill(os.getpid(), 15)",
    "by os._exit": "os._exit(1)",
    "by closing": "grid.close(); time.sleep(60)",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_however_a_program_ends_it_gives_back(grid, address, end):
    with Program(address, "grid.allocate(cpu=2)\nprint('held', flush=True)\n" + end):
        until(lambda: free(grid, 8))


def test_a_lease_and_what_is_released_outlast_the_client(grid, address):
    work = "grid.allocate(cpu=1, ttl=60); grid.reserve(cpu=1, ttl=60).confirm(ttl=60)"
    with Program(address, work + "; grid.allocate(cpu=1)") as killed:
        killed.kill()
        until(lambda: free(grid, 6))
    assert [one.lifetime for one in grid.allocations()] == ["lease", "lease"]
    for one in grid.allocations():
        one.release()


def test_a_forked_child_does_not_keep_what_its_parent_held(grid, address):
    work = """
grid.allocate(cpu=2)
if os.fork() == 0:
    time.sleep(30)
"""
    with Program(address, work) as parent:
        children = f"/proc/{parent.pid}/task/{parent.pid}/children"
        with open(children) as file:
            [child] = map(int, file.read().split())
        try:
            parent.kill()
            until(lambda: free(grid, 8))
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_opens_a_grid_of_its_own(grid, address):
    held = grid.allocate(cpu=1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            try:
                grid.allocate(cpu=1)
            except GridClosed:
                with Grid(address) as own:
                    own.allocate(cpu=2)
                    os.write(writing, b"%d" % len(own.allocations()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"2"
    os.close(reading)
    os.close(writing)
    until(lambda: free(grid, 7))
    assert held.release().state == "released"


def test_closing_a_grid_gives_back_at_once(grid, address):
    with Grid(address) as other:
        held = other.allocate(cpu=2)
        assert held.lifetime == "session"
        other.for_owner("bob").allocate(cpu=1)
    assert free(grid, 8)


def test_threads_share_one_session(server, address):
    with Grid(address) as grid:
        grid.register_node("n1", cpu=8)
        threads = [threading.Thread(target=lambda: grid.allocate(cpu=0.1)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(grid.allocations()) == 16
        assert sum(t.name == "gridhand-session" for t in threading.enumerate()) == 1
    with Grid(address) as grid:
        assert grid.allocations() == []


def test_t5_two_programs_that_race_for_the_last_place_get_it_once(grid, address):
    won = []

    def race(other):
        try:
            other.allocate(cpu=8)
            won.append(other)
        except NoRoom:
            pass

    with Grid(address) as first, Grid(address) as second:
        threads = [threading.Thread(target=race, args=[other]) for other in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(won) == 1


def test_t11_what_a_client_holds_is_still_its_own_after_a_restart_of_the_controller(tmp_path):
    home = tmp_path / "home"
    with Running(home) as server:
        grid = Grid(backend=server.backend(), owner="ann")
        grid.register_node("n1", cpu=8)
        held, lease = grid.allocate(cpu=1, holder="train"), grid.allocate(cpu=1, ttl=60)
    with Running(home), grid:
        assert {one.id for one in grid.allocations()} == {held.id, lease.id}
        again = grid.allocate(cpu=2)  # the session is there again
        assert grid.release(held).state == "released"
        assert again.release().state == "released"
        assert grid.allocate(cpu=1).lifetime == "session"
        assert grid.check() == []
    with Running(home) as server, Grid(backend=server.backend(), owner="ann") as grid:
        assert [one.id for one in grid.allocations()] == [lease.id]


class Script:
    """Stands in for a controller whose session is lost while it grants something."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.lost_ones = []

    def ask(self, owner, ask, opened=None):
        self.asked.append((ask.target.rpartition("/")[2], ask.op_id))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def session(self, owner):
        return self

    def ready(self):
        return "0" * 32

    def lost(self, id):
        self.lost_ones.append(id)

    def hold(self, id):
        self.held = id


def told(number, *, fresh, state=AllocationState.ACTIVE):
    held = Allocation(
        f"a1-{number}", number, 1, "ann", "x", "n1", Resources.of(cpu=1), (), state,
        Lifetime.SESSION, None, None, None, None, None, 0,
    )  # fmt: skip
    return {"fresh": fresh, "row": allocation_row(held)}


NO_SESSION = InvalidInput("session", "x", "one that is connected")


def test_what_was_granted_to_a_session_that_was_lost_is_asked_for_anew_if_it_ended_with_it():
    script = Script(
        NO_SESSION,
        told(1, fresh=False),
        told(1, fresh=False, state=AllocationState.RELEASED),
        told(2, fresh=True),
    )
    call = RemoteAllocate(Allocate("ann", None, (Request.of(cpu=1),), Terms("ann")))
    assert [held.id for held in call.run(script).allocations] == ["a1-2"]
    assert script.held == "a1-2"
    ids = [op_id for target, op_id in script.asked if target == "allocations"]
    assert ids[0] == ids[1] != ids[2]


def test_what_was_granted_and_still_lives_is_not_asked_for_twice():
    script = Script(NO_SESSION, told(1, fresh=False), told(1, fresh=False))
    call = RemoteAllocate(Allocate("ann", None, (Request.of(cpu=1),), Terms("ann")))
    assert [held.id for held in call.run(script).allocations] == ["a1-1"]
    assert len({op_id for target, op_id in script.asked if target == "allocations"}) == 1


def test_a_session_that_is_lost_again_and_again_is_told():
    script = Script(NO_SESSION, NO_SESSION, NO_SESSION)
    call = RemoteAllocate(Allocate("ann", None, (Request.of(cpu=1),), Terms("ann")))
    with pytest.raises(ControllerUnavailable):
        call.run(script)
    assert len(script.lost_ones) == 3


# ---- asyncio


def test_asyncio_has_the_same_sessions(server, address):
    async def work():
        async with AsyncGrid(address) as grid:
            await grid.register_node("n1", cpu=8)
            held = await asyncio.gather(*(grid.allocate(cpu=0.1) for _ in range(50)))
            assert {one.lifetime for one in held} == {"session"}
            assert len(await grid.allocations()) == 50

    asyncio.run(work())
    with Grid(address) as grid:
        assert grid.allocations() == []


def test_a_task_that_is_cancelled_leaves_nothing_held(server, address):
    async def work():
        async with AsyncGrid(address) as grid:
            await grid.register_node("n1", cpu=8)
            kept = await grid.allocate(cpu=1, holder="train")
            for after_s in (0, 0.001, 0.002, 0.003, 0.005):
                for how in ({}, {"op_id": f"op-{after_s}"}, {"holder": "train"}):
                    task = asyncio.create_task(grid.allocate(cpu=1, **how))
                    await asyncio.sleep(after_s)
                    task.cancel()
                    [made] = await asyncio.gather(task, return_exceptions=True)
                    if not isinstance(made, BaseException) and made.id != kept.id:
                        await made.release()
            deadline = time.monotonic() + 2
            while [one.id for one in await grid.allocations()] != [kept.id]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

    asyncio.run(work())


def test_a_grid_serves_several_loops(grid):
    twin = AsyncGrid.of(grid)
    for _ in range(3):
        assert asyncio.run(twin.fits("n1", cpu=8))


def test_an_explanation_and_a_refusal_are_the_same_as_in_process(grid):
    with Grid.in_memory() as own:
        own.register_node("n1", cpu=8)
        for asked in ({"cpu": 9}, {"cpu": 1}, {"gpu": 1, "cpu": 1}):
            assert grid.explain(asked) == own.explain(asked)
        with pytest.raises(NoRoom) as here:
            own.allocate(cpu=9)
    with pytest.raises(NoRoom) as there:
        grid.allocate(cpu=9)
    assert (type(there.value), str(there.value)) == (type(here.value), str(here.value))
    assert there.value.hint == here.value.hint
    assert there.value.refusal.reasons() == here.value.refusal.reasons()
    assert there.value.refusal.ever is here.value.refusal.ever is False
