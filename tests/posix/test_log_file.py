"""Logs of daemons stay bounded; the output of a user's own command is left alone."""

import subprocess
import sys

import pytest

WRITER = """
import os, sys
from gridhand.posix.log_file import rotate_log
for number in range(30):
    os.write(2, b"%09d\\n" % number)
    rotate_log(sys.argv[1], 100)
"""


@pytest.fixture
def write(tmp_path):
    def write(to, watched):
        with open(tmp_path / to, "ab") as file:
            command = [sys.executable, "-c", WRITER, str(tmp_path / watched)]
            subprocess.run(command, stdout=file, stderr=file, check=True)
        return {found.name: found.read_text() for found in tmp_path.iterdir()}

    return write


def test_a_log_that_has_grown_too_large_begins_anew(write):
    """Row 81: two files of about the limit are kept, and the newest lines."""
    files = write("log", "log")
    assert files.keys() == {"log", "log.1"}
    assert sum(map(len, files.values())) <= 2 * 110
    assert (files["log.1"] + files["log"]).endswith("000000028\n000000029\n")


def test_output_that_goes_elsewhere_is_left_alone(write, tmp_path):
    (tmp_path / "log").write_text("of an earlier one\n")
    files = write("mine", "log")
    assert files.keys() == {"log", "mine"}
    assert len(files["mine"]) == 300


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from gridhand.posix.log_file import rotate_log
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
os.write(2, b"x" * 200)
rotate_log(sys.argv[1], 100)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
os.write(2, b"before")
rotate_log(sys.argv[1], 100)
os.write(2, b"after")
"""


def test_a_process_without_descriptors_keeps_the_log_that_it_has(tmp_path):
    """Row 81: it is still at its place, and begins anew when there are descriptors again."""
    with open(tmp_path / "log", "ab") as file:
        command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path / "log")]
        subprocess.run(command, stderr=file, check=True)
    files = {found.name: found.read_text() for found in tmp_path.iterdir()}
    assert files == {"log": "after", "log.1": "x" * 200 + "before"}
