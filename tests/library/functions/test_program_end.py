"""Programs that end before their calls do: what they say, and how their slots are listed."""

import signal
import subprocess
import sys

import pytest

from until import until

PROGRAM = """
import sys, time
from gridhand import task


@task(cpu=0.1)
def work(seconds):
    time.sleep(seconds)


long = [work.submit(600) for _ in range({count})]
work.options(cpu=0.2).submit(0).result()  # its slot is idle then
while not all(one.running() for one in long):
    time.sleep(0.01)
print("running", flush=True)
{end}
"""


def start(end, count=2):
    program = PROGRAM.format(end=end, count=count)
    command = [sys.executable, "-c", program]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "running\n", started.communicate()[1]
    return started


@pytest.fixture
def new_jobs(grid):
    """The jobs since the test began, once all of them are over."""
    before = {job.id for job in grid.jobs(limit=10_000)}

    def over():
        jobs = [job for job in grid.jobs(limit=10_000) if job.id not in before]
        return jobs if all(job.state not in ("queued", "running") for job in jobs) else None

    return lambda: until(over)


def test_the_slots_of_a_program_that_was_killed_are_cancelled(new_jobs):
    program = start("time.sleep(600)")
    program.send_signal(signal.SIGKILL)
    program.communicate()
    jobs = new_jobs()
    assert len(jobs) >= 2
    ends = {(job.state, job.reason) for job in jobs}
    # One that was idle may have been given back a moment before.
    assert ("cancelled", "client_gone") in ends
    assert ends <= {("cancelled", "client_gone"), ("succeeded", "exit")}


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "grid: 1 call was stopped with this program; detach=True lets calls go on\n"),
        (2, "grid: 2 calls were stopped with this program; detach=True lets calls go on\n"),
    ],
)
def test_a_program_that_ends_before_its_calls_says_how_many_it_stops(count, said, new_jobs):
    program = start("", count)
    _, errors = program.communicate(timeout=60)
    assert (errors, program.returncode) == (said, 0)
    new_jobs()


def test_a_program_whose_calls_have_ended_says_nothing(new_jobs):
    program = start("for one in long: one.stop()")
    _, errors = program.communicate(timeout=60)
    assert (errors, program.returncode) == ("", 0)
    new_jobs()
