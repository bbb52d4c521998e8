"""Everything at once, from one seed: what ran, ran once, and everybody was told."""

import collections
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError

import cloudpickle
import pytest

from gridhand import WorkerLost, task

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CALLS = 1500


def note(path, text):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, text.encode())
    os.close(fd)


@task(cpu=0.2)
def work(path, number, seconds, dies):
    note(path, f"{number} {os.getpid()}\n")
    if seconds:
        time.sleep(seconds)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def noted(path):
    """What ran, and in which process."""
    text = path.read_text() if path.exists() else ""
    return [tuple(map(int, line.split())) for line in text.splitlines()]


def kill_some(path, rng):
    """Workers that have just run something; none else can have their pids within so little time."""
    for _ in range(6):
        time.sleep(0.15)
        if found := noted(path):
            pid = rng.choice(found[-20:])[1]
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    if "gridhand/worker" in file.read():
                        os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


@pytest.mark.parametrize("seed", [1, 2])
def test_what_ran_ran_once_and_everybody_is_told(grid, tmp_path, seed):
    rng, path = random.Random(seed), tmp_path / "ran"
    shapes = [work, work.options(cpu=1), work.options(cpu=0.5, memory="300MB")]
    killer = threading.Thread(target=kill_some, args=(path, random.Random(seed)))
    killer.start()
    futures, dying = [], set()
    for number in range(CALLS):
        kind = rng.random()
        seconds = 0 if kind < 0.9 else rng.choice([0.001, 0.003, 0.02, 0.1])
        if kind > 0.997:
            dying.add(number)
        futures.append(rng.choice(shapes).submit(str(path), number, seconds, number in dying))
        if rng.random() < 0.01:
            futures[-1].cancel()
        if rng.random() < 0.005:
            rng.choice(futures).stop()
    ends = collections.Counter()
    for number, future in enumerate(futures):
        try:
            assert future.result(60) == number
            assert number not in dying
            ends["returned"] += 1
        except (CancelledError, WorkerLost) as error:
            ends[type(error).__name__] += 1
    killer.join()
    ran = collections.Counter(number for number, _ in noted(path))
    assert [number for number, count in ran.items() if count > 1] == []
    assert all(number in ran for number, one in enumerate(futures) if one._state == "FINISHED")
    assert ends["WorkerLost"] <= len(dying) + 6
    assert ends["returned"] > 0.9 * CALLS
