"""The kind of task that a job is."""

import pytest

from gridhand.core.jobs.job import JobSpec
from gridhand.core.jobs.task_kind import task_kind
from gridhand.core.model.requests import Request

KINDS = {
    "a stated type wins": (["python3", "train.py"], "nightly", "nightly"),
    "a program is known by its name": (["/usr/bin/ffmpeg", "-i", "a.mp4"], None, "ffmpeg"),
    "an interpreter by its script": (
        ["python3.11", "-u", "/w/train.py", "x.csv"],
        None,
        "train.py",
    ),
    "code on the command line is no script": (["python3", "-c", "import a.b"], None, "python3"),
    "a shell without a script is itself": (["sh", "-c", "echo 1; exit"], None, "sh"),
}


@pytest.mark.parametrize(("command", "type", "kind"), KINDS.values(), ids=KINDS)
def test_the_kind_of_a_task(command, type, kind):
    work = JobSpec("ann", tuple(command), "/", Request.of(cpu=1), task_type=type)
    assert task_kind(work) == kind
