"""Everything that a job leaves behind is known to be its own, and can be ended."""

import os
import signal
import subprocess
import sys

import pytest

from gridhand.agent.starter.attempts import Attempts
from gridhand.agent.starter.process_trees import ProcessTrees, limit_mark_of
from gridhand.agent.starter.survivors import find_unknown_survivors
from gridhand.posix import procfs
from gridhand.posix.cgroups import CgroupMembership
from gridhand.posix.limit_mark import limit_marked, marked_alike, read_limit_mark
from other_user import OTHER, OtherProcess, needs_root

# Forks twice and leads a session of its own, as daemons do; says its pid when its parents are gone.
DAEMON = """
import os, signal, sys
if os.fork(): os._exit(0)
os.setsid()
middle = os.getpid()
if os.fork(): os._exit(0)
while os.getppid() == middle: pass
with open(sys.argv[1], "w") as said: print(os.getpid(), file=said)
signal.pause()
"""


def daemon(place, job, said, **options):
    return place.order(job, sys.executable, "-c", DAEMON, said.path, **options)


def test_a_daemon_is_found_and_ended(place, starter, tools):
    said, other_said = place.gate(), place.gate()
    starter.start([daemon(place, "j", said), daemon(place, "other", other_said)])
    child, other = int(said.hear()), int(other_said.hear())
    tools.ends(starter, 2)
    survivors = {one["job"]: one["survivors"] for one in starter.list()["ended"]}
    assert survivors == {"j": [child], "other": [other]}
    with tools.watched(child) as gone:
        reply = starter.stop_all("j", 0)
        gone()
    assert (reply["killed"], reply["left"]) == (1, [])
    survivors = {one["job"]: one["survivors"] for one in starter.list()["ended"]}
    assert survivors == {"j": [], "other": [other]}


def test_a_daemon_without_an_environment_is_found_by_the_mark_in_its_limits(place, starter, tools):
    """Row 53, without control groups: it has left its session, its environment and its files."""
    said, other_said = place.gate(), place.gate()
    orders = [
        place.order(job, "/usr/bin/env", "-i", sys.executable, "-c", DAEMON, gate.path)
        for job, gate in (("j", said), ("other", other_said))
    ]
    starter.start(orders)
    child, other = int(said.hear()), int(other_said.hear())
    tools.ends(starter, 2)
    survivors = {one["job"]: one["survivors"] for one in starter.list()["ended"]}
    assert survivors == {"j": [child], "other": [other]}
    with tools.watched(child) as gone:
        reply = starter.stop_all("j", 0)
        gone()
    assert (reply["killed"], reply["left"]) == (1, [])
    assert os.path.exists(f"/proc/{other}")
    assert read_limit_mark(starter.greeting["pid"]) is None


def test_a_whole_tree_is_ended_with_its_leader(place, starter, tools):
    said = place.gate()
    script = (
        '(setsid sleep 1000 & sleep 1000 & wait) & sleep 1000 & trap "" TERM; echo > "$1"; wait'
    )
    starter.start([place.order("j", "/bin/sh", "-c", script, "-", said.path)])
    said.hear()
    reply = starter.stop_all("j", 0)
    assert reply["left"] == []
    assert reply["killed"] >= 3
    assert reply["attempt"]["end"]["signal"] == signal.SIGKILL
    assert tools.ends(starter)["j"]["signal"] == signal.SIGKILL
    assert starter.list()["ended"][0]["survivors"] == []


@pytest.mark.parametrize("pause", ["", "sleep 0.01;"])
def test_those_that_fork_and_exit_are_ended(place, starter, tools, pause):
    """They are gone by the time they are signalled, and may be missed by whoever reads /proc."""
    said = place.gate()
    script = f'f() {{ {pause} f & exit; }}; f & f & f & echo > "$1"; wait'
    starter.start([place.order("j", "/bin/sh", "-c", script, "-", said.path)])
    said.hear()
    assert starter.stop_all("j", 0)["left"] == []
    assert starter.list()["ended"][0]["survivors"] == []


def test_orphans_are_reaped(place, starter, tools):
    said = place.gate()
    starter.start([daemon(place, "j", said)])
    child = int(said.hear())
    tools.ends(starter)
    os.kill(child, signal.SIGKILL)
    tools.gone(child)
    starter.list()  # by then a turn of its loop has passed
    assert not os.path.exists(f"/proc/{child}")


def test_stopping_what_has_ended_cleanly_does_nothing(place, starter, run):
    run("j", "true")
    reply = starter.stop_all("j", 0)
    assert (reply["killed"], reply["left"], reply["attempt"]["end"]["code"]) == (0, [], 0)


def hierarchies():
    """Where cgroups of either version are mounted, and may be made."""
    found = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            kind = fields[fields.index("-") + 1]
            if kind == "cgroup2" or (kind == "cgroup" and fields[4].endswith("/pids")):
                found[kind] = fields[4]
    return found


@pytest.fixture(params=["cgroup", "cgroup2"])
def cgroup(request):
    root = hierarchies().get(request.param)
    if root is None:
        pytest.skip(f"no {request.param} here")
    folder = os.path.join(root, f"gridhand-test-{os.getpid()}")
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip(f"may not make a {request.param}")
    yield folder
    os.rmdir(folder)


def test_it_is_born_in_its_cgroup_and_the_starter_goes_home(cgroup, place, starter, tools):
    with open(f"/proc/{starter.greeting['pid']}/cgroup") as file:
        before = file.read()
    show = ["cat", "/proc/self/cgroup"]
    orders = [place.order("in", *show, cgroups=[cgroup]), place.order("out", *show)]
    starter.start(orders)
    assert {end["code"] for end in tools.ends(starter, 2).values()} == {0}
    assert f"/{os.path.basename(cgroup)}\n" in place.output("in").decode()
    assert place.output("out").decode() == before
    with open(f"/proc/{starter.greeting['pid']}/cgroup") as file:
        assert file.read() == before


def test_where_there_is_no_way_back_the_child_is_put_there(cgroup):
    groups = CgroupMembership()
    groups._homes[os.stat(cgroup).st_dev] = None
    late = groups.enter([cgroup])
    assert late == [cgroup]
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as child:
        assert groups.put(child.pid, late) == ""
        with open(f"/proc/{child.pid}/cgroup") as file:
            assert f"/{os.path.basename(cgroup)}\n" in file.read()
        assert "cannot join the cgroup" in groups.put(child.pid, ["/no/such"])
        assert child.wait() == -signal.SIGKILL
        assert groups.put(child.pid, late) == ""  # it has ended: nothing is left to put anywhere


def test_who_hides_its_name_is_known_by_its_cgroup(cgroup, place, starter, tools):
    said = place.gate()
    hides = "import os, sys\nos.execve(sys.executable, [sys.executable, *sys.argv[1:]], {})"
    argv = [sys.executable, "-c", hides, "-c", DAEMON, said.path]
    starter.start([place.order("j", *argv, cgroups=[cgroup])])
    child = int(said.hear())
    tools.ends(starter)
    assert starter.list()["ended"][0]["survivors"] == [child]
    with tools.watched(child) as gone:
        assert starter.stop_all("j", 0)["left"] == []
        gone()


# ---- marks of another user


@pytest.fixture
def stray():
    """A process of another user below us, with the marks of attempt 1 of job 7 of mark `m`."""
    code = """
resource.setrlimit(10, (int(sys.argv[1]), resource.RLIM_INFINITY))
print("begun", flush=True)
select.select([], [], [])
"""
    marks = {"GRIDHAND_STARTER": "m", "GRIDHAND_JOB_ID": "7", "GRIDHAND_ATTEMPT": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in marks.items():
            patch.setenv(name, value)
        with OtherProcess(code, limit_mark_of("m", "7", 1)) as process:
            assert read_limit_mark(process.pid) == limit_mark_of("m", "7", 1)
            assert procfs.environment(process.pid)[b"GRIDHAND_JOB_ID"] == b"7"
            yield process


@needs_root
@pytest.mark.parametrize(("uid", "belongs"), [(OTHER + 1, False), (OTHER, True), (None, True)])
def test_a_process_belongs_to_no_job_of_another_user_whatever_its_marks_say(stray, uid, belongs):
    attempts = Attempts(procfs.boot_id())
    attempts.mark = "m"
    attempts.add("7", 1, None, [], uid=uid)
    found = ProcessTrees(attempts).alive().get(("7", 1), [])
    assert [one.pid for one in found] == ([stray.pid] if belongs else [])


@needs_root
def test_a_new_starter_does_not_believe_the_marks_of_other_users(stray):
    attempts = Attempts(procfs.boot_id())
    attempts.mark = "m"
    assert find_unknown_survivors(attempts) == []


@needs_root
def test_a_sibling_of_another_user_is_not_counted_for_a_job(stray):
    """It would make the job exceed its memory."""
    mark = limit_mark_of("m", "7", 1)
    with limit_marked(mark):
        own = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        sibling = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with own, sibling:
        table = procfs.read_processes()
        found = marked_alike(table[own.pid], table.values())
        assert [one.pid for one in found] == [sibling.pid]
        for process in (own, sibling):
            process.kill()
