"""What a machine has for us: within control groups of either kind, made up and real."""

import json
import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from gridhand.agent.hardware.discovery import cpu_parts, discover, disk, node_name, usable_cpus
from gridhand.agent.hardware.own_limits import Bounds, memory_used, read_bounds, read_cpu_list
from gridhand.core.model.names import check_node_name
from gridhand.core.model.resources import UNIT

V2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "".join(
    f"3{number} 31 0:3{number} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
    for number, name in enumerate(["cpu", "cpuset", "memory"])
)
IN_V1 = "3:memory:/a/b\n2:cpuset:/a/b\n1:cpu:/a/b\n"
NO_LIMIT = "9223372036854771712"


def tree(folder, files):
    """A root folder with these files; those named `sys:` are below /sys/fs/cgroup."""
    for name, text in files.items():
        path = folder / name.replace("sys:", "sys/fs/cgroup/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def v2(path="/a/b", mounts=V2, **files):
    return {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": mounts} | files


def v1(groups=IN_V1, mounts=V1, **files):
    return {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts} | files


#    what it shows                                    the files                                                     cpu, CPUs, memory
BOUNDS = {
    "no control groups":                             ({},                                                           (None, None, None)),
    "groups without limits":                         (v2(**{"sys:a/b/cpu.max": "max 100000", "sys:a/b/memory.max": "max"}),
                                                      (None, None, None)),
    "a quota may be a fraction":                     (v2(**{"sys:a/b/cpu.max": "150000 100000"}),                    (15_000, None, None)),
    "a quota finer than our amounts is rounded down": (v2(**{"sys:a/b/cpu.max": "100000 300000"}),                   (3_333, None, None)),
    "a group above binds, too":                      (v2(**{"sys:a/b/cpu.max": "400000 100000", "sys:a/cpu.max": "250000 100000"}),
                                                      (25_000, None, None)),
    "also by memory":                                (v2(**{"sys:a/b/memory.max": "max", "sys:a/memory.max": "4096"}), (None, None, 4096)),
    "and at the very top":                           (v2(**{"sys:memory.max": "8192", "sys:cpu.max": "50000 100000"}), (5_000, None, 8192)),
    "where jobs crawl is a limit":                   (v2(**{"sys:a/b/memory.max": "9000", "sys:a/b/memory.high": "5000"}),
                                                      (None, None, 5000)),
    "a group beside us does not bind":               (v2(**{"sys:a/c/memory.max": "1"}),                             (None, None, None)),
    "CPUs of the group":                             (v2(**{"sys:a/b/cpuset.cpus.effective": "0-2,5"}),              (None, {0, 1, 2, 5}, None)),
    "or of the nearest above that tells":            (v2(**{"sys:a/cpuset.cpus.effective": "1", "sys:cpuset.cpus.effective": "0-7"}),
                                                      (None, {1}, None)),
    "a container sees its group at the top":         (v2("/", **{"sys:memory.max": "77"}),                           (None, None, 77)),
    "one that sees its path from outside":           (v2("/pod/x", V2.replace(" / /sys", " /pod/x /sys"), **{"sys:memory.max": "77"}),
                                                      (None, None, 77)),
    "a group outside of what is mounted":            (v2("/../y", **{"sys:memory.max": "77", "sys/fs/y/memory.max": "1"}),
                                                      (None, None, 77)),
    "of two mounts the one that shows us":           (v2("/pod/x", V2.replace(" / /sys", " /pod/y /y") + V2, **{"sys:pod/x/memory.max": "77"}),
                                                      (None, None, 77)),
    "a mount with a space in its name":              (v2("/", r"1 1 0:1 / /my\040groups rw - cgroup2 none rw", **{"my groups/memory.max": "5"}),
                                                      (None, None, 5)),
    "the older kind":                                (v1(**{"sys:cpu/a/b/cpu.cfs_quota_us": "50000", "sys:cpu/a/b/cpu.cfs_period_us": "100000",
                                                            "sys:cpuset/a/b/cpuset.effective_cpus": "3", "sys:memory/a/b/memory.limit_in_bytes": "123"}),
                                                      (5_000, {3}, 123)),
    "the older kind without limits":                 (v1(**{"sys:cpu/a/b/cpu.cfs_quota_us": "-1", "sys:memory/a/b/memory.limit_in_bytes": NO_LIMIT,
                                                            "sys:memory/a/b/memory.stat": f"hierarchical_memory_limit {NO_LIMIT}"}),
                                                      (None, None, None)),
    "the older kind binds from above":               (v1(**{"sys:memory/a/memory.limit_in_bytes": "99", "sys:memory/a/b/memory.limit_in_bytes": "123",
                                                            "sys:cpu/cpu.cfs_quota_us": "20000"}),
                                                      (2_000, None, 99)),
    "also from where we cannot look":                (v1(**{"sys:memory/a/b/memory.limit_in_bytes": NO_LIMIT,
                                                            "sys:memory/a/b/memory.stat": "cache 1\nhierarchical_memory_limit 88\n"}),
                                                      (None, None, 88)),
    "controllers may share a mount":                 (v1("4:cpu,cpuacct:/a\n", "1 1 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
                                                         **{"sys:cpu/a/cpu.cfs_quota_us": "300000"}),
                                                      (30_000, None, None)),
    "both kinds at once":                            (v1("2:memory:/a\n0::/b\n", V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
                                                         **{"sys:memory/a/memory.limit_in_bytes": "50", "sys:unified/b/cpu.max": "10000 100000"}),
                                                      (1_000, None, 50)),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), BOUNDS.values(), ids=BOUNDS)
def test_bounds(tmp_path, files, expected):
    bounds = read_bounds(tree(tmp_path, files))
    assert (bounds.cpu, bounds.cpus, bounds.memory_bytes) == expected
    assert bounds.problems == ()


#    what it shows                      the file                             its text
UNREADABLE = {
    "a quota that is no number":       ("sys:a/b/cpu.max",                   "many 100000"),
    "a period of nothing":             ("sys:a/b/cpu.max",                   "1000 0"),
    "a limit that is no number":       ("sys:a/b/memory.max",                "-5"),
    "CPUs that are no list":           ("sys:a/b/cpuset.cpus.effective",     "0-x"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_understood_is_told(tmp_path, name, text):
    bounds = read_bounds(tree(tmp_path, v2(**{name: text})))
    assert (bounds.cpu, bounds.cpus, bounds.memory_bytes) == (None, None, None)
    [problem] = bounds.problems
    assert name.removeprefix("sys:") in problem.what
    assert problem.hint


def test_a_limit_that_cannot_be_opened_is_told_and_the_rest_is_read(tmp_path):
    files = v2(**{"sys:a/memory.max": "4096", "sys:a/b/cpu.max": "100000 100000"})
    root = tree(tmp_path, files)
    (root / "sys/fs/cgroup/a/b/memory.max").mkdir()  # reading it fails for root, too
    bounds = read_bounds(root)
    assert (bounds.cpu, bounds.memory_bytes) == (UNIT, 4096)
    [problem] = bounds.problems
    assert "a/b/memory.max" in problem.what


def test_the_group_that_binds_memory_tells_what_it_uses(tmp_path):
    root = tree(
        tmp_path,
        v2(
            **{
                "sys:a/b/memory.max": "9000",
                "sys:a/memory.max": "8000",
                "sys:a/memory.current": "5000",
                "sys:a/memory.stat": "anon 10\ninactive_file 1000\nactive_file 200\n",
            }
        ),
    )
    folder = read_bounds(root).memory_folder
    assert folder == root / "sys/fs/cgroup/a"
    assert memory_used(folder) == 3800  # what is cached of files can be had again
    assert memory_used(folder / "b") is None


def test_so_does_one_of_the_older_kind(tmp_path):
    files = {
        "memory.usage_in_bytes": "5000",
        "memory.stat": "inactive_file 1\ntotal_inactive_file 400\ntotal_active_file 100\n",
    }
    assert memory_used(tree(tmp_path, files)) == 4500


def test_cpu_lists():
    assert read_cpu_list("0") == {0}
    assert read_cpu_list("0-1,4,6-7\n") == {0, 1, 4, 6, 7}


def test_a_quota_never_adds_cpus():
    assert cpu_parts(frozenset({0, 1}), Bounds(cpu=5 * UNIT)) == 2 * UNIT
    assert cpu_parts(frozenset({0, 1}), Bounds(cpu=UNIT // 2)) == UNIT // 2
    assert cpu_parts(frozenset({0, 1}), Bounds()) == 2 * UNIT


def test_cpus_are_those_of_the_mask_and_the_group():
    allowed, problems = os.sched_getaffinity(0), []
    one = min(allowed)
    assert usable_cpus(Bounds(), problems) == allowed
    assert usable_cpus(Bounds(cpus=frozenset({one, 10_000})), problems) == {one}
    assert problems == []
    assert usable_cpus(Bounds(cpus=frozenset({10_000})), problems) == allowed
    assert len(problems) == 1


#    what it shows                        host name             node name           told
NAMES = {
    "a host name is a node's name":      ("gpu-1.example.org",  "gpu-1.example.org", False),
    "a space is not":                    ("my laptop",          "my-laptop",         True),
    "nor is a dash in front":            ("-x",                 "x",                 True),
    "nor a letter with a hat":           ("hôtel",              "h-tel",             True),
    "something is left of anything":     ("…",                  "node",              True),
    "it is not endless":                 ("x" * 300,            "x" * 200,           True),
}  # fmt: skip


@pytest.mark.parametrize(("host", "name", "told"), NAMES.values(), ids=NAMES)
def test_node_names(host, name, told):
    problems = []
    assert check_node_name(node_name(host, problems)) == name
    assert bool(problems) == told


def test_disk_is_what_is_free(tmp_path):
    problems = []
    free, total = disk(tmp_path, problems)
    expected = psutil.disk_usage(str(tmp_path))
    assert abs(free - expected.free) < 10**9  # others write meanwhile
    assert total == expected.total
    assert problems == []


def test_a_folder_that_is_not_there_has_no_disk_and_says_so(tmp_path):
    problems = []
    assert disk(tmp_path / "none", problems) == (0, 0)
    assert "No such file" in problems[0].what


def test_this_machine(tmp_path):
    found = discover(tmp_path)
    assert found.node.name == node_name(socket.gethostname(), [])
    assert 0 < found.node.capacity["cpu"] <= UNIT * len(os.sched_getaffinity(0))
    assert 0 < found.node.capacity["memory"] <= psutil.virtual_memory().total
    assert 0 < found.node.capacity["disk"] <= found.disk_total_bytes
    assert str(uuid.UUID(found.boot_id)) == found.boot_id
    assert found.node.checked() == found.node


def test_the_machine_is_as_small_as_its_group(tmp_path):
    meminfo = "MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 400000 kB\n"
    root = tree(
        tmp_path / "root",
        v2(**{"proc/meminfo": meminfo, "sys:a/cpu.max": "5000 100000", "sys:a/memory.max": "4096"}),
    )
    found = discover(tmp_path, root=root)
    assert found.node.capacity["cpu"] == UNIT // 20
    assert found.node.capacity["memory"] == 4096
    assert found.boot_id == ""
    assert ["boot id" in problem.what for problem in found.problems] == [True]
    (root / "sys/fs/cgroup/a/memory.max").write_text(str(10**15))
    assert discover(tmp_path, root=root).node.capacity["memory"] == 1_000_000 * 1024


SHOW = """
import json, sys
from pathlib import Path
from gridhand.agent.hardware.discovery import discover
for path in sys.argv[2:]:
    Path(path).write_text("0")  # "this process"
found = discover(Path(sys.argv[1]))
print(json.dumps([found.node.capacity["cpu"], sorted(found.cpus), [str(p) for p in found.problems]]))
"""


def shown(folder, *groups):
    """What a process in these control groups finds: its CPUs, and how much of them."""
    command = [sys.executable, "-c", SHOW, str(folder), *(f"{g}/cgroup.procs" for g in groups)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_real_mask_of_cpus(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        cpu, cpus, problems = shown(tmp_path)
    finally:
        os.sched_setaffinity(0, before)
    assert cpus == [max(before)]
    assert cpu <= UNIT
    assert problems == []


@pytest.fixture
def new_group():
    """Makes real control groups, where that is permitted, and removes them."""
    made = []

    def make(name, settings):
        top = Path("/sys/fs/cgroup") / name
        if not (top / next(iter(settings))).exists():
            pytest.skip(f"the control groups here have no {name} of the older kind at their top")
        group = top / f"gridhand-test-{os.getpid()}"
        try:
            group.mkdir()
            made.append(group)
            for setting, value in settings.items():
                (group / setting).write_text(value)
        except OSError as error:
            pytest.skip(f"control groups may not be made here: {error}")
        return group

    yield make
    for group in made:
        group.rmdir()  # its process has been waited for


def test_a_real_quota(tmp_path, new_group):
    group = new_group("cpu", {"cpu.cfs_quota_us": "75000"})
    cpu, _, problems = shown(tmp_path, group)
    assert cpu == 7_500
    assert problems == []


def test_a_real_set_of_cpus(tmp_path, new_group):
    mems = Path("/sys/fs/cgroup/cpuset/cpuset.mems")
    last = max(os.sched_getaffinity(0))
    nodes = mems.read_text() if mems.exists() else "0"
    group = new_group("cpuset", {"cpuset.cpus": str(last), "cpuset.mems": nodes})
    _, cpus, problems = shown(tmp_path, group)
    assert cpus == [last]
    assert problems == []
