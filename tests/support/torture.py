"""A machine under torture: jobs and holders that lock what they were given, and faults at random.

Every job and every holder takes a lock of the kernel on each core and device that it has to itself,
and on the name of its job. A lock that another has is a promise made twice; the kernel frees it
when its process is gone, not before.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import psutil

from grid_machine import Machine

PYTHON = sys.executable
# More of them would run for minutes after the last fault: two cores end one or two in a second.
MOST_OPEN = 40
# Jobs of an ordinary user are started by these, as the user has them.
_AS_USER = ["setpriv", "--reuid", "{uid}", "--regid", "{uid}", "--clear-groups", "--"]

JOB = """
import fcntl, os, sys, time
folder, seconds, code = sys.argv[1:4]
job, attempt = os.environ["GRIDHAND_JOB_ID"], os.environ["GRIDHAND_ATTEMPT"]
names = ["job-" + job]
if float(os.environ["GRIDHAND_CPUS"]) >= 1:
    names += [f"core-{core}" for core in os.sched_getaffinity(0)]
names += ["device-" + id for id in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if id]
def note(file, text):
    with open(f"{folder}/{file}", "a") as notes: notes.write(text + "\\n")
kept = []
for name in names:
    kept.append(os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT, 0o666))
    try: fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: note("violations", f"{name} is in use: job {job} attempt {attempt}")
note("runs", f"{job} {attempt}")
time.sleep(float(seconds))
sys.exit(int(code))
"""

HOLDER = """
import fcntl, os, random, sys, time
from gridhand import Grid, GridError
folder, seed = sys.argv[1:3]
chance = random.Random(int(seed))
while not os.path.exists(f"{folder}/over"):
    try:
        with Grid() as grid, grid.allocate(gpu=1, cpu=0, wait=20) as held:
            file = os.open(f"{folder}/device-{held.gpus[0]}", os.O_RDWR | os.O_CREAT, 0o666)
            try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with open(f"{folder}/violations", "a") as notes:
                    notes.write(f"{held.gpus[0]} is in use: holder {held.id}\\n")
            with open(f"{folder}/held", "a") as notes: notes.write(held.id + "\\n")
            time.sleep(chance.uniform(0.1, 3))
            os.close(file)
    except GridError as error:
        time.sleep(0.2)
"""


class TorturedMachine(Machine):
    """A machine whose commands are run by root or by an ordinary user, on either store."""

    def __init__(self, home, *, uid=0, python=PYTHON, store=None, **variables):
        super().__init__(home, **variables)
        self.store = store  # the address of a database; none for a file in the home
        as_user = [word.format(uid=uid) for word in _AS_USER] if uid else []
        self.python = [*as_user, str(python)]
        self.command = [*self.python, "-m", "gridhand.cli.main"]

    def grid(self, *words, timeout=120, check=None, **more):
        done = subprocess.run(
            [*self.command, *map(str, words)],
            env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, check=False, **more,
        )  # fmt: skip
        if check is not None:
            assert done.returncode == check, f"{words}: {done.returncode}\n{done.stderr}"
        return done

    def json(self, command, *words):
        return json.loads(self.grid(command, "--json", *words, check=0).stdout)

    def asked(self, ask, *words):
        return self.json(*words)

    def check(self):
        words = ["--store", self.store or self.home / "grid.db"]
        report = self.json("check", *words)
        assert report["clean"], report["violations"]

    def launch(self, command, **more):
        started = subprocess.Popen(
            command, env=self._environment(), stdin=subprocess.DEVNULL, text=True, **more
        )
        self._clients.append(started)
        return started


class Faults(threading.Thread):
    """Does harm at random moments, and counts it."""

    KINDS = (
        "kill_controller", "kill_controller", "kill_agent", "kill_both", "stop_gracefully",
        "terminate_controller", "hang_controller", "hang_agent", "remove_socket",
        "remove_inner_socket", "kill_client",
    )  # fmt: skip
    HARSH = ("kill_starter", "lose_journal")
    ON_SQLITE = ("remove_database",)
    ON_POSTGRES = ("restart_database",)

    def __init__(self, machine, stream, seed, kinds):
        super().__init__(daemon=True)
        self.machine, self.stream, self.kinds = machine, stream, kinds
        self.chance = random.Random(seed)
        self.counts = Counter()
        self.failure = None
        self._over = threading.Event()

    def run(self):
        while not self._over.wait(self.chance.uniform(0.2, 4)):
            kind = self.chance.choice(self.kinds)
            try:
                getattr(self, kind)()
                self.counts[kind] += 1
            except (psutil.Error, FileNotFoundError):
                pass  # there was nothing to harm just now
            except BaseException as error:
                self.failure = error
                raise

    def finish(self):
        self._over.set()
        self.join()

    def _processes(self, module):
        return [one for one in self.machine.processes() if module in one.info["cmdline"]]

    def _controllers(self):
        return [one for one in self._processes("gridhand.cli.main") if "serve" in one.cmdline()]

    def _agents(self):
        return self._processes("gridhand.agent.main")

    def _signal(self, processes, signum):
        for one in processes:
            one.send_signal(signum)

    def kill_controller(self):
        self._signal(self._controllers(), signal.SIGKILL)

    def kill_agent(self):
        self._signal(self._agents(), signal.SIGKILL)

    def kill_both(self):
        self.kill_controller()
        self.kill_agent()

    def kill_starter(self):
        self._signal(self._processes("gridhand.agent.starter"), signal.SIGKILL)

    def lose_journal(self):
        journal = self.machine.home / "starter" / "journal"
        if self.chance.random() < 0.5:
            journal.unlink()
        else:
            os.truncate(journal, journal.stat().st_size // 2)
        self.kill_starter()
        if self.chance.random() < 0.5:
            self.kill_agent()

    def stop_gracefully(self):
        self.machine.grid("stop", "--keep-jobs")

    def terminate_controller(self):
        self._signal(self._controllers(), signal.SIGTERM)

    def hang_controller(self):
        self._hang(self._controllers())

    def hang_agent(self):
        self._hang(self._agents())

    def _hang(self, processes):
        self._signal(processes, signal.SIGSTOP)
        self._over.wait(self.chance.uniform(0.5, 8))
        for one in processes:
            with contextlib.suppress(psutil.Error):
                one.send_signal(signal.SIGCONT)

    def remove_socket(self):
        (self.machine.home / "socket").unlink()

    def remove_inner_socket(self):
        (self.machine.home / self.chance.choice(("agent", "starter")) / "socket").unlink()

    def kill_client(self):
        waiting = [client for client in list(self.stream.attached) if client.poll() is None]
        if waiting:
            client = self.chance.choice(waiting)
            client.kill()
            self.stream.killed.add(client)

    def restart_database(self):
        """Kill PostgreSQL, and start it again after a while."""
        self.stream.server.kill()
        self._over.wait(self.chance.uniform(0, 3))
        self.stream.server.start()

    def remove_database(self):
        """Remove the files of SQLite under a controller that lives, which writes them anew."""
        if self.machine.grid("status").returncode:
            return
        for path in self.machine.home.glob("grid.db*"):
            if path.suffix in (".db", ".db-wal", ".db-shm"):
                path.unlink()
        self._over.wait(self.chance.uniform(0, 2))
        repaired = self.machine.grid("doctor", "--repair")
        assert (self.machine.home / "grid.db").exists(), repaired.stdout + repaired.stderr


class Stream:
    """Jobs that come all the time, and what is known of each."""

    def __init__(self, machine, folder, chance, server=None):
        self.machine, self.folder, self.chance, self.server = machine, folder, chance, server
        self.acknowledged = {}  # by id: the exit code to come
        self.attached = {}  # by client: the exit code to come
        self.killed = set()
        self.ended = {}  # by client: what it wrote
        self.counts = Counter()

    def _words(self):
        code = self.chance.randrange(100)
        seconds = self.chance.choice((0, 0.1, 0.5, 2, 4))
        shape = self.chance.choice(
            (["-c", "1"], ["-c", "1"], ["-c", "0.01"], ["-c", "0.01", "--gpus", "1"])
        )
        job = [
            self.machine.python[-1],
            "-I",
            "-S",
            "-c",
            JOB,
            str(self.folder),
            str(seconds),
            str(code),
        ]
        return code, [*shape, "--", *job]

    def crowded(self):
        """Whether enough jobs are open; if the controller does not tell, there is room."""
        done = self.machine.grid("jobs", "--state", "open", "--json")
        return done.returncode == 0 and len(json.loads(done.stdout)) >= MOST_OPEN

    def submit(self):
        code, words = self._words()
        done = self.machine.grid("run", "--detach", "--json", *words)
        if done.returncode == 0:
            self.acknowledged[json.loads(done.stdout)["id"]] = code
        else:
            assert "error:" in done.stderr, done.stderr
            self.counts["not acknowledged"] += 1

    def attach(self):
        code, words = self._words()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        client = self.machine.launch([*self.machine.command, "run", *words], **pipes)
        self.attached[client] = code

    def hold(self, seed):
        words = [*self.machine.python, "-c", HOLDER, str(self.folder), str(seed)]
        return self.machine.launch(words)

    def violations(self):
        path = self.folder / "violations"
        return path.read_text().splitlines() if path.exists() else []

    def runs(self):
        path = self.folder / "runs"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()


def torture(machine, stream, faults, *, seconds):
    """Let jobs, holders and faults run for a while; then let everything come to its end."""
    end = time.monotonic() + seconds
    holders = [stream.hold(seed) for seed in range(3)]
    faults.start()
    try:
        while time.monotonic() < end and not (stream.violations() or faults.failure):
            if stream.crowded():
                time.sleep(0.5)
                continue
            stream.submit()
            if stream.chance.random() < 0.2:
                stream.attach()
    finally:
        faults.finish()
        (stream.folder / "over").touch()
    for process in holders:
        process.communicate(timeout=180)
    for client in stream.attached:
        stream.ended[client] = client.communicate(timeout=180)
