"""A store that cannot be written: callers are told, nothing changes, and later it goes on.

Rows 17, 21 and 23 of docs/reliability.md, on a real full disk and with a real lock.
"""

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading

import pytest

from gridhand import Grid, GridError
from gridhand.audit import same_state
from gridhand.core.errors import StoreError, StoreFenced, StoreFull, StoreUnavailable
from small_disk import small_disk

HOLDING = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
database.execute("ROLLBACK")
print("let go", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    with small_disk(folder, "2m"):
        yield folder


def remount(folder, how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def use_up(grid, calls=5_000):
    """Allocate until the store cannot take it; what was granted before that."""
    made = []
    for _ in range(calls):
        try:
            made.append(grid.allocate(cpu=0.001, holder=f"h{len(made)}-{'x' * 150}"))
        except StoreUnavailable as error:
            return made, error
    raise AssertionError("the disk did not fill up")


def use_up_the_wal(grid):
    """Make the smallest of changes until it fails: what failed has left room for a smaller one."""
    with contextlib.suppress(StoreFull):
        for number in range(1_000):
            grid.register_node("n", cpu=100, memory="1GB", address=str(number))


def stuff(path):
    """Take the rest of the disk; deleting the file gives it back."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return path


def same(one, other):
    return same_state(one, other, invariant="I4") == []


def test_a_full_disk(disk, tools):
    path = disk / "grid.db"
    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=100, memory="1GB")
        made, error = use_up(grid)
        ballast = stuff(disk / "ballast")
        use_up_the_wal(grid)
        assert isinstance(error, StoreFull)
        assert error.code == "store_full"
        assert error.hint
        before = grid.dump()
        assert {row["id"] for row in before["allocations"]} == {held.id for held in made}
        for call in (
            lambda: grid.allocate(cpu=1),
            lambda: grid.allocate_group([{"cpu": 1}] * 3),
            lambda: grid.reserve(cpu=1, ttl=60),
            lambda: grid.register_node("m", cpu=1, labels={"a": "b" * 100}),
            lambda: grid.drain("n"),
            lambda: grid.allocate(cpu=1, op_id="late"),
        ):
            with pytest.raises(StoreFull):
                call()
            assert same(grid.dump(), before)
        assert grid.check() == []
        assert grid.fits("n", cpu=1)  # what only looks goes on

        assert made.pop().release().state == "released"  # from the space kept for that
        assert {held.id for held in grid.allocations()} == {held.id for held in made}
        assert grid.check() == []

        ballast.unlink()
        remount(disk, "size=4m")
        later = grid.allocate(cpu=1, op_id="late")
        made[0].release()
        assert grid.check() == []
        known = grid.dump()
        assert {row["id"] for row in known["allocations"]} == {
            later.id,
            *(held.id for held in made[1:]),
        }
    tools.check_file(path)
    with Grid.at(str(path)) as grid:
        assert same(grid.dump(), known)
        tools.fill_up(grid)


def test_many_callers_and_a_full_disk(disk, tools):
    """Each of them is answered or told; the answered ones are there, and nobody else's."""
    path = disk / "grid.db"
    answered, told = [], []

    def work(grid):
        for _ in range(2_000):
            try:
                answered.append(grid.allocate(cpu=0.001).id)
            except StoreUnavailable as error:
                told.append(error)
                return

    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=1000)
        threads = [threading.Thread(target=work, args=[grid]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 8
        assert {held.id for held in grid.allocations()} == set(answered)
        assert grid.check() == []
        remount(disk, "size=4m")
        answered.append(grid.allocate(cpu=1).id)
    tools.check_file(path)
    with Grid.at(str(path)) as grid:
        assert {held.id for held in grid.allocations()} == set(answered)


def test_what_lapses_on_a_full_disk_lapses(disk, tools):
    path = disk / "grid.db"
    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=100)
        lease = grid.allocate(cpu=1, ttl=0.3)
        use_up(grid)
        stuff(disk / "ballast")
        pause = threading.Event()
        for _ in range(3000):
            if lease.id not in {held.id for held in grid.allocations()}:
                break
            pause.wait(0.01)
        assert lease.release().state == "expired"
        assert grid.check() == []
    tools.check_file(path)


def test_opening_on_a_disk_that_cannot_be_written(disk, tools):
    path = disk / "grid.db"
    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=4)
        held = grid.allocate(cpu=1)
        known = grid.dump()
    remount(disk, "ro")
    try:
        for _ in range(2):
            with pytest.raises(StoreError):
                Grid.at(str(path))
    finally:
        remount(disk, "rw")
    with Grid.at(str(path)) as grid:
        assert same(grid.dump(), known)
        assert held.id in {one.id for one in grid.allocations()}
        tools.fill_up(grid)
    tools.check_file(path)


def test_opening_on_a_full_disk(disk, tools):
    path = disk / "grid.db"
    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=4)
        known = grid.dump()
    ballast = stuff(disk / "ballast")
    for url in (path, disk / "another.db"):
        with pytest.raises(StoreError):
            Grid.at(str(url))
    ballast.unlink()
    with Grid.at(str(path)) as grid:
        assert same(grid.dump(), known)
    with Grid.at(str(disk / "another.db")) as grid:
        assert grid.nodes() == []
    tools.check_file(path)


# ---- locked by another


@pytest.fixture
def locked(tmp_path):
    """A store, and another process that can be made to hold SQLite's own lock on it."""
    path = tmp_path / "grid.db"
    with contextlib.ExitStack() as stack:
        grid = stack.enter_context(Grid.at(f"sqlite:///{path}?timeout=0.2"))
        grid.register_node("n", cpu=4)

        def hold():
            process = subprocess.Popen(
                [sys.executable, "-c", HOLDING, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout.readline() == "held\n"
            return process

        yield grid, path, hold


def let_go(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "let go\n"


def test_a_store_that_another_has_locked(locked, tools):
    grid, path, hold = locked
    held = grid.allocate(cpu=1)
    before = grid.dump()
    other = hold()
    with pytest.raises(StoreUnavailable, match="locked"):
        grid.allocate(cpu=1, op_id="again")
    with pytest.raises(StoreUnavailable, match="locked"):
        held.release()
    assert same(grid.dump(), before)
    assert grid.check() == []
    let_go(other)
    second = grid.allocate(cpu=1, op_id="again")
    assert grid.allocate(cpu=1, op_id="again").id == second.id
    assert held.release().state == "released"
    grid.close()
    tools.check_file(path)
    with Grid.at(str(path)) as again:
        assert [one.id for one in again.allocations()] == [second.id]


def test_a_lock_that_is_let_go_in_time_is_not_noticed(locked):
    grid, _, hold = locked
    other = hold()
    timer = threading.Timer(0.05, let_go, [other])
    timer.start()
    assert grid.allocate(cpu=1).state == "active"
    timer.join()


def test_what_lapses_behind_a_lock_lapses_after_it(locked):
    grid, _, hold = locked
    kept = grid.reserve(cpu=1, ttl=0.1)
    other = hold()
    pause = threading.Event()
    for _ in range(3):
        pause.wait(0.1)
        assert grid.check() == []
    let_go(other)
    for _ in range(200):
        if not grid.allocations():
            break
        pause.wait(0.02)
    assert grid.node("n").available["cpu"] == 40_000
    assert kept.release().state == "expired"


# ---- taken over, and gone


def test_an_owner_that_was_replaced_stops_and_lets_go(tmp_path, tools):
    path = tmp_path / "grid.db"
    grid = Grid.at(str(path))
    grid.register_node("n", cpu=4)
    held = grid.allocate(cpu=1)
    take_over(path)
    for _ in range(2):
        with pytest.raises(StoreFenced):
            grid.allocate(cpu=1)
    with pytest.raises(GridError):
        grid.dump()
    grid.close()
    with Grid.at(str(path)) as again:  # the old one no longer stands in the way
        assert [one.id for one in again.allocations()] == [held.id]
        tools.fill_up(again)
    tools.check_file(path)


def take_over(path):
    """What the next owner does first, whoever it is."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(gridhand_meta)")}
        names = [name for name in ("epoch", "writer") if name in columns]
        database.execute(
            f"UPDATE gridhand_meta SET {', '.join(f'{name} = epoch + 1' for name in names)}"
        )
        database.commit()


def test_a_store_whose_folder_is_gone_can_be_closed(tmp_path):
    folder = tmp_path / "gone"
    grid = Grid.at(str(folder / "grid.db"))
    grid.register_node("n", cpu=4)
    for file in folder.iterdir():
        file.unlink()
    os.rmdir(folder)
    with contextlib.suppress(StoreError):
        grid.allocate(cpu=1)
    assert grid.check() == []
    grid.close()
    assert not folder.exists()
