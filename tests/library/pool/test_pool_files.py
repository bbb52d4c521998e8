"""Files of values: those of dead workers and of stopped calls go while the pool lives."""

import os
from types import SimpleNamespace

import pytest

from gridhand.core.model.requests import Request
from gridhand.library.functions.future_state import force_cancel, mark_running
from gridhand.library.functions.pickled_function import PickledFunction
from gridhand.library.functions.values import FileValue, paths_held
from gridhand.library.pool import folder as folders
from gridhand.library.pool.call_log import Notes
from gridhand.library.pool.event_loop import WorkerLoop
from gridhand.library.pool.folder import PoolFolder
from gridhand.library.pool.pool import Pool
from gridhand.library.pool.shape import CallFuture, PendingCall, Shape, WorkerHandle
from gridhand.library.pool.state import PoolState
from gridhand.worker import wire


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(folders, "SHARED_MEMORY", str(shared))
    monkeypatch.setattr(folders, "temporary_parent", lambda: str(tmp_path))
    made = PoolFolder()
    yield made
    made.remove()


def touch(folder, *names):
    paths = [os.path.join(folder, name) for name in names]
    for path in paths:
        open(path, "wb").close()
    return paths


def call():
    shape = Shape(1, Request.of(cpu=1), Notes(lambda: None))
    made = PendingCall(1, CallFuture(), PickledFunction(1, b""), (0, b""), "f", None, ())
    made.shape, made.future.call = shape, made
    mark_running(made.future)
    return made


@pytest.fixture
def pool():
    return object.__new__(Pool)


def test_the_files_of_one_worker_go_and_those_of_others_stay(folder):
    first, second = folder.folders
    gone = [*touch(first, "w1", "w1.1", "w1.22"), *touch(second, "w1.3")]
    stay = [*touch(first, "w12", "w12.1", "w2.1", "c.1"), *touch(second, "w2.7")]
    held = touch(first, "w1.5")
    folder.remove_those_of("w1", set(held))
    assert [path for path in gone if os.path.exists(path)] == []
    assert [path for path in stay + held if not os.path.exists(path)] == []


class FakePool:
    """What a loop needs of its pool."""

    def __init__(self):
        self.woken = 0

    def settle(self, answered, worker):
        assert answered == []

    def look_for_more(self):
        self.woken += 1


class Dead:
    """A worker that has just gone, and a loop without a thread."""

    def __init__(self, folder):
        shape = Shape(1, Request.of(cpu=1), Notes(lambda: None))
        self.worker = WorkerHandle(3, 0, shape, ["j", "1", "n", "a1-1"])
        socket = SimpleNamespace(fileno=lambda: -1, close=lambda: None)
        self.worker.connection = SimpleNamespace(socket=socket)
        self.loop = object.__new__(WorkerLoop)
        self.loop._folder, self.loop._pool, self.loop._workers = folder, FakePool(), {}
        self.loop._state = PoolState(1.0)
        self.loop._lock = self.loop._state.lock
        self.loop._epoll = SimpleNamespace(unregister=lambda socket: None)


def test_what_a_dead_worker_has_left_goes_but_for_values_that_somebody_has(folder):
    shared = folder.folders[0]
    left = touch(shared, "w3", "w3.1", "w3.2")
    (kept,) = touch(shared, "w3.9")
    value = FileValue(kept)
    assert kept in paths_held()
    dead = Dead(folder)
    dead.loop._gone(dead.worker)
    assert [path for path in left if os.path.exists(path)] == []
    assert os.path.exists(kept)
    assert dead.loop._pool.woken == 1
    value.drop()
    assert not os.path.exists(kept)


def test_the_answer_to_a_call_that_was_stopped_is_removed(folder):
    (path,) = touch(folder.folders[0], "w3.1")
    dead = Dead(folder)
    dead.loop._handle_stray(dead.worker, wire.FILE, os.fsencode(path))
    assert not os.path.exists(path)
    dead.loop._handle_stray(dead.worker, wire.FILE, os.fsencode(path))  # it is gone already


def test_the_answer_to_a_call_that_is_stopped_just_now_is_removed(folder, pool):
    (path,) = touch(folder.folders[0], "w3.1")
    stopped = call()
    force_cancel(stopped.future)
    pool._tell(stopped, wire.FILE, os.fsencode(path), "n", "a1-1")
    assert not os.path.exists(path)
    assert stopped.kept is None


def test_a_value_that_somebody_has_stays_until_it_is_dropped(folder, pool):
    (path,) = touch(folder.folders[0], "w3.1")
    answered = call()
    pool._tell(answered, wire.FILE, os.fsencode(path), "n", "a1-1")
    returned = answered.future.result(0)
    assert (returned.node, returned.allocation) == ("n", "a1-1")
    assert os.path.exists(path)
    del returned, answered
    assert not os.path.exists(path)
