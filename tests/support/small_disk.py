"""A small file system of a test's own. If a run is killed, the next one removes what it left."""

import contextlib
import os
import subprocess

import pytest

from gridhand.posix import procfs

_SOURCE = "gridhand-test"  # what /proc/mounts shows for it, with the process that mounted it


@contextlib.contextmanager
def small_disk(folder, size):
    """Mount `size` (as 32k or 6m) over `folder` for a while; skip the test where none may."""
    pid, start = procfs.read_process(os.getpid()).identity
    options = f"size={size},mode=0700"
    command = ["mount", "-t", "tmpfs", "-o", options, f"{_SOURCE}-{pid}-{start}", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield
    finally:
        _unmount(str(folder))


def remove_leftovers():
    """Unmount the disks of test runs that are gone: nothing else could empty their folders."""
    with open("/proc/mounts") as mounts:
        ours = [line.split()[:2] for line in mounts if line.startswith(f"{_SOURCE}-")]
    for source, folder in ours:
        pid, start = map(int, source.split("-")[-2:])
        if not procfs.is_alive(pid, start):
            _unmount(folder.replace("\\040", " "))


def _unmount(folder):
    # Lazily, as a process may still have a file open there.
    subprocess.run(["umount", "--lazy", folder], check=False)
