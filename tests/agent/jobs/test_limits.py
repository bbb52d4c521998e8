"""Control groups of both kinds are made where that is allowed, and nowhere else."""

import os
from pathlib import Path

import pytest

from gridhand.agent.jobs import limits
from gridhand.agent.jobs.limits import Groups, Limits

MB = 10**6


class Machine:
    """A root folder with what the kernel shows of control groups, as plain files."""

    def __init__(self, root):
        self.root = root
        (root / "proc/self").mkdir(parents=True)

    def has(self, *, mounts, groups):
        lines = [f"30 1 0:{number} / {point} rw - {kind} cgroup {options}" for number, (point, kind, options) in enumerate(mounts)]  # fmt: skip
        (self.root / "proc/self/mountinfo").write_text("\n".join(lines))
        (self.root / "proc/self/cgroup").write_text("\n".join(groups))

    def folder(self, path, **files):
        made = self.root / path
        made.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (made / name.replace("__", ".")).write_text(text)
        return made


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def second(machine):
    """A machine with version 2 and our own group delegated to us."""
    machine.has(mounts=[("/cg", "cgroup2", "rw")], groups=["0::/own"])
    files = {"cgroup__controllers": "cpu memory pids", "cgroup__subtree_control": "", "cgroup__procs": ""}  # fmt: skip
    machine.folder("cg/own", **files)
    machine.folder("cg/own/gridhand-agents", cgroup__procs="", cgroup__controllers="memory pids")
    limited = {"memory__max": "max", "memory__swap__max": "max", "memory__oom__group": "0", "pids__max": "max"}  # fmt: skip
    machine.folder("cg/own/gridhand-x", cgroup__subtree_control="", cgroup__procs="", **limited)
    machine.folder("cg/own/gridhand-x/17.1", cgroup__procs="", **limited)
    return machine


def test_version_2(second):
    found = Limits.find("gridhand-x", [41, 42], second.root)
    own = second.root / "cg/own"
    assert found.enforced == {"memory": "cgroup", "pids": "cgroup"}
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (own / "gridhand-x/cgroup.subtree_control").read_text() == "+memory +pids"
    assert (own / "gridhand-agents/cgroup.procs").read_text() == "42"  # the last one to be written
    groups = found.make("17", 1, 200 * MB, 50)
    folder = own / "gridhand-x/17.1"
    assert groups == Groups(str(folder), str(folder))
    assert groups.folders == [str(folder)]
    assert (folder / "memory.max").read_text().startswith(str(200 * MB))
    assert (folder / "memory.swap.max").read_text().startswith("0")
    assert (folder / "memory.oom.group").read_text() == "1"
    assert (folder / "pids.max").read_text().startswith("51")


def test_version_2_tells_of_the_peak_and_the_killed(second):
    groups = Groups(str(second.root / "cg/own/gridhand-x/17.1"), None)
    assert limits.peak_bytes(groups) is None
    assert limits.oom_kills(groups) == 0
    second.folder("cg/own/gridhand-x/17.1", memory__peak="123456\n", memory__events="low 0\noom 2\noom_kill 3\noom_group_kill 1\n")  # fmt: skip
    assert limits.peak_bytes(groups) == 123456
    assert limits.oom_kills(groups) == 3


def test_version_2_where_others_are_in_our_group(second):
    os.unlink(second.root / "cg/own/cgroup.subtree_control")
    os.mkdir(second.root / "cg/own/cgroup.subtree_control")  # the kernel answers that it is busy
    found = Limits.find("gridhand-x", [], second.root)
    assert found.enforced == {"memory": "measured", "pids": "measured"}
    assert found.make("17", 1, 200 * MB, 50) == Groups(None, None)
    [problem] = limits.measured_problems(found.enforced)
    assert "memory and pids" in problem.what


def test_version_2_at_the_top_if_others_are_in_our_group(second):
    os.unlink(second.root / "cg/own/cgroup.subtree_control")
    os.mkdir(second.root / "cg/own/cgroup.subtree_control")
    second.folder("cg", cgroup__controllers="memory pids", cgroup__subtree_control="")
    second.folder("cg/gridhand-x", cgroup__procs="", cgroup__subtree_control="")
    found = Limits.find("gridhand-x", [41], second.root)
    assert found.memory == found.pids == str(second.root / "cg/gridhand-x")
    assert not (second.root / "cg/gridhand-agents").exists()
    second.folder("cg/own", memory__max=str(10**9))
    assert Limits.find("gridhand-x", [41], second.root).memory is None


def test_a_second_agent_finds_its_place_in_version_2(second):
    (second.root / "proc/self/cgroup").write_text("0::/own/gridhand-agents")
    found = Limits.find("gridhand-x", [41], second.root)
    assert found.memory == str(second.root / "cg/own/gridhand-x")
    assert (second.root / "cg/own/gridhand-agents/cgroup.procs").read_text() == ""


def test_version_1(machine):
    mounts = [("/cg/memory", "cgroup", "rw,memory"), ("/cg/pids", "cgroup", "rw,pids")]
    machine.has(mounts=mounts, groups=["4:memory:/a/b", "8:pids:/"])
    machine.folder("cg/memory/a/b/gridhand-x", cgroup__procs="", memory__limit_in_bytes="")
    machine.folder("cg/pids/gridhand-x", cgroup__procs="")
    found = Limits.find("gridhand-x", [], machine.root)
    assert found.memory == str(machine.root / "cg/memory/a/b/gridhand-x")
    assert found.pids == str(machine.root / "cg/pids/gridhand-x")


def test_no_groups_at_all(machine):
    machine.has(mounts=[], groups=[])
    assert Limits.find("x", [], machine.root).enforced == {"memory": "measured", "pids": "measured"}


def real(mark):
    found = Limits.find(f"gridhand-test-{mark}-{os.getpid()}", [])
    if "measured" in found.enforced.values():
        pytest.skip("no control groups here")
    return found


def test_names_that_cannot_be_folders(tmp_path):
    found = real("names")
    try:
        made = [found.make(job, 1, 100 * MB, 10) for job in ("17_3", "../../x", "a/b", "é" * 200)]
        folders = {folder for groups in made for folder in groups.folders}
        assert len(folders) == 8
        assert {os.path.dirname(folder) for folder in folders} == {found.memory, found.pids}
        found.sweep(set(made[0].folders))
        assert [os.path.exists(folder) for groups in made for folder in groups.folders] == [True] * 2 + [False] * 6  # fmt: skip
    finally:
        found.sweep(set())
        found.leave()
    assert not os.path.exists(found.memory)


def test_less_is_set_once_the_starter_has_left(tmp_path):
    found = real("little")
    try:
        groups = found.make("j", 1, MB, 5)
        most = Path(groups.pids) / "pids.max"
        assert int(most.read_text()) == 6
        assert limits.tighten(groups, MB, 5)
        assert int(most.read_text()) == 5
        for folder in groups.folders:
            limits.remove(folder)
        assert limits.tighten(groups, MB, 5)  # it was over before that
    finally:
        found.sweep(set())
        found.leave()


def test_what_was_left_long_ago_is_removed(machine):
    machine.has(mounts=[("/cg/pids", "cgroup", "rw,pids")], groups=["8:pids:/"])
    machine.folder("cg/pids/gridhand-x", cgroup__procs="")
    old, new, others = (machine.folder(f"cg/pids/{name}/1.1") for name in ("gridhand-0123456789abcdef", "gridhand-0123456789abcdee", "theirs"))  # fmt: skip
    for folder in (old, old.parent, others, others.parent):
        os.utime(folder, (0, 0))
    Limits.find("gridhand-x", [], machine.root)
    assert (old.exists(), new.exists(), others.exists()) == (False, True, True)
