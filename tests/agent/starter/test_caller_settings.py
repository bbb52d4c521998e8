"""A command has the umask, the nice value and the limits of its caller, as far as they are lower."""

import json
import os
import resource
import subprocess
import sys

import pytest

from gridhand.posix.caller_settings import VARIABLE, CallerSettings, own_settings

SHOW = (
    "import json, os, resource, time;"
    "end = time.monotonic() + 20\n"
    "while resource.getrlimit(resource.RLIMIT_CPU)[0] != 1000 and time.monotonic() < end: pass\n"
    "print(json.dumps([os.umask(0), os.getpriority(0, 0), resource.getrlimit(resource.RLIMIT_NOFILE),"
    f" resource.getrlimit(resource.RLIMIT_CORE), os.environ.get({VARIABLE!r})]))"
)


def started(run, place, job, settings):
    env = {"PATH": os.defpath, "GRIDHAND_JOB_ID": job, VARIABLE: settings}
    assert run(job, sys.executable, "-c", SHOW, env=env)["code"] == 0
    return json.loads(place.output(job))


def test_a_command_has_them_and_the_next_one_has_its_own(run, place):
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    given = f"umask=077 nice={nice + 3} nofile=100:200 core=0:0 cpu=1000:2000"
    assert started(run, place, "a", given) == [0o077, nice + 3, [100, 200], [0, 0], None]
    umask, its_nice, files, *_ = started(run, place, "b", "umask=022 cpu=1000:2000")
    assert (umask, its_nice) == (0o022, nice)
    assert files[1] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_no_hard_limit_is_raised(run, place):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, _, its_files, *_ = started(
        run, place, "a", f"nofile={files[1] + 5}:{files[1] + 5} cpu=1000:-1"
    )
    assert its_files == [files[1], files[1]]


RAISE = """
import resource, subprocess
from gridhand.posix.caller_settings import CallerSettings
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
settings = CallerSettings.read("nofile=300:400")
with settings.inherited():
    child = subprocess.Popen(["sleep", "60"])
settings.complete(child.pid)
print(resource.prlimit(child.pid, resource.RLIMIT_NOFILE))
child.kill()
"""


def test_no_hard_limit_is_raised_where_the_system_would_permit_it():
    done = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=True)
    assert done.stdout == "(200, 200)\n"


def test_what_is_read_is_what_was_written():
    settings = CallerSettings.read(own_settings())
    assert settings.limits["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert settings.nice == os.getpriority(os.PRIO_PROCESS, 0)
    umask = os.umask(0o027)
    try:
        assert CallerSettings.read(own_settings()).umask == 0o027
    finally:
        os.umask(umask)


NONSENSE = {
    "no number": "umask=9 nice=x nofile=1",
    "an unknown limit": "dreams=1:2",
    "nothing": "",
}


@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE)
def test_what_makes_no_sense_is_left_out(text):
    assert CallerSettings.read(text) == CallerSettings(None, None, {})
