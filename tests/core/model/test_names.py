"""The name of a job may be any printable text, as in Slurm."""

import pytest

from gridhand import InvalidName, Request
from gridhand.core.jobs.spec import JobSpec

TITLES = ["train", "my job", "a & b; c", "Näherung #3 (final)", "x" * 200, "-"]
WRONG = {
    "two lines": "a\nb",
    "what a terminal would obey": "a\033[2Jb",
    "a tab": "a\tb",
    "what turns a line around": "a\u202eb",
    "a name that is no text": "a\udcffb",
    "only spaces": "   ",
    "nothing": "",
    "without end": "x" * 201,
    "a number": 7,
}


def work(name):
    return JobSpec("ann", ("true",), "/", Request.of(cpu=1), name=name)


@pytest.mark.parametrize("name", TITLES)
def test_a_job_may_be_called_so(name):
    assert work(name).name == name


@pytest.mark.parametrize("name", WRONG.values(), ids=WRONG)
def test_a_job_may_not_be_called_so(name):
    with pytest.raises(InvalidName) as caught:
        work(name)
    assert str(caught.value).startswith("name: ")
    assert "can be shown on one line" in caught.value.hint
