"""Jobs for minutes on end while everything around them is killed, and a very long queue.

`GRIDHAND_SOAK_MINUTES` says how long; a seed is printed, and `GRIDHAND_SOAK_SEED` takes it again.
"""

import contextlib
import os
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from grid_machine import Machine
from gridhand.client.controller_finder import connect
from gridhand.core.errors import ControllerUnavailable
from until import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(6 * 3600)]

MINUTES = float(os.environ.get("GRIDHAND_SOAK_MINUTES", "5"))
SEED = int(os.environ.get("GRIDHAND_SOAK_SEED", time.time_ns() % 10**9))
PYTHON = sys.executable
SMALL = ("-c", "0.01")
MB = 10**6
PAGE = 1000
QUEUED = 100_000
SAMPLE = 1_000
GAVE_UP = 125


@pytest.fixture
def machine(tmp_path, monkeypatch):
    machine = Machine(tmp_path / "home")
    monkeypatch.setenv("GRIDHAND_HOME", str(machine.home))
    monkeypatch.delenv("GRIDHAND_ADDRESS", raising=False)
    try:
        yield machine
        machine.check()
        machine.check_each_ended_once()
        assert machine.status()["allocated"] == {}, "something is held though nothing runs"
    finally:
        machine.close()


def say(text):
    print(f"\n    {text}", end="", flush=True)


def all_jobs(client):
    """Every job there is, however many, by id."""
    found, before = {}, None
    while some := client.jobs(limit=PAGE, before=before):
        found |= {job["id"]: job for job in some}
        before = some[-1]["id"]
    return found


# ---- everything is killed


class Stream:
    """Jobs that come all the time, each with an end of its own, and notes of what it must be."""

    def __init__(self, machine, folder, chance):
        self.machine, self.chance = machine, chance
        self.runs = folder / "runs"
        self.detached = {}  # by id
        self.attached = {}  # by name: the client, and the code to come
        self.killed = set()  # names of those whose client was, or gave up
        self.counts = Counter()

    def script(self, code):
        seconds = self.chance.choice((0, 0, 0.1, 0.5, 2, 5))
        return f"echo $GRIDHAND_JOB_ID >> {self.runs}; sleep {seconds}; echo {code}; exit {code}"

    def submit(self, client):
        code = self.chance.randrange(100)
        order = {
            "command": ["sh", "-c", self.script(code)],
            "folder": "/",
            "environment": {"PATH": os.defpath},
            "request": {"cpu": 0.01},
            "detached": True,
        }
        op_id = f"soak-{len(self.detached)}"
        [job] = self.insist(lambda: client.submit(order, op_id=op_id))
        assert job["id"] not in self.detached, "one job for two calls"
        self.detached[job["id"]] = code

    def insist(self, call):
        """The answer, asked for again where the controller was killed while it was starting."""
        while True:
            try:
                return call()
            except ControllerUnavailable:
                self.counts["calls repeated"] += 1

    def attach(self):
        code = self.chance.randrange(100)
        name = f"attached-{len(self.attached)}"
        words = ("run", *SMALL, "-q", "-J", name, "--", "sh", "-c", self.script(code))
        self.attached[name] = self.machine.start(*words), code

    def waiting(self):
        return [name for name, (client, _) in self.attached.items() if client.poll() is None]


class Killer(threading.Thread):
    """Kills one or another at random moments."""

    def __init__(self, machine, stream, seed):
        super().__init__(daemon=True)
        self._machine, self._stream = machine, stream
        self._chance = random.Random(seed)
        self._end = threading.Event()

    def run(self):
        while not self._end.wait(self._chance.uniform(0.5, 6)):
            getattr(
                self, self._chance.choice(("controller", "controller", "agent", "both", "client"))
            )()

    def finish(self):
        self._end.set()
        self.join()

    def controller(self):
        self._kill("controller", "gridhand.cli.main")

    def agent(self):
        self._kill("agent", "gridhand.agent.main")

    def both(self):
        self.controller()
        self.agent()

    def client(self):
        waiting = self._stream.waiting()
        if waiting:
            name = self._chance.choice(waiting)
            self._stream.killed.add(name)
            self._stream.attached[name][0].kill()
            self._stream.counts["clients killed"] += 1

    def _kill(self, what, module):
        for one in self._machine.processes():
            words = one.info["cmdline"]
            if module in words and (what != "controller" or "serve" in words):
                with contextlib.suppress(psutil.Error):
                    one.kill()
                    self._stream.counts[f"{what}s killed"] += 1


def test_a_stream_of_jobs_while_everything_around_them_is_killed(machine, tmp_path):
    say(f"seed {SEED}, {MINUTES:g} minutes")
    chance = random.Random(SEED)
    stream = Stream(machine, tmp_path, chance)
    killer = Killer(machine, stream, SEED + 1)
    begin = time.monotonic()
    with connect() as client:
        killer.start()
        try:
            while time.monotonic() - begin < MINUTES * 60:
                stream.submit(client)
                if chance.random() < 0.05 and len(stream.waiting()) < 8:
                    stream.attach()
                time.sleep(chance.uniform(0, 0.1))
        finally:
            killer.finish()
        until(lambda: not stream.insist(lambda: client.jobs(states=["open"], limit=1)), seconds=180)
        jobs = all_jobs(client)
    seconds = time.monotonic() - begin
    codes = check_attached(stream)
    check_ends(stream, jobs)
    say(f"{len(jobs)} jobs in {seconds:.0f} s; {dict(stream.counts)}; ends of clients: {codes}")


def check_attached(stream):
    """A client that was not killed ended with the code of its job, whatever else was."""
    codes = Counter()
    for name, (client, code) in stream.attached.items():
        out, err = client.communicate(timeout=120)
        if name in stream.killed:
            codes["killed"] += 1
            continue
        if client.returncode == GAVE_UP:  # the controller that it started was killed meanwhile
            assert "controller" in err, err
            codes["gave up"] += 1
            stream.killed.add(name)
            continue
        codes["right"] += 1
        assert client.returncode == code, (name, code, out, err)
        assert out == f"{code}\n", (name, out, err)
    return dict(codes)


def check_ends(stream, jobs):
    runs = Counter(stream.runs.read_text().split())
    for id, code in stream.detached.items():
        job = jobs[id]
        state = "failed" if code else "succeeded"
        assert (job["state"], job["exit_code"]) == (state, code), job
        assert (len(job["attempts"]), runs[id]) == (1, 1), job
    by_name = {job["name"]: job for job in jobs.values() if job["name"] in stream.attached}
    for name, (_, code) in stream.attached.items():
        if name in stream.killed:
            job = by_name.get(name)  # its client may have been killed before it was submitted
            assert job is None or runs[job["id"]] <= 1
            assert job is None or job["exit_code"] == code or job["reason"] == "client_gone", job
        else:
            assert runs[by_name[name]["id"]] == 1, by_name[name]
    strangers = jobs.keys() - stream.detached.keys() - {job["id"] for job in by_name.values()}
    assert not strangers, "jobs that nobody has submitted"


# ---- a very long queue


def test_a_hundred_thousand_waiting_jobs(machine):
    """They cost less than 300 MB, and who submits one more does not wait twice as long."""
    cores = machine.status()["total"]["cpu"]
    blocker = machine.detach("-c", cores, "--", "sleep", "36000")
    until(lambda: machine.job(blocker)["phase"] == "running")
    controller = machine.controller
    with connect() as client:
        rate(client, 100)
        before = controller.memory_info().rss
        empty = rate(client, SAMPLE)
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            left = (QUEUED - SAMPLE - 100) // 4
            list(pool.map(lambda _: rate(client, left), range(4)))
        filling = 4 * left / (time.monotonic() - began)
        full = rate(client, SAMPLE)
        added = controller.memory_info().rss - before
        began = time.monotonic()
        counts = client.status()["jobs"]
        took = time.monotonic() - began
    say(f"{counts['queued']:,} queued; {added / MB:.0f} MB more; filled at {filling:.0f}/s")
    say(f"submitted {empty:.0f}/s when empty, {full:.0f}/s when full: ratio {full / empty:.2f}")
    say(f"status in {1000 * took:.0f} ms")
    began = time.monotonic()
    machine.kill(controller)
    machine.grid("status", check=0, timeout=300)
    say(f"another controller had them {time.monotonic() - began:.1f} s after the first was killed")
    began = time.monotonic()
    machine.grid("stop", "--kill-jobs", check=0, timeout=600)
    say(f"all cancelled in {time.monotonic() - began:.1f} s")
    assert added < 300 * MB
    assert full > 0.5 * empty


def rate(client, count):
    """Jobs a second that one caller submits, one after the other, where they have to wait."""
    order = {
        "command": ["true"],
        "folder": "/",
        "environment": {"PATH": os.defpath},
        "request": {"cpu": 1},
        "detached": True,
    }
    began = time.monotonic()
    for _ in range(count):
        client.submit(order)
    return count / (time.monotonic() - began)


# ---- a very long log


def test_gigabytes_of_output_take_no_more_room_than_they_may(machine):
    size = int(float(os.environ.get("GRIDHAND_SOAK_LOG_GB", "5")) * 10**9)
    script = f"echo first; head -c {size} /dev/zero; echo; echo last"
    id = machine.detach("-c", "0.5", "--", "sh", "-c", script)
    job = until(lambda: (job := machine.job(id))["phase"] == "running" and job)
    log = Path(job["logs"]["stdout"])
    agent, controller = machine.agent, machine.controller
    began, most, fattest = time.monotonic(), 0, 0
    while machine.state(id) == "running":
        most = max(most, log.stat().st_blocks * 512)
        fattest = max(fattest, agent.memory_info().rss, controller.memory_info().rss)
        time.sleep(0.2)
    seconds = time.monotonic() - began
    say(f"{size / 10**9:g} GB in {seconds:.0f} s; at most {most / MB:.0f} MB on disk and"
        f" {fattest / MB:.0f} MB of memory of ours")  # fmt: skip
    assert machine.job(id)["exit_code"] == 0
    assert log.stat().st_size == size + len("first\n\nlast\n")
    assert log.stat().st_blocks * 512 < 300 * MB
    assert most < 2_000 * MB, "between two looks it may have more, but not without end"
    assert fattest < 200 * MB
    assert machine.grid("logs", "--tail", 1, id).stdout.strip().endswith("last")
