"""File locks: who has one, who is kept out, and when it is free again."""

import os
import subprocess
import sys
import threading

import pytest

from gridhand.posix import procfs
from gridhand.posix.locks import (
    read_holder,
    sign_lock,
    try_lock,
    try_record_lock,
    wait_for_lock,
)

HOLD = """
import sys
from gridhand.posix import locks
file = open(sys.argv[1], "r+b")
print(getattr(locks, sys.argv[2])(file.fileno()), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def opened(tmp_path):
    """A function that opens the same file again and again."""
    fds = []

    def open_again():
        fds.append(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o600))
        return fds[-1]

    yield open_again
    for fd in fds:
        os.close(fd)


def holder(path, function):
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), function],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_one_open_file_has_the_lock_even_within_a_process(opened):
    first, second = opened(), opened()
    assert try_lock(first)
    assert not try_lock(second)
    assert not try_lock(second, shared=True)
    assert not wait_for_lock(second, 0.05, pause_s=0.01)


def test_shared_locks_keep_out_only_an_exclusive_one(opened):
    first, second, third = opened(), opened(), opened()
    assert try_lock(first, shared=True)
    assert try_lock(second, shared=True)
    assert not try_lock(third)


def test_a_lock_is_waited_for(opened, tmp_path):
    first, second = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT), opened()
    assert try_lock(first)
    threading.Timer(0.1, os.close, [first]).start()
    assert wait_for_lock(second)


@pytest.mark.parametrize("function", ["try_lock", "try_record_lock"])
def test_a_lock_goes_with_the_process_that_has_it(opened, tmp_path, function):
    take = {"try_lock": try_lock, "try_record_lock": try_record_lock}[function]
    fd = opened()
    with holder(tmp_path / "lock", function) as other:
        assert other.stdout.readline() == "True\n"
        assert not take(fd)
        other.kill()
        other.wait()
        assert take(fd)


def test_a_signed_lock_names_its_process_as_long_as_that_runs(tmp_path):
    path = tmp_path / "lock"
    assert read_holder(str(path)) is None
    path.write_text("nonsense\n")
    assert read_holder(str(path)) is None
    with open(path, "r+b") as file:
        sign_lock(file.fileno())
    assert read_holder(str(path)) == procfs.read_process(os.getpid()).identity
    path.write_text(f"{os.getpid()} 1\n")  # an earlier process had this pid
    assert read_holder(str(path)) is None
