"""Control groups of both versions, as /proc/self tells of them."""

import os

import pytest

from gridhand.posix import cgroups

V2 = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup rw,nsdelegate\n"
MEMORY = "31 24 0:27 {top} {point} rw shared:9 - cgroup cgroup rw,memory\n"
CPU = "32 24 0:28 / /cg/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n"


def memory(top="/", point="/cg/memory"):
    return MEMORY.format(top=top, point=point)


#    what it shows                              mountinfo                      /proc/self/cgroup        folders, from the innermost
CASES = {
    "no cgroups":                              ("",                           "",                      {}),
    "version 2 has one hierarchy":             (V2,                           "0::/a/b\n",             {"": ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]}),
    "the topmost group of version 2":          (V2,                           "0::/\n",                {"": ["/sys/fs/cgroup"]}),
    "version 1 has one for each":              (memory() + CPU,               "5:memory:/x\n3:cpu,cpuacct:/\n", {"memory": ["/cg/memory/x", "/cg/memory"], "cpu": ["/cg/cpu,cpuacct"], "cpuacct": ["/cg/cpu,cpuacct"]}),
    "a machine may have both":                 (V2 + memory(),                "5:memory:/x\n0::/\n",   {"memory": ["/cg/memory/x", "/cg/memory"], "": ["/sys/fs/cgroup"]}),
    "a container sees its own part":           (memory("/docker/1"),          "5:memory:/docker/1/x\n", {"memory": ["/cg/memory/x", "/cg/memory"]}),
    "a group outside of what is mounted":      (memory("/docker/1"),          "5:memory:/docker/2\n",  {"memory": ["/cg/memory"]}),
    "a name with the same beginning is outside": (memory("/docker/1"),        "5:memory:/docker/12\n", {"memory": ["/cg/memory"]}),
    "a group outside of the namespace":        (V2,                           "0::/../other\n",        {"": ["/sys/fs/cgroup"]}),
    "the mount that shows our group counts":   (memory("/docker/1") + memory("/", "/all"), "5:memory:/docker/2\n", {"memory": ["/all/docker/2", "/all/docker", "/all"]}),
    "a controller that is not mounted":        (V2,                           "5:memory:/x\n",         {}),
    "a space in the name of a folder":         (memory(point=r"/c\040g"),     "5:memory:/\n",          {"memory": ["/c g"]}),
    "lines that are cut off":                  ("31 24\n" + V2,               "0\n",                   {"": ["/sys/fs/cgroup"]}),
}  # fmt: skip


@pytest.mark.parametrize(("mountinfo", "own", "folders"), CASES.values(), ids=CASES)
def test_own_groups(tmp_path, mountinfo, own, folders):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mountinfo)
    (tmp_path / "proc/self/cgroup").write_text(own)
    expected = {name: [f"{tmp_path}{path}" for path in paths] for name, paths in folders.items()}
    assert cgroups.own_groups(tmp_path) == expected


def test_files_that_cannot_be_read_tell_of_no_groups(tmp_path):
    assert cgroups.own_groups(tmp_path) == {}
    assert cgroups.own_groups(tmp_path, lambda path: None) == {}


def test_the_groups_of_this_process_are_folders():
    for folders in cgroups.own_groups().values():
        assert os.path.isdir(folders[-1])


def test_members_of_a_group(tmp_path):
    assert cgroups.members(str(tmp_path)) == set()
    (tmp_path / "cgroup.procs").write_text("1\n20\n")
    assert cgroups.members(str(tmp_path)) == {1, 20}
