"""The controller's log: written by another, so that nobody waits for who reads it."""

import os
import subprocess
import sys

SCRIPT = """
import logging, sys
from gridhand.api.server_log import log_in_thread

with log_in_thread():
    for number in range(int(sys.argv[1])):
        logging.getLogger("gridhand").warning("line %d %s", number, "x" * 100)
    print("done", flush=True)
"""


def start(count):
    words = [sys.executable, "-c", SCRIPT, str(count)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def test_everything_is_written_in_order():
    out, err = start(2000).communicate(timeout=60)
    assert out == "done\n"
    lines = err.splitlines()
    assert [line.split()[4] for line in lines] == [str(number) for number in range(2000)]
    assert " WARNING line 0 " in lines[0]


def test_nobody_waits_for_a_pipe_that_is_not_read():
    """A terminal on Ctrl-S would else stop every job of the machine."""
    process = start(30_000)  # some 4 MB, into a pipe that holds 64 kB
    assert process.stdout.readline() == "done\n"
    assert process.wait(60) == 0  # and it can end
    process.stdout.close()
    process.stderr.close()
