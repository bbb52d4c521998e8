"""A thousand remote nodes that heartbeat over the network, each with a token and a connection of its own.

`GRIDHAND_SOAK_MINUTES` says for how long; `GRIDHAND_SOAK_NODES` how many there are.
"""

import asyncio
import json
import os
import random
import time
from contextlib import closing
from urllib.parse import urlsplit

import psutil
import pytest

from grid_machine import Machine
from gridhand.client.transport import Address
from gridhand.core.liveness.budget import HEARTBEAT_MS, SUSPECT_MS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MINUTES = float(os.environ.get("GRIDHAND_SOAK_MINUTES", "5"))
NODES = int(os.environ.get("GRIDHAND_SOAK_NODES", "1000"))
MOST_CORES = 0.5


class Agent:
    """The heartbeats of one node, each sent when it is due and answered before the next."""

    def __init__(self, name, url, token):
        self.name, self._url, self._token = name, urlsplit(url), token
        self.longest_s, self.answered = 0.0, 0

    async def run(self, ends):
        self._reader, self._writer = await asyncio.open_connection(
            self._url.hostname, self._url.port
        )
        due = time.monotonic() + random.uniform(0, HEARTBEAT_MS / 1000)
        while due < ends:
            await asyncio.sleep(max(0, due - time.monotonic()))
            await self._beat()
            self.longest_s = max(self.longest_s, time.monotonic() - due)
            due += HEARTBEAT_MS / 1000
        self._writer.close()

    async def _beat(self):
        self.answered += 1
        body = {"incarnation": 1, "sequence": self.answered, "boot_id": "b1", "running": []}
        data = json.dumps(body).encode()
        head = (
            f"POST /api/v1/nodes/{self.name}/heartbeat HTTP/1.1\r\nhost: {self._url.netloc}\r\n"
            f"authorization: Bearer {self._token}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        told = json.loads(await self._reader.readexactly(length))
        assert told == {"acknowledged": True, "stop": []}


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "home")
    serving = machine.start("serve", "--port", "0", cwd=tmp_path)
    machine.url, machine.pid = serving.stdout.readline().split()[-1], serving.pid
    try:
        yield machine
        machine.check()
    finally:
        machine.close()


def ask(machine, method, target, body=None):
    with closing(Address(str(machine.home / "socket")).open(60)) as connection:
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        reply = connection.ask(method, f"/api/v1{target}", headers, content, 60)
        told = json.loads(reply.body.read())
        assert reply.status < 300, told
        return told


def test_a_thousand_nodes_stay_up(machine):
    names = [f"r{number:04}" for number in range(NODES)]
    labels = {"gridhand.engine": "external"}
    nodes = [{"name": name, "resources": {"cpu": 4}, "labels": labels} for name in names]
    tokens = [
        ask(machine, "POST", "/tokens", {"scope": f"agent:{name}"})["token"] for name in names
    ]
    ask(machine, "POST", "/nodes", {"nodes": nodes})
    agents = [Agent(name, machine.url, token) for name, token in zip(names, tokens, strict=True)]
    controller = psutil.Process(machine.pid)

    async def everybody():
        ends = time.monotonic() + 60 * MINUTES
        await asyncio.gather(*(agent.run(ends) for agent in agents))

    before, began = sum(controller.cpu_times()[:2]), time.monotonic()
    asyncio.run(everybody())
    took = time.monotonic() - began
    cores = (sum(controller.cpu_times()[:2]) - before) / took
    longest = max(agent.longest_s for agent in agents)
    beats = sum(agent.answered for agent in agents)
    print(
        f"{beats} heartbeats of {NODES} nodes in {took:.0f} s: {cores:.2f} cores, latest {longest:.2f} s"
    )
    events = ask(machine, "GET", "/events?kind=node.suspect&kind=node.down&limit=10")["events"]
    assert events == []
    up = [one["name"] for one in ask(machine, "GET", "/nodes")["nodes"] if one["health"] == "up"]
    assert set(names) <= set(up)
    assert longest < SUSPECT_MS / 1000  # a deadline, and no measure of this machine
    assert cores < MOST_CORES
