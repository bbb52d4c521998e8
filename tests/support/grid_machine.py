"""A controller of its own in a home of its own, its agent and starter, and `grid` beside it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import psutil
from sqlalchemy import select

from gridhand.cli.main import COMMANDS, make_cli, run
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.core.errors import ControllerUnavailable
from gridhand.home import Home
from gridhand.store.reader import reading
from gridhand.store.sql import schema
from until import until

GRID = [sys.executable, "-m", "gridhand.cli.main"]
PATIENCE_S = 60


class Machine:
    """Everything below `home`; nothing of it is left at the end."""

    def __init__(self, home, **variables):
        self.home = Path(home)
        self.env = {
            name: text for name, text in os.environ.items() if not name.startswith("GRIDHAND_")
        }
        self.env |= {"GRIDHAND_HOME": str(self.home), **variables}
        self._clients = []
        self._first = True

    # ---- commands

    def _environment(self):
        """Only the first command, which starts the controller, is measured for coverage.

        Those that follow would each write a file of what `tests/cli` covers anyway, and take
        twice as long.
        """
        first, self._first = self._first, False
        if first:
            return self.env
        return {name: text for name, text in self.env.items() if not name.startswith("COVERAGE_")}

    def grid(self, *words, input=None, timeout=PATIENCE_S, check=None, **more):
        """Run one `grid` command to its end; `check` is the exit code it must have."""
        done = subprocess.run(
            [*GRID, *map(str, words)],
            env=self._environment(),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **more,
        )
        if check is not None:
            assert done.returncode == check, f"{words}: {done.returncode}\n{done.stderr}"
        return done

    def json(self, command, *words):
        """What a command tells in JSON. It runs in this process: an interpreter for each takes long."""
        if self._first:
            return json.loads(self.grid(command, "--json", *words, check=0).stdout)
        out = io.StringIO()
        line = [command, "--json", *map(str, words)]
        with patch.dict(os.environ, self.env, clear=True), contextlib.redirect_stdout(out):
            code = run(make_cli(COMMANDS), line)
        assert code == 0, f"{line}: {code}"
        return json.loads(out.getvalue())

    def run(self, *words, **more):
        return self.grid("run", *words, **more)

    def start(self, *words, **more):
        """A `grid` command that goes on beside the test."""
        started = subprocess.Popen(
            [*GRID, *map(str, words)],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )
        self._clients.append(started)
        return started

    def detach(self, *words):
        """Submit a job and answer its id."""
        return self.json("run", "--detach", *words)["id"]

    def asked(self, ask, *words):
        """What the controller answers, in no time: tests ask often, and a command takes a while.

        If none is there it is the command with these words, which starts one and prints the same.
        """
        try:
            with Client(Address(Home(str(self.home)).socket), timeout_s=PATIENCE_S) as client:
                return ask(client)
        except ControllerUnavailable:
            return self.json(*words)

    def job(self, id):
        return self.asked(lambda client: client.job(id), "show", id)

    def state(self, id):
        return self.job(id)["state"]

    def jobs(self, limit=10_000):
        words = ("jobs", "--all", "--limit", limit)
        listed = self.asked(lambda client: client.jobs(limit=limit), *words)
        return {job["id"]: job for job in listed}

    def wait(self, *ids, timeout=PATIENCE_S):
        """The jobs once they are over, by id."""

        def over():
            jobs = self.jobs()
            found = {id: jobs[id] for id in ids if id in jobs}
            done = all(job["state"] not in ("queued", "running") for job in found.values())
            return found if len(found) == len(ids) and done else None

        return until(over, timeout)

    # ---- processes

    def status(self):
        return self.asked(lambda client: client.status(), "status")

    @property
    def controller(self):
        return psutil.Process(self.status()["controller"]["pid"])

    @property
    def agent(self):
        return self._daemon("gridhand.agent.main")

    @property
    def starter(self):
        return self._daemon("gridhand.agent.starter")

    def _daemon(self, module):
        for one in self.processes():
            if module in one.info["cmdline"]:
                return one
        raise AssertionError(f"no {module} runs in {self.home}")

    def processes(self):
        """Whatever was started in this home: it is in their words or their environment."""
        found = []
        for one in psutil.process_iter(["pid", "cmdline", "status"]):
            if one.info["status"] == psutil.STATUS_ZOMBIE or one.pid == os.getpid():
                continue
            words = " ".join(one.info["cmdline"] or ())
            with contextlib.suppress(psutil.Error):
                home = one.environ().get("GRIDHAND_HOME")
                if f"{self.home}/" in words or home == str(self.home):
                    found.append(one)
        return found

    def kill(self, process):
        """As with kill -9, and waits until it is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)

    # ---- what must always be so

    def check(self):
        """Nothing is promised twice or lost, as `grid check` tells; and each ended once."""
        report = self.json("check", "--store", self.home / "grid.db")
        assert report["clean"], report["violations"]
        return report

    def events(self):
        with reading(str(self.home / "grid.db")) as (_, connection):
            rows = connection.execute(select(schema.events).order_by(schema.events.c.number))
            return [dict(row) for row in rows.mappings()]

    def check_each_ended_once(self):
        ended = Counter(
            event["subject"]
            for event in self.events()
            if event["kind"] in ("job.ended", "allocation.released", "allocation.lost")
        )
        assert set(ended.values()) <= {1}, ended

    def close(self):
        for client in self._clients:
            if client.poll() is None:
                client.kill()
            client.communicate()
        deadline = time.monotonic() + PATIENCE_S
        while left := self.processes():
            assert time.monotonic() < deadline, left
            for one in left:
                with contextlib.suppress(psutil.Error):
                    one.kill()
            psutil.wait_procs(left, timeout=1)
