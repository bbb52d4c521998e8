"""`grid config reload` on a real controller that has work: it changes nothing that runs."""

import itertools
import threading

import pytest

from grid_machine import Machine
from gridhand import Grid
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.config.config_errors import InvalidConfig
from gridhand.home import Home
from until import until

# It notes each of its starts, waits at the gate, and ends with the code that it was given.
WAIT = 'echo $$ >> "$1"; until [ -e "$2" ]; do sleep 0.05; done; exit "$3"'
NOTE = 'echo $$ >> "$1"'
RUNNING = 6
BETWEEN = 3  # submissions that are accepted and end between two reloads

#    file                                                                       what changes by it
FILES = [
    ("strategy: spread",                                                        {"strategy"}),
    ("strategy: pack\nretention: {jobs: 1d}\nmemory_granularity: 100MB",        {"strategy", "retention", "memory_granularity"}),
    ("admin_group: root\nstrategy: pack",                                       {"admin_group", "retention", "memory_granularity"}),
    ("name: other\nqueues: {night: {}}\nadmin_group: root",                     {"strategy"}),
    ("stratgy: pack\nretention: {jobs: 0}",                                     None),
    ("memory_granularity: 1GB\nquotas: {ann: {max_queued_jobs: 1}}",            {"admin_group", "memory_granularity"}),
    ("name: lab",                                                               {"memory_granularity"}),
]  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text("name: lab\n")
    return path


@pytest.fixture
def machine(tmp_path, config):
    machine = Machine(tmp_path / "home", GRIDHAND_CONFIG=str(config))
    machine.grid("status", check=0)
    try:
        yield machine
        machine.check()
        machine.check_each_ended_once()
    finally:
        machine.close()


@pytest.fixture
def grid(machine, monkeypatch):
    monkeypatch.setenv("GRIDHAND_HOME", str(machine.home))
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{Home(str(machine.home)).socket}")
    with Grid() as grid:
        yield grid


class Submissions:
    """Short jobs, one after the other, from a thread of their own until the end of a `with`."""

    def __init__(self, grid, folder):
        self.jobs, self.notes, self.failed = [], [], []
        self._grid, self._folder = grid, folder
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._enough.set()
        self._thread.join()

    def _submit(self):
        try:
            for number in itertools.count():
                if self._enough.is_set():
                    return
                note = self._folder / f"short{number}"
                command = ["sh", "-c", NOTE, "-", note]
                self.notes.append(note)
                self.jobs.append(self._grid.run(command, cpu=0.1, memory="5MB", detach=True))
                self.jobs[-1].wait(60)
        except BaseException as error:
            self.failed.append(error)

    def go_on(self):
        """Wait until some more were accepted and have ended."""
        wanted = len(self.jobs) + BETWEEN
        until(lambda: self.failed or len(self.jobs) > wanted, 60)
        assert self.failed == []


def lasting(job):
    """What is told about a running job, but for its measured use."""
    return {name: value for name, value in job.items() if "peak" not in name and name != "usage"}


def test_a_reload_under_load_changes_nothing_that_runs(machine, grid, config, tmp_path):
    gate, address = tmp_path / "gate", Address(Home(str(machine.home)).socket)
    notes = [tmp_path / f"long{code}" for code in range(RUNNING)]
    held = grid.allocate(cpu=0.1, memory="5MB", holder="me")
    long = [
        grid.run(["sh", "-c", WAIT, "-", note, gate, str(code)], cpu=0.1, memory="5MB", detach=True)
        for code, note in enumerate(notes)
    ]
    until(lambda: all(note.exists() for note in notes))
    daemons = machine.controller, machine.agent, machine.starter
    before = [lasting(machine.job(job.id)) for job in long]
    with Client(address) as client, Submissions(grid, tmp_path) as stream:
        for text, changed in FILES:
            stream.go_on()
            config.write_text(text)
            if changed is None:
                with pytest.raises(InvalidConfig):
                    client.reload_config()
            else:
                assert changed <= set(client.reload_config()["changed"])
            stream.go_on()
            assert [lasting(machine.job(job.id)) for job in long] == before
            assert grid.allocate(cpu=0.1, memory="5MB", holder="me").id == held.id
    gate.touch()
    ended = machine.wait(*(job.id for job in [*long, *stream.jobs]))
    codes = [ended[job.id]["exit_code"] for job in long]
    assert codes == list(range(RUNNING))
    assert {ended[job.id]["exit_code"] for job in stream.jobs} == {0}
    assert [len(note.read_text().split()) for note in [*notes, *stream.notes]] == [1] * len(ended)
    assert all(job["attempts"][-1]["number"] == 1 for job in map(machine.job, ended))
    assert (machine.controller, machine.agent, machine.starter) == daemons
    held.release()
