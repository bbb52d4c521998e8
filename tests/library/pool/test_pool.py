"""Calls in warm processes, with a real controller, agent and starter."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, wait

import cloudpickle
import numpy as np
import pytest

from gridhand import (
    CallFailed,
    CallTimeout,
    Grid,
    GridClosed,
    GridError,
    NeverFits,
    OutOfMemory,
    Request,
    UnknownResource,
    WorkerLost,
)
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.library.pool.pool import Pool
from gridhand.worker.errors import RemoteTraceback

# Workers could not import this module: that is pytest's doing. What is in it is sent along.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def add(a, b=1):
    return a + b


def pid():
    return os.getpid()


def nap(seconds, value=None):
    time.sleep(seconds)
    return value


def die(signum=signal.SIGKILL):
    os.kill(os.getpid(), signum)
    time.sleep(10)


def array(count):
    return np.arange(count, dtype=np.float64)


def total(*arrays):
    return float(sum(one.sum() for one in arrays))


class Peculiar(Exception):
    """Cannot be made from what it hands on, by any means."""

    def __new__(cls, a, b):
        return super().__new__(cls, f"{a} and {b}")

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Thing:
    def __init__(self, value):
        self.value = value


# ---- values


def test_a_value_comes_back_and_says_where_it_was_made(pool, grid, tools):
    returned = pool.submit(tools.call(add, 20, b=22)).result(20)
    assert returned.value.load() == 42
    assert returned.node == grid.nodes()[0].name
    assert returned.allocation


def test_whatever_can_be_pickled_is_passed(pool, tools):
    given = [None, True, 1.5, "ü", b"\0", (1, [2, {3: {4}}]), lambda x: x + 1, Thing(7), int]
    got = tools.value(pool.submit(tools.call(lambda *them: list(them), *given)))
    assert got[:6] == given[:6]
    assert got[6](1) == 2
    assert (type(got[7]), got[7].value) == (Thing, 7)
    assert got[8] is int


def test_a_worker_is_as_this_process(pool, tools, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_mine.py").write_text("def f(): return __name__\n")
    import of_mine

    def look():
        return sys.executable, os.getcwd(), os.environ.get("MINE"), sys.path

    assert tools.value(pool.submit(tools.call(of_mine.f))) == "of_mine"
    assert tools.value(pool.submit(tools.call(look))) == (
        sys.executable, str(tmp_path), "1", sys.path,
    )  # fmt: skip


def test_a_path_that_is_added_later_is_known_as_well(pool, tools, tmp_path, monkeypatch):
    assert tools.value(pool.submit(tools.call(add, 1))) == 2
    (tmp_path / "added_later.py").write_text("def f(): return 'later'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import added_later

    assert tools.value(pool.submit(tools.call(added_later.f))) == "later"


def test_what_has_a_state_is_sent_as_it_is_each_time(pool, tools):
    class Counter:
        def __init__(self):
            self.count = 0

        def look(self):
            return self.count

    counter = Counter()
    for count in (0, 1, 2):
        counter.count = count
        assert tools.value(pool.submit(tools.call(counter.look))) == count


def test_many_functions_are_not_kept_for_ever(pool, tools):
    futures = [pool.submit(tools.call(eval(f"lambda: {number}"))) for number in range(1200)]
    assert [tools.value(one) for one in futures] == list(range(1200))


def test_many_calls_in_order_of_their_futures(pool, tools):
    futures = [pool.submit(tools.call(add, number)) for number in range(3000)]
    assert [tools.value(one) for one in futures] == list(range(1, 3001))


def test_workers_are_warm(pool, tools):
    assert len({tools.value(pool.submit(tools.call(pid))) for _ in range(20)}) == 1


# ---- large values


def test_a_large_array_goes_from_worker_to_worker(pool, tools):
    made = pool.submit(tools.call(array, 1_000_000)).result(20)
    assert tools.value(pool.submit(tools.call(total, made.value, made.value))) == 2 * total(
        np.arange(1e6)
    )
    (path,) = [one for one in [made.value.path] if one.startswith("/dev/shm/")]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    again = made.value.load()
    again += 1  # it is ours alone
    assert made.value.load()[0] == 0
    made.value.drop()
    made.value.drop()
    assert not os.path.exists(path)
    assert again[0] == 1
    with pytest.raises(GridClosed):
        made.value.load()


def test_large_arguments_are_removed_when_the_call_is_over(pool, tools):
    given = np.ones(500_000)
    assert tools.value(pool.submit(tools.call(total, given))) == 500_000
    refused = pool.submit(tools.call(total, given, "no array"))
    assert isinstance(refused.exception(20), AttributeError)
    blocker = pool.submit(tools.call(nap, 0.3, request=tools.ONE))
    cancelled = [pool.submit(tools.call(total, given)) for _ in range(3)]
    assert all(one.cancel() or one.result(20) for one in cancelled)
    blocker.result(20)
    del refused, cancelled

    def left():
        folders = pool._folder.folders
        return [name for one in folders for name in os.listdir(one) if name.startswith("c.")]

    pool.submit(tools.call(add, 1)).result(20)
    assert left() == []


def test_small_arrays_and_large_texts(pool, tools):
    small = np.arange(10)
    got = tools.value(pool.submit(tools.call(add, small)))
    got += 1
    assert got.tolist() == list(range(2, 12))
    text = "x" * 2_000_000
    assert tools.value(pool.submit(tools.call(add, text, "y"))) == text + "y"


def test_without_shared_memory_the_temporary_folder_will_do(pool, tools, monkeypatch):
    from gridhand.worker import encoded_values

    monkeypatch.setattr(encoded_values, "_free", lambda folder: 0)
    assert tools.value(pool.submit(tools.call(total, np.ones(100_000)))) == 100_000


def test_a_value_that_was_not_loaded_is_there_after_the_end(grid, tools):
    pool = Pool(grid._backend, grid.owner)
    made = pool.submit(tools.call(array, 100_000)).result(20)
    pool.close()
    assert made.value.load().sum() == np.arange(1e5).sum()
    with pytest.raises(GridClosed):
        pickle.dumps(made.value)


# ---- errors


def test_what_a_function_raises_is_raised_here_and_says_where_it_was(pool, tools):
    def fails():
        raise KeyError("nothing")

    error = pool.submit(tools.call(fails)).exception(20)
    assert (type(error), error.args) == (KeyError, ("nothing",))
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fails\n" in str(error.__cause__)
    assert "gridhand" not in str(error.__cause__)
    assert "in fails" in str(pickle.loads(pickle.dumps(error.__cause__)))


def test_errors_that_cannot_be_sent_arrive_as_text(pool, tools):
    def peculiar():
        raise Peculiar(1, 2)

    def with_lock():
        raise ValueError(threading.Lock())

    for code, said in (
        (peculiar, "peculiar: Peculiar: 1 and 2"),
        (with_lock, "with_lock: ValueError: <unlocked"),
    ):
        error = pool.submit(tools.call(code)).exception(20)
        assert isinstance(error, CallFailed)
        assert str(error).startswith(said)
        assert "Traceback" in str(error.__cause__)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.reason, again.code) == (str(error), "raised", "call_failed")


@pytest.mark.parametrize("leave", [SystemExit(3), KeyboardInterrupt()], ids=str)
def test_a_function_that_wants_to_leave_has_raised(pool, tools, leave):
    def leaves():
        raise leave

    assert isinstance(pool.submit(tools.call(leaves)).exception(20), type(leave))
    assert tools.value(pool.submit(tools.call(add, 1))) == 2


def test_what_cannot_be_pickled_is_refused_where_it_is(pool, tools):
    lock = threading.Lock()
    for call in (
        tools.call(add, lock),
        tools.call(lambda: lock),
        tools.call(lambda: threading.Lock()),
        tools.call(lambda: (number for number in range(3))),
    ):
        error = pool.submit(call).exception(20)
        assert isinstance(error, CallFailed)
        assert "pickle" in str(error)
        assert error.hint
    assert tools.value(pool.submit(tools.call(add, 1))) == 2


def test_a_function_of_a_module_that_only_this_process_finds_is_sent_by_value(
    pool, tools, tmp_path, monkeypatch
):
    (tmp_path / "only_here.py").write_text("def f(): return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    monkeypatch.undo()
    assert tools.value(pool.submit(tools.call(only_here.f))) == 3


def test_a_function_that_cannot_be_loaded_says_so(pool, tools):
    class Broken:
        def __call__(self):
            """Never called."""

        def __reduce__(self):
            return int, ("no number",)

    error = pool.submit(tools.call(Broken())).exception(20)
    assert isinstance(error, CallFailed)
    assert "could not be loaded in its worker: ValueError" in str(error)


# ---- workers that die


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV], ids=str)
def test_a_worker_that_dies_takes_only_its_own_call_with_it(pool, tools, signum):
    for number in range(30):
        pool.submit(tools.call(add, number)).result(20)  # short: many go ahead
    before = [pool.submit(tools.call(add, number)) for number in range(100)]
    dies = pool.submit(tools.call(die, signum))
    after = [pool.submit(tools.call(add, number)) for number in range(100)]
    error = dies.exception(20)
    assert isinstance(error, WorkerLost)
    assert error.lost
    assert "die: its worker is gone (job" in str(error)
    assert f"signal {int(signum)}" in str(error)
    for futures in (before, after):
        assert [tools.value(one) for one in futures] == list(range(1, 101))


def test_calls_that_take_a_moment_die_alone_as_well(pool, tools):
    futures = [pool.submit(tools.call(nap, 0.001, number)) for number in range(20)]
    futures += [pool.submit(tools.call(os._exit, 3)) for _ in range(3)]
    futures += [pool.submit(tools.call(nap, 0.001, number)) for number in range(20)]
    wait(futures, 30)
    errors = [one.exception() for one in futures]
    assert [type(one) for one in errors] == [type(None)] * 20 + [WorkerLost] * 3 + [type(None)] * 20
    assert "exited with code 3" in str(errors[20])


def test_a_worker_killed_from_outside_while_it_is_idle_fails_nothing(pool, tools):
    found = tools.value(pool.submit(tools.call(pid)))
    os.kill(found, signal.SIGKILL)
    assert tools.value(pool.submit(tools.call(pid))) != found


def test_too_much_memory_is_told_with_limit_and_peak(pool, tools):
    def hoard():
        kept = bytearray(400_000_000)
        time.sleep(20)
        return len(kept)

    asked = Request.of(cpu=0.1, memory="150MB")
    error = pool.submit(tools.call(hoard, request=asked)).exception(30)
    assert isinstance(error, OutOfMemory)
    assert error.limit_bytes == 150_000_000
    assert error.peak_bytes >= 149_000_000
    assert "150 MB" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.limit_bytes, again.peak_bytes) == (error.limit_bytes, error.peak_bytes)
    assert tools.value(pool.submit(tools.call(add, 1, request=asked))) == 2


def test_what_was_returned_before_does_not_use_up_the_memory_of_a_slot(pool, tools):
    asked = Request.of(cpu=1, memory="400MB")
    kept = [pool.submit(tools.call(np.ones, 12_500_000, request=asked)) for _ in range(8)]
    assert [tools.value(one).sum() for one in kept] == [12_500_000] * 8


# ---- limits, stopping and cancelling


def test_a_call_that_takes_too_long_is_ended_and_others_go_on(pool, tools):
    begin = time.monotonic()
    late = pool.submit(tools.call(nap, 60, limit=0.3))
    error = late.exception(50)
    assert time.monotonic() - begin < 50
    assert isinstance(error, CallTimeout)
    assert (error.limit_s, error.reason) == (0.3, "timeout")
    assert tools.value(pool.submit(tools.call(nap, 0.01, 7, limit=20))) == 7


def test_the_time_in_line_does_not_count(pool, tools):
    futures = [
        pool.submit(tools.call(nap, 0.15, n, request=tools.ONE, limit=1.0)) for n in range(16)
    ]
    assert [tools.value(one) for one in futures] == list(range(16))


def test_what_waits_can_be_cancelled_and_what_runs_be_stopped(pool, grid, tools):
    cores = int(grid.nodes()[0].total["cpu"] // 10_000)
    whole = Request.of(cpu=cores)
    runs = pool.submit(tools.call(nap, 30, request=whole))
    waits = pool.submit(tools.call(nap, 30, request=whole))
    tools.until(runs.running)
    assert not runs.cancel()
    assert waits.cancel()
    told = []
    runs.add_done_callback(told.append)
    pool.stop(runs)
    pool.stop(runs)
    assert runs.cancelled()
    assert told == [runs]
    with pytest.raises(CancelledError):
        runs.result()
    assert wait([runs, waits], 30).not_done == set()
    assert tools.value(pool.submit(tools.call(add, 1, request=whole))) == 2


def test_calls_behind_one_that_turns_out_to_be_long_do_not_wait_for_it(pool, tools):
    for number in range(50):
        pool.submit(tools.call(nap, 0, number)).result(20)
    first = [pool.submit(tools.call(nap, 40 if number == 3 else 0)) for number in range(20)]
    wait(first[:3] + first[4:], 60)
    assert not first[3].done()
    pool.stop(first[3])


def test_workers_that_were_held_up_are_of_use_again(grid, tools):
    """The machine may stop a worker for a while at any moment, as others want the processor."""
    pool = Pool(grid._backend, grid.owner, linger_s=30)
    found = {tools.value(one) for one in [pool.submit(tools.call(pid)) for _ in range(300)]}
    for _ in range(12):
        futures = [pool.submit(tools.call(add, number)) for number in range(300)]
        for one in found:
            os.kill(one, signal.SIGSTOP)
        time.sleep(0.12)
        for one in found:
            os.kill(one, signal.SIGCONT)
        assert [tools.value(one) for one in futures] == list(range(1, 301))
    (shape,) = pool.state.shapes()
    tools.until(lambda: len(shape.idle) == len(shape.workers) > 0)
    pool.close()


# ---- slots


def test_slots_have_cores_of_their_own(pool, grid, tools):
    def cores(seconds):
        time.sleep(seconds)
        return os.getpid(), frozenset(os.sched_getaffinity(0)), os.environ["CUDA_VISIBLE_DEVICES"]

    count = int(grid.nodes()[0].total["cpu"] // 10_000)
    futures = [pool.submit(tools.call(cores, 0.5, request=tools.ONE)) for _ in range(count)]
    found = {tools.value(one) for one in futures}
    assert len(found) == count
    assert sorted(core for _, own, _ in found for core in own) == sorted(os.sched_getaffinity(0))
    assert {devices for _, _, devices in found} == {""}


def test_an_idle_pool_holds_nothing(grid, tools):
    pool = Pool(grid._backend, grid.owner, linger_s=0.2)
    first = tools.value(pool.submit(tools.call(pid)))
    assert grid.allocations()
    tools.until(lambda: not grid.allocations(), 60)
    assert {job.state for job in grid.jobs(limit=1)} == {"succeeded"}
    assert tools.value(pool.submit(tools.call(pid))) != first
    pool.close()


def test_slots_for_which_there_is_nothing_to_do_any_more_leave_the_queue(pool, grid, tools):
    with grid.allocate(cpu=grid.nodes()[0].total["cpu"] / 10_000 - 1):
        futures = [pool.submit(tools.call(nap, 0.3, n, request=tools.ONE)) for n in range(2)]
        assert [tools.value(one) for one in futures] == [0, 1]
        tools.until(lambda: not grid.jobs(state="queued"), 60)


def test_a_slot_that_comes_while_it_is_taken_back_is_given_nothing(grid, tools):
    for _ in range(8):
        pool = Pool(grid._backend, grid.owner)
        for count in (40, 3):  # the first are done before all have come that were asked for
            futures = [pool.submit(tools.call(add, number)) for number in range(count)]
            assert [tools.value(one) for one in futures] == list(range(1, count + 1))
        pool.close()


def test_another_shape_gets_its_turn(pool, grid, tools):
    cores = int(grid.nodes()[0].total["cpu"] // 10_000)
    many = [pool.submit(tools.call(nap, 0.1, request=tools.ONE)) for _ in range(60 * cores)]
    tools.until(lambda: many[cores].done(), 60)
    other = pool.submit(tools.call(add, 1, request=Request.of(cpu=1, memory="100MB")))
    assert tools.value(other) == 2
    assert not many[-1].done()
    for one in many:
        pool.stop(one)


def test_what_can_never_run_is_refused(pool, grid, tools):
    for asked, cause in (
        (Request.of(cpu=100_000), NeverFits),
        (Request.of(cpu=1, unicorns=1), UnknownResource),
    ):
        error = pool.submit(tools.call(add, 1, request=asked)).exception(20)
        assert isinstance(error, CallFailed)
        assert error.reason == "not_placed"
        assert str(error).startswith("add: no ")
        assert isinstance(error.__cause__, cause)
        assert error.hint == error.__cause__.hint


def test_a_worker_that_cannot_start_is_told_of(pool, grid, tools, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    error = pool.submit(tools.call(add, 1)).exception(30)
    assert isinstance(error, WorkerLost)
    assert "no worker could be started" in str(error)
    assert "/nowhere/python" in str(error)


def test_what_functions_print_is_in_the_log_of_the_job(pool, grid, tools):
    def says():
        print("to whom it may concern")
        return os.environ["GRIDHAND_JOB_ID"]

    job = grid.job(tools.value(pool.submit(tools.call(says))))
    assert job.logs() == "to whom it may concern\n"
    assert job.name == "says"


# ---- ends


def test_closing_ends_everything_and_refuses_more(grid, tools):
    pool = Pool(grid._backend, grid.owner)
    futures = [pool.submit(tools.call(nap, 30, request=tools.ONE)) for _ in range(5)]
    tools.until(futures[0].running)
    pool.close()
    pool.close()
    assert all(one.cancelled() for one in futures)
    assert not grid.allocations()
    assert not grid.jobs(state="open")
    with pytest.raises(GridClosed):
        pool.submit(tools.call(add, 1))


def test_a_pool_that_was_not_used_starts_nothing(grid):
    before = threading.active_count()
    Pool(grid._backend, grid.owner).close()
    assert threading.active_count() == before


def test_a_grid_without_a_controller_has_no_processes():
    with Grid.in_memory() as grid, pytest.raises(GridError, match="controller"):
        Pool(grid._backend, grid.owner)


KILLED = """
import sys, time
import numpy as np
from gridhand import Grid, Request
from gridhand.library.functions.function_runner import FunctionCall
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.library.pool.pool import Pool

def nap():
    import subprocess
    subprocess.run(["sleep", "600"])

grid = Grid()
pool = Pool(grid._backend, grid.owner)
one = Request.of(cpu=1)
made = pool.submit(FunctionCall(np.ones, one, (1_000_000,))).result(30)
futures = [pool.submit(FunctionCall(nap, one)) for _ in range(8)]
while not futures[0].running():
    time.sleep(0.01)
print(*pool._folder.folders, flush=True)
time.sleep(600)
"""


def test_a_program_that_is_killed_leaves_nothing(grid, tools):
    killed(grid, tools)


@pytest.mark.soak
def test_what_a_program_held_that_is_killed_is_back_within_a_second(grid, tools):
    took = sorted(killed(grid, tools) for _ in range(15))
    print(f"\nback after a kill: {took[7]:.2f} s at the median, {took[-1]:.2f} s at most, of 15")
    assert took[7] < 1.0


def killed(grid, tools):
    """How many seconds it took until nothing was held any more."""
    program = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    try:
        folders = program.stdout.readline().split()
        tools.until(grid.allocations)
    finally:
        program.kill()
    begin = time.monotonic()
    tools.until(lambda: not grid.allocations(), 60)
    took = time.monotonic() - begin
    tools.until(lambda: not grid.jobs(state="open"), 60)
    tools.until(lambda: not any(map(os.path.exists, folders)), 60)
    program.wait(10)
    program.stdout.close()
    return took


LEFT = """
import os
from gridhand.library.pool.folder import PoolFolder
folder = PoolFolder()
print(*folder.folders, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_program_left_is_removed_by_the_next(tools):
    from gridhand.library.pool.folder import PoolFolder
    from gridhand.posix.temporary_folders import sweep

    done = subprocess.run([sys.executable, "-c", LEFT], stdout=subprocess.PIPE, text=True)
    folders = done.stdout.split()
    mine = PoolFolder()
    assert all(map(os.path.exists, folders))
    sweep()
    assert not any(map(os.path.exists, folders))
    assert all(map(os.path.exists, mine.folders))
    mine.remove()


# ---- threads, forks and strangers


def test_any_thread_may_submit(pool, tools):
    found = {}

    def work(name):
        futures = [pool.submit(tools.call(add, number, name)) for number in range(200)]
        found[name] = [tools.value(one) for one in futures]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert found == {name: [number + name for number in range(200)] for name in range(6)}


def test_callbacks_may_submit_more(pool, tools):
    done = threading.Event()

    def again(future):
        number = future.result().value.load()
        if number == 50:
            done.set()
        else:
            pool.submit(tools.call(add, number)).add_done_callback(again)

    pool.submit(tools.call(add, 0)).add_done_callback(again)
    assert done.wait(20)


def test_a_child_cannot_use_the_pool_and_does_not_keep_its_workers(pool, tools):
    found = tools.value(pool.submit(tools.call(pid)))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pool.submit(tools.call(add, 1))
        except GridClosed:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"refused"
    os.close(read)
    os.close(write)
    assert tools.value(pool.submit(tools.call(pid))) == found


def test_strangers_are_not_spoken_to(pool, tools):
    import socket

    from gridhand.worker import wire

    tools.value(pool.submit(tools.call(add, 1)))
    assert os.stat(pool._folder.own).st_mode & 0o777 == 0o700
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", wire.frame((b"x" * 32, 1, "1", "1", "n", "a"))):
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(20)
            connected.connect(pool._folder.socket)
            connected.sendall(said)
            if said:
                assert connected.recv(100) == b""
    assert tools.value(pool.submit(tools.call(add, 1))) == 2


# ---- the controller


def test_calls_go_on_without_a_controller_and_slots_with_the_next_one(grid, home, tools):
    pool = Pool(grid._backend, grid.owner, linger_s=30)
    warm = tools.value(pool.submit(tools.call(pid)))
    slow = pool.submit(tools.call(nap, 1.0, "slow", request=tools.ONE))
    tools.until(slow.running)
    with Client(Address(home.socket)) as client:
        os.kill(client.probe()["pid"], signal.SIGKILL)
    assert tools.value(pool.submit(tools.call(pid))) == warm
    other = pool.submit(tools.call(add, 1, request=Request.of(cpu=0.2)))
    assert tools.value(slow) == "slow"
    assert tools.value(other, 60) == 2
    assert tools.value(pool.submit(tools.call(pid))) == warm
    pool.close()
    assert not grid.jobs(state="open")


def test_what_is_cancelled_while_it_waits_leaves_the_queue(pool, grid, tools):
    with grid.allocate(cpu=grid.nodes()[0].total["cpu"] / 10_000):
        futures = [pool.submit(tools.call(add, n, request=tools.ONE)) for n in range(5)]
        tools.until(lambda: grid.jobs(state="queued"))
        assert all(one.cancel() for one in futures)
        tools.until(lambda: not grid.jobs(state="queued"))


def test_two_shapes_that_each_need_everything_take_turns(pool, grid, tools):
    cores = grid.nodes()[0].total["cpu"] / 10_000
    first, second = Request.of(cpu=cores), Request.of(cpu=cores, memory="100MB")
    many = [pool.submit(tools.call(nap, 0.1, request=first)) for _ in range(60)]
    tools.until(many[0].done)
    others = [pool.submit(tools.call(add, n, request=second)) for n in range(3)]
    assert [tools.value(one) for one in others] == [1, 2, 3]
    assert not many[-1].done()
    wait(many[:20], 30)
    for one in many:
        pool.stop(one)
