"""The small disks of tests: those of a killed run do not stay."""

import os
import subprocess
import sys

import small_disk

MOUNT = f"""
import os, sys
sys.path.append({os.path.dirname(small_disk.__file__)!r})
from small_disk import small_disk
with small_disk(sys.argv[1], "64k"):
    os.kill(os.getpid(), 9)
"""


def test_the_next_run_removes_the_disks_of_a_killed_one_alone(tmp_path):
    left, used = tmp_path / "left behind", tmp_path / "used"
    left.mkdir()
    used.mkdir()
    with small_disk.small_disk(used, "64k"):
        subprocess.run([sys.executable, "-c", MOUNT, left], check=False)
        assert os.path.ismount(left)
        small_disk.remove_leftovers()
        assert os.path.ismount(used)
        assert not os.path.ismount(left)
    assert not os.path.ismount(used)
