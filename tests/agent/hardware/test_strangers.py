"""Whose processes are whose, and the largest of those that are not ours."""

import os

import pytest

from gridhand.agent.hardware.strangers import Strangers, owner_name
from gridhand.posix.procfs import TICKS_PER_SECOND, Process, ProcessIdentity

MB = 10**6


class Table:
    """A table of processes that a test writes, and a clock that it sets."""

    def __init__(self, root):
        self.root, self.now, self.table = root, 0.0, {}
        self.strangers = Strangers(root=root, clock=lambda: self.now)

    def run(self, pid, parent, *, cpu=0.0, mb=0, files_mb=0, name="x", children_s=0.0):
        ticks = round(cpu * TICKS_PER_SECOND)
        both = ticks + round(children_s * TICKS_PER_SECOND)
        rss = (mb + files_mb) * MB
        self.table[pid] = Process(ProcessIdentity(pid, 1), parent, 1, both, 1, rss, False, ticks)
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text(f"{name}\n")
        lines = f"Name:\t{name}\nRssAnon:\t{mb * 1000} kB\nRssFile:\t{files_mb * 1000} kB\n"
        (folder / "status").write_text(lines)

    def divide(self, jobs=(), daemons=()):
        return self.strangers.divide(self.table, set(jobs), daemons)


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def test_our_daemons_and_what_descends_from_them_are_ours(table):
    table.run(10, 1, mb=20)  # the starter
    table.run(11, 10, mb=100)  # a job
    table.run(12, 11, mb=100)  # its child, which is no part of the job's tree any more
    table.run(20, 1, mb=300, name="blender")
    table.divide([11], [10, 99])
    table.now = 10.0
    table.run(10, 1, mb=20, cpu=1.0)
    table.run(11, 10, mb=100, cpu=9.0)
    table.run(12, 11, mb=100, cpu=5.0)
    table.run(20, 1, mb=300, cpu=20.0, name="blender")
    found = table.divide([11], [10, 99])
    assert found.daemon_cpu == pytest.approx(0.6)
    assert found.daemon_bytes == 120 * 1000 * 1024
    [blender] = found.largest
    assert (blender["pid"], blender["name"], blender["cpu"]) == (20, "blender", 2.0)
    assert blender["memory_bytes"] == 300 * 1000 * 1024


def test_pages_of_files_are_nobodys_memory(table):
    table.run(20, 1, mb=60, files_mb=5000)
    [one] = table.divide().largest
    assert one["memory_bytes"] == 60 * 1000 * 1024


def test_the_time_of_ended_children_is_not_that_of_their_parent(table):
    table.run(20, 1, mb=60)
    table.divide()
    table.now = 10.0
    table.run(20, 1, mb=60, children_s=500.0)
    assert table.divide().largest[0]["cpu"] == 0.0


def test_a_process_that_is_new_counts_from_its_start(table):
    table.divide()
    table.now = 10.0
    table.run(20, 1, cpu=5.0)
    assert table.divide().largest[0]["cpu"] == 0.5


def test_small_ones_are_left_out(table):
    for pid in range(100, 200):
        table.run(pid, 1, mb=1)
    assert table.divide().largest == ()


def test_a_user_has_a_name():
    assert owner_name(os.getpid()) not in ("", str(os.getuid()))
    assert owner_name(2**30) == ""
