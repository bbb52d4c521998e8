"""A scripted remote node that heartbeats over the socket of a real controller, in real time."""

import json
import threading
from contextlib import closing

import pytest

from grid_machine import Machine
from gridhand.client.transport import Address
from until import until

pytestmark = pytest.mark.soak  # silence takes its time


class RemoteNode:
    """Sends a heartbeat every half second until it is cut off."""

    def __init__(self, socket):
        self._address = Address(str(socket))
        self.sequence, self.running, self.stop = 0, [], []
        self._cut = threading.Event()

    def ask(self, target, body):
        with closing(self._address.open(20)) as connection:
            headers = {"content-type": "application/json"}
            content = json.dumps(body).encode()
            reply = connection.ask("POST", f"/api/v1{target}", headers, content, 20)
            told = json.loads(reply.body.read())
            assert reply.status < 300, told
            return told

    def beat(self):
        self.sequence += 1
        body = {"incarnation": 1, "sequence": self.sequence, "boot_id": "b1"}
        answer = self.ask("/nodes/r1/heartbeat", {**body, "running": self.running})
        assert answer["acknowledged"]
        self.stop = answer["stop"]

    def connect(self):
        self._cut.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._cut.wait(0.5):
            self.beat()

    def cut(self):
        self._cut.set()
        self._thread.join()


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "home")
    machine.start("serve")
    try:
        until(lambda: (tmp_path / "home" / "socket").exists())
        yield machine
        machine.check()
    finally:
        machine.close()


def test_t10_silence_suspicion_loss_and_return(machine, tmp_path):
    """T10 with row 38, as an external worker will see it."""
    remote = RemoteNode(tmp_path / "home" / "socket")
    label = ("--label", "gridhand.engine=external")
    machine.grid("node", "register", "r1", "-c", "4", *label)
    remote.connect()
    [made] = remote.ask("/allocations/group", {"requests": [{"cpu": 4, "node": "r1"}]}).values()
    remote.running = [held["id"] for held in made]
    remote.cut()
    until(lambda: node_of(machine)["health"] == "suspect")
    assert node_of(machine)["allocated"] == {"cpu": 4}
    until(lambda: node_of(machine)["health"] == "down")
    assert node_of(machine)["allocated"] == {}
    remote.connect()
    until(lambda: remote.stop == remote.running)
    assert node_of(machine)["health"] == "down"
    remote.running = []
    until(lambda: node_of(machine)["health"] == "up")
    remote.cut()


def node_of(machine):
    return next(node for node in machine.json("list") if node["name"] == "r1")
