"""What node and trees use: on made-up machines, where numbers are exact, and on this one."""

import os
import subprocess
import sys
import threading

import psutil
import pytest

from gridhand.agent.hardware.own_limits import Bounds
from gridhand.agent.hardware.usage import Sampler
from gridhand.posix import limit_mark, procfs
from gridhand.posix.procfs import (
    PAGE_BYTES,
    TICKS_PER_SECOND,
    ProcessIdentity,
    parse_stat,
    read_process,
)

MEMINFO = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n"


class FakeMachine:
    """A /proc that a test writes, and a clock that it sets."""

    def __init__(self, root):
        self.root = root
        self.now = 0.0
        self.proc = root / "proc"
        self.proc.mkdir()
        (self.proc / "meminfo").write_text(MEMINFO)
        self.cpus(cpu0=(0, 0), cpu1=(0, 0))

    def cpus(self, **times):
        lines = [f"{name} {busy} 0 0 {idle} 0 0 0 0 0 0" for name, (busy, idle) in times.items()]
        (self.proc / "stat").write_text("\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *lines, "ctxt 5"]))

    def run(self, pid, parent, *, session=None, start=100, ticks=0, pages=1, state="S", pss=None):
        """Let a process be there, as /proc tells of it."""
        fields = ["0"] * 30
        fields[0], fields[1], fields[3] = state, str(parent), str(session or parent)
        fields[11], fields[17], fields[19], fields[21] = str(ticks), "2", str(start), str(pages)
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}")
        if pss is not None:
            (folder / "smaps_rollup").write_text(f"0-1 [rollup]\nRss: 999 kB\nPss: {pss} kB\n")
        return ProcessIdentity(pid, start)

    def end(self, *pids):
        for pid in pids:
            for path in (self.proc / str(pid)).iterdir():
                path.unlink()
            (self.proc / str(pid)).rmdir()

    def sampler(self, **more):
        return Sampler(root=self.root, clock=lambda: self.now, **more)


@pytest.fixture
def machine(tmp_path):
    return FakeMachine(tmp_path)


def pids(sampler, *roots):
    return sampler.sample({"job": roots}).trees["job"].pids


def test_a_tree_is_all_that_came_from_its_first_process(machine):
    root = machine.run(10, 1, session=10)
    machine.run(11, 10, session=10)
    machine.run(12, 11, session=12)  # has left the session, and is still a grandchild
    machine.run(13, 1, session=10)  # its parent has ended, and it is still in the session
    machine.run(14, 1, session=12)  # the same, in a session that one of the tree made
    machine.run(20, 1, session=20)
    assert pids(machine.sampler(), root) == (10, 11, 12, 13, 14)


def test_one_that_has_left_unseen_is_known_by_the_mark_in_its_limits(machine, monkeypatch):
    marks = {10: 7, 13: 7, 14: 8, 15: None, 20: 8, 30: 7}
    monkeypatch.setattr(limit_mark, "read_limit_mark", marks.get)
    roots = {"job": [machine.run(10, 5, session=10)], "other": [machine.run(20, 5, session=20)]}
    machine.run(13, 5, session=12)
    machine.run(14, 5, session=12)
    machine.run(15, 5, session=15)
    machine.run(16, 13, session=12)  # a child of one of them
    machine.run(30, 1, session=30)  # of another starter, where it means something else
    trees = machine.sampler().sample(roots).trees
    assert {name: tree.pids for name, tree in trees.items()} == {
        "job": (10, 13, 16),
        "other": (14, 20),
    }


def test_trees_are_counted_apart_even_one_in_another(machine):
    outer = machine.run(10, 1, session=10)
    machine.run(11, 10, session=10)
    inner = machine.run(12, 11, session=12)
    machine.run(13, 12, session=12)
    trees = machine.sampler().sample({"outer": [outer], "inner": [inner]}).trees
    assert trees["outer"].pids == (10, 11)
    assert trees["inner"].pids == (12, 13)


def test_a_tree_may_have_several_first_processes(machine):
    roots = [machine.run(10, 1), machine.run(20, 1)]
    machine.run(21, 20)
    assert pids(machine.sampler(), *roots) == (10, 20, 21)


def test_who_has_the_number_of_an_ended_process_is_a_stranger(machine):
    machine.run(10, 1, session=10, start=500)
    machine.run(11, 10, session=10, start=501)
    usage = machine.sampler().sample({"job": [ProcessIdentity(10, 100)]})
    assert usage.trees["job"].pids == ()
    assert usage.trees["job"].memory_bytes == 0


def test_a_tree_that_was_seen_to_end_stays_ended(machine):
    root = machine.run(10, 1, session=10)
    sampler = machine.sampler()
    assert pids(sampler, root) == (10,)
    machine.end(10)
    assert pids(sampler, root) == ()
    machine.run(11, 1, session=10, start=900)  # left by another that had the number meanwhile
    assert pids(sampler, root) == ()


def test_a_process_is_not_the_child_of_one_that_is_younger(machine):
    machine.run(11, 10, start=50)  # left by one that had the number before
    root = machine.run(10, 1, session=10, start=100)
    assert pids(machine.sampler(), root) == (10,)


def test_who_was_seen_in_a_tree_stays_in_it(machine):
    root = machine.run(10, 1, session=10)
    machine.run(11, 10, session=11)
    sampler = machine.sampler()
    assert pids(sampler, root) == (10, 11)
    machine.end(10)
    machine.run(11, 1, session=11)  # its parent is another now, and its session its own
    assert pids(sampler, root) == (11,)
    machine.run(12, 11, session=11)
    machine.end(11)
    machine.run(12, 1, session=11)
    assert pids(sampler, root) == (12,)


def test_a_session_is_ours_after_its_leader_has_ended(machine):
    root = machine.run(10, 1, session=10)
    machine.run(11, 10, session=10)
    sampler = machine.sampler()
    assert pids(sampler, root) == (10, 11)
    machine.end(10)
    machine.run(11, 1, session=10)
    assert pids(sampler, root) == (11,)
    machine.run(12, 1, session=10, start=200)  # whose parent came and went unseen
    assert pids(sampler, root) == (11, 12)


def test_a_tree_told_of_late_has_its_first_process_all_the_same(machine):
    outer = machine.run(10, 1, session=10)
    inner = machine.run(12, 10, session=12)
    sampler = machine.sampler()
    assert pids(sampler, outer) == (10, 12)
    trees = sampler.sample({"job": [outer], "inner": [inner]}).trees
    assert trees["job"].pids == (10,)
    assert trees["inner"].pids == (12,)


def test_its_number_given_to_another_takes_that_one_not_along(machine):
    root = machine.run(10, 1, session=10)
    machine.run(11, 10, session=11)
    sampler = machine.sampler()
    assert pids(sampler, root) == (10, 11)
    machine.end(11)
    machine.run(11, 1, session=1, start=700)
    assert pids(sampler, root) == (10,)


def test_zombies_use_nothing(machine):
    root = machine.run(10, 1, session=10, state="Z", pages=0)
    machine.run(11, 10, session=10, pages=3)
    used = machine.sampler().sample({"job": [root]}).trees["job"]
    assert used.pids == (11,)
    assert used.rss_bytes == 3 * PAGE_BYTES


def test_a_tree_that_is_not_asked_for_is_forgotten(machine):
    root = machine.run(10, 1)
    sampler = machine.sampler()
    assert pids(sampler, root) == (10,)
    assert sampler.sample({}).trees == {}


def test_shared_memory_counts_once_where_it_can_be_seen(machine):
    root = machine.run(10, 1, pages=10, pss=12)
    machine.run(11, 10, pages=10, pss=8)
    machine.run(12, 10, pages=10)  # not ours to look at
    sampler = machine.sampler()
    used = sampler.sample({"job": [root]}).trees["job"]
    assert used.rss_bytes == 30 * PAGE_BYTES
    assert used.memory_bytes == 20 * 1024 + 10 * PAGE_BYTES
    assert (used.processes, used.threads) == (3, 6)
    assert sampler.sample({"job": [root]}, pss=False).trees["job"].memory_bytes == 30 * PAGE_BYTES


def test_a_process_alone_is_not_looked_at_closer(machine):
    root = machine.run(10, 1, pages=10, pss=1)
    assert machine.sampler().sample({"job": [root]}).trees["job"].memory_bytes == 10 * PAGE_BYTES


def test_looking_closer_has_a_budget(machine, monkeypatch):
    monkeypatch.setattr("gridhand.agent.hardware.usage.PSS_BUDGET_BYTES", 50 * PAGE_BYTES)
    trees = {}
    for pid in (10, 20, 30):
        trees[f"job{pid}"] = [machine.run(pid, 1, session=pid, pages=15, pss=1)]
        machine.run(pid + 1, pid, session=pid, pages=5 if pid != 20 else 25, pss=1)
    used = machine.sampler().sample(trees).trees
    assert [used[key].memory_bytes for key in trees] == [2048, 40 * PAGE_BYTES, 2048]


def test_cpu_of_a_tree_is_since_the_sample_before(machine):
    second = TICKS_PER_SECOND
    root = machine.run(10, 1, start=10 * second, ticks=4 * second)
    sampler = machine.sampler()
    machine.now = 18.0
    first = sampler.sample({"job": [root]}).trees["job"]
    assert (first.cpu, first.cpu_seconds) == (0.5, 4.0)  # over the eight seconds of its life
    machine.run(10, 1, start=10 * second, ticks=7 * second)
    machine.now = 20.0
    then = sampler.sample({"job": [root]}).trees["job"]
    assert (then.cpu, then.cpu_seconds) == (1.5, 7.0)
    machine.end(10)
    machine.now = 22.0
    end = sampler.sample({"job": [root]}).trees["job"]
    assert (end.cpu, end.cpu_seconds) == (0.0, 7.0)  # what it used stays used


def test_time_that_stands_still_is_no_error(machine):
    root = machine.run(10, 1, start=0, ticks=5)
    assert machine.sampler().sample({"job": [root]}).trees["job"].cpu == 0.0


def test_cpu_of_the_node_is_that_of_our_cpus(machine):
    machine.cpus(cpu0=(100, 100), cpu2=(0, 0), cpu3=(0, 0))
    sampler, part = machine.sampler(), machine.sampler(cpus={2, 3})
    machine.cpus(cpu0=(200, 100), cpu2=(50, 50), cpu3=(25, 75))
    assert sampler.sample({}).node.cpu == pytest.approx(1.75)
    assert part.sample({}).node.cpu == pytest.approx(0.75)
    assert sampler.sample({}).node.cpu == 0.0  # nothing has passed since


def test_memory_of_the_node_is_what_cannot_be_had(machine, tmp_path):
    assert machine.sampler().sample({}).node.memory_bytes == 600 * 1024
    (tmp_path / "memory.current").write_text("77")
    small = Bounds(memory_bytes=1000, memory_folder=tmp_path)
    assert machine.sampler(bounds=small).sample({}).node.memory_bytes == 77
    large = Bounds(memory_bytes=10**9, memory_folder=tmp_path)  # more than there is
    assert machine.sampler(bounds=large).sample({}).node.memory_bytes == 600 * 1024


def test_a_process_may_vanish_at_any_moment(machine):
    root = machine.run(10, 1)
    (machine.proc / "11").mkdir()  # listed, and gone when it is opened
    usage = machine.sampler().sample({"job": [root]})
    assert usage.trees["job"].pids == (10,)
    assert usage.node.processes == 1
    assert read_process(11, machine.root) is None


@pytest.mark.parametrize(
    ("call", "error"), [("read", ProcessLookupError), ("open", PermissionError)]
)
def test_one_that_ends_while_it_is_read_or_is_hidden_is_left_out(machine, monkeypatch, call, error):
    def fail(*_):
        raise error

    machine.run(10, 1)
    monkeypatch.setattr(f"gridhand.posix.procfs.os.{call}", fail)
    assert procfs.read_processes(machine.root) == {}


def test_names_of_programs_do_not_confuse():
    with open("/proc/self/stat", "rb") as file:
        line = file.read()
    name = line[line.index(b"(") : line.rindex(b")") + 1]
    assert parse_stat(line.replace(name, b"(x) R 1 (y)")) == parse_stat(line)


CHILD = r"""
import os, sys
held = bytearray(60_000_000)
for place in range(0, len(held), 4096):
    held[place] = 1
for _ in range(2):
    pid = os.fork()
    if not pid:
        os.setsid()
        break
os.write(1, b"%d\n" % os.getpid())  # at once: three write to one pipe
sys.stdin.read()
"""


@pytest.fixture
def family():
    """A parent and two children that share 60 MB, in sessions of their own."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        members = {int(parent.stdout.readline()) for _ in range(3)}
        yield parent.pid, members
        parent.stdin.close()
        parent.stdout.read()


def test_a_real_family(family):
    parent, members = family
    used = Sampler().sample({"job": [read_process(parent).identity]}).trees["job"]
    assert set(used.pids) == members
    rss_bytes = sum(psutil.Process(pid).memory_info().rss for pid in members)
    assert used.rss_bytes == pytest.approx(rss_bytes, rel=0.05)
    assert used.rss_bytes > 150_000_000
    assert 60_000_000 < used.memory_bytes < 120_000_000
    assert used.cpu_seconds > 0
    assert used.threads == 3


def test_this_machine_agrees_with_psutil():
    sampler = Sampler()
    node = sampler.sample({}).node
    theirs = psutil.virtual_memory()
    assert node.memory_bytes == pytest.approx(theirs.total - theirs.available, abs=10**9)
    assert abs(node.processes - len(psutil.pids())) < 50
    assert 0 <= node.cpu <= len(procfs.cpu_times())
    me = read_process(os.getpid()).identity
    started = psutil.Process().create_time() - psutil.boot_time()
    assert me.start / TICKS_PER_SECOND == pytest.approx(started, abs=2)


def test_processes_that_come_and_go_do_no_harm():
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            subprocess.run([sys.executable, "-S", "-c", ""], check=True)

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        sampler, me = Sampler(), read_process(os.getpid()).identity
        seen = [sampler.sample({"me": [me]}).trees["me"].pids for _ in range(200)]
    finally:
        stop.set()
        churning.join()
    assert all(os.getpid() in members for members in seen)
    assert any(len(members) > 1 for members in seen)
