"""Orders that come twice, late, or for an attempt that was stopped meanwhile."""

import asyncio
from pathlib import Path

import pytest

from gridhand.core.errors import InvalidInput
from gridhand.engines.base import AttemptReport, EndReport
from gridhand.external.attempt_book import AttemptBook
from gridhand.external.order_desk import OrderDesk
from gridhand.external.worker_folder import WorkerFolder

KEY = ("7", 1)


def wire(job="7", attempt=1, fence="a1-7", **more):
    return {
        "job": job, "attempt": attempt, "fence": fence, "argv": ["true"], "cores": 10_000,
        "pin": True, "memory_bytes": None, "processes": 10, "devices": [], "gpu_memory": {},
        "time_limit_ms": None, "grace_ms": 100, "log_bytes": 1000, "warn_signal": None,
        "warn_ms": None, "env": {"A": "b"}, "streams": {"stdout": "stdout", "stderr": "stdout"},
        "input": False, "files": False, **more,
    }  # fmt: skip


def start(number=1, **more):
    return {"number": number, "do": "start", "order": wire(**more)}


class Engine:
    def __init__(self, book):
        self.book, self.started, self.stopped, self.forgotten = book, [], [], []

    async def start(self, orders):
        self.started += orders

    async def stop(self, key, reason, grace_ms):
        self.stopped.append(key)
        end = EndReport(reason)
        self.book.note([AttemptReport(*key, None, end=end)])

    async def signal(self, key, signum):
        return True

    async def forget(self, keys):
        self.forgotten += keys

    async def note_reader(self, key, offsets): ...


class Link:
    """Has the input of jobs, once a test lets it."""

    def __init__(self):
        self.ready = asyncio.Event()

    async def read_bytes(self, what, query):
        await self.ready.wait()
        return (b"" if query["offset"] else b"some input"), {}


class NoFiles(Link):
    """Refuses the input of jobs, as often as it is asked."""

    async def read_bytes(self, what, query):
        raise InvalidInput("file", query["job"], "a plain file")


class Output:
    def forget(self, key): ...


class Desk:
    def __init__(self, folder):
        self.book, self.link = AttemptBook(), Link()
        self.engine = Engine(self.book)
        self.folder = WorkerFolder(str(folder))
        self.desk = OrderDesk("w1", self.folder, self.link, self.engine, self.book, Output(), None)

    async def carry_out(self, *orders):
        await self.desk.carry_out(orders)

    async def settled(self):
        while self.desk._tasks:
            await asyncio.wait(self.desk._tasks)


def at_desk(test):
    def run(tmp_path):
        async def inside():
            await test(Desk(tmp_path / "w"))

        asyncio.run(inside())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@at_desk
async def test_an_attempt_runs_in_a_new_folder_of_the_worker(desk):
    await desk.carry_out(start())
    [order] = desk.engine.started
    assert order.cwd == f"{desk.folder.path}/jobs/7.1/work"
    assert order.stdout == order.stderr == f"{desk.folder.path}/jobs/7.1/stdout"
    assert order.env == {"A": "b", "HOME": order.cwd, "PWD": order.cwd}
    assert (order.node, order.stdin, order.user) == ("w1", None, None)
    assert desk.desk.progress() == {"done": [1], "busy": []}
    assert desk.book.fences() == ["a1-7"]


@at_desk
async def test_what_is_known_is_not_started_again(desk):
    await desk.carry_out(start(1))
    await desk.carry_out(start(1), start(2))
    assert len(desk.engine.started) == 1
    assert desk.desk.progress()["done"] == [1, 2]


@at_desk
async def test_an_attempt_with_another_fence_ends_first(desk):
    """The worker may know the number from a store that was put back to an earlier state."""
    desk.book.note([AttemptReport(*KEY, "a0-1", "running", pid=5)])
    await desk.carry_out(start())
    assert desk.desk.progress() == {"done": [], "busy": [1]}
    await desk.settled()
    assert (desk.engine.stopped, desk.engine.forgotten) == ([KEY], [KEY])
    assert [order.fence for order in desk.engine.started] == ["a1-7"]
    assert desk.desk.progress() == {"done": [1], "busy": []}


@at_desk
async def test_an_attempt_waits_for_its_input(desk):
    await desk.carry_out(start(input=True), start(2, job="8"))
    assert [order.job for order in desk.engine.started] == ["8"]
    desk.link.ready.set()
    await desk.settled()
    order = desk.engine.started[-1]
    assert await asyncio.to_thread(Path(order.stdin).read_text) == "some input"


@at_desk
async def test_an_attempt_whose_input_is_refused_ends(desk):
    desk.desk._link = NoFiles()
    await desk.carry_out(start(input=True))
    await desk.settled()
    [report] = desk.book.unreported()
    assert (report.key, report.end.reason) == (KEY, "start_failed")
    assert "cannot be fetched" in report.end.message
    assert desk.engine.started == []
    assert desk.desk.progress() == {"done": [1], "busy": []}


@at_desk
async def test_an_attempt_that_is_stopped_while_it_waits_is_not_started(desk):
    await desk.carry_out(start(input=True))
    stop = {"number": 2, "do": "stop", "job": "7", "attempt": 1, "reason": "cancelled"}
    await desk.carry_out({**stop, "grace_ms": 0})
    desk.link.ready.set()
    await desk.settled()
    assert desk.engine.started == []
    assert [report.end.reason for report in desk.book.unreported()] == ["cancelled"]


@at_desk
async def test_a_node_that_can_start_nothing_is_asked_again_later(desk):
    desk.desk.closed_by_node = True
    await desk.carry_out(start())
    assert desk.desk.progress() == {"done": [], "busy": [1]}
    desk.desk.closed_by_node = False
    desk.desk.reopen()
    assert desk.desk.progress() == {"done": [], "busy": []}
    await desk.carry_out(start())
    assert len(desk.engine.started) == 1


@at_desk
async def test_an_order_that_makes_no_sense_ends_and_the_others_run(desk):
    await desk.carry_out(start(1, argv=[]), start(2, job="8"))
    assert [order.job for order in desk.engine.started] == ["8"]
    [report] = desk.book.unreported()
    assert (report.key, report.end.reason) == (KEY, "start_failed")


@at_desk
async def test_what_runs_is_not_forgotten(desk):
    await desk.carry_out(start(), {"number": 2, "do": "forget", "job": "7", "attempt": 1})
    assert KEY in desk.book
    desk.book.note([AttemptReport(*KEY, "a1-7", end=EndReport("exit", code=0))])
    await desk.carry_out({"number": 3, "do": "forget", "job": "7", "attempt": 1})
    assert KEY not in desk.book
    assert desk.engine.forgotten == [KEY]


def test_an_end_is_joined_with_only_after_its_output_was_sent():
    book = AttemptBook()
    end = AttemptReport(*KEY, "a1-7", pid=5, end=EndReport("exit", code=3))
    book.note([end])
    assert [report.state for report in book.for_joining()] == ["running"]
    book.reported([end])
    assert [report.state for report in book.for_joining()] == ["ended"]


def test_what_an_agent_does_not_know_is_ordered_again(tmp_path):
    async def run():
        desk = Desk(tmp_path / "w")
        await desk.carry_out(start(1), start(2, job="8"))
        known = [AttemptReport("8", 1, "a1-7", "running", pid=5)]
        assert [order.job for order in desk.book.unknown_orders(known)] == ["7"]

    asyncio.run(run())


@pytest.mark.parametrize("left", [False, True])
def test_the_folder_of_an_attempt_goes_unless_the_job_left_something(tmp_path, left):
    folder = WorkerFolder(str(tmp_path / "w"))
    files = folder.make(KEY)
    for name in ("stdout", "stdin"):
        with open(files.stream(name), "w") as file:
            file.write("x")
    if left:
        with open(f"{files.work}/result", "w") as file:
            file.write("x")
    folder.clear(KEY)
    assert (tmp_path / "w/jobs/7.1").exists() is left
    assert not (tmp_path / "w/jobs/7.1/stdout").exists()
