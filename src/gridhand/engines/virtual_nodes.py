"""Several nodes on one machine, each with an agent and a starter of its own.

For trying out what a cluster would do, and for tests of it: the commands are real, the nodes are
what they were said to be. Which ones there are is written in the home folder, so that every
controller that comes later has the same.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gridhand.core.errors import InvalidInput
from gridhand.core.names import check_node_name
from gridhand.core.resources import Resources
from gridhand.engines.base import Engine, Fact, Key, Known, Order, Sink
from gridhand.engines.local import LocalEngine
from gridhand.home import Home


def engine_of(home: Home) -> Engine:
    """The engine of this machine, as itself or for the nodes that it was told to stand for."""
    nodes = stood_for(home)
    if not nodes:
        return LocalEngine(home.agent, home.starter)
    return SeveralEngines(
        {
            name: LocalEngine(
                os.path.join(home.agent, name), os.path.join(home.starter, name), (name, capacity)
            )
            for name, capacity in nodes.items()
        }
    )


def stood_for(home: Home) -> dict[str, str]:
    """The amounts of the nodes that this machine stands for, by their names."""
    try:
        with open(home.nodes) as file:
            return {str(name): str(amounts) for name, amounts in json.load(file).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidInput("nodes", home.nodes, "a readable file of names and amounts") from error


def stand_for(home: Home, nodes: Mapping[str, str]) -> None:
    """Write down what this machine stands for, from the next controller on."""
    for name, amounts in nodes.items():
        check_node_name(name)
        if not Resources.parse(amounts):
            raise InvalidInput("amounts", amounts, "what the node has, as in cpu=4 memory=2GB")
    os.makedirs(home.agent, mode=0o700, exist_ok=True)
    os.makedirs(home.starter, mode=0o700, exist_ok=True)
    with open(f"{home.nodes}.new", "w") as file:
        json.dump(dict(nodes), file)
    os.replace(f"{home.nodes}.new", home.nodes)


class _Ear:
    """Hears for one node, notes what is there, and passes it on."""

    def __init__(self, engine: Engine, where: dict[Key, Engine], sink: Sink) -> None:
        self._engine, self._where, self._sink = engine, where, sink
        self.node_changed, self.measured = sink.node_changed, sink.measured
        self.broken = sink.broken

    def _note(self, facts: Sequence[Fact]) -> None:
        self._where.update({(fact["job"], fact["attempt"]): self._engine for fact in facts})

    def spawned(self, facts: Sequence[Fact]) -> None:
        self._note(facts)
        self._sink.spawned(facts)

    def ended(self, facts: Sequence[Fact]) -> None:
        self._note(facts)
        self._sink.ended(facts)

    def returned(self, known: Known) -> None:
        self._note([*known.running, *known.ended])
        self._sink.returned(known)


class SeveralEngines:
    """One engine for each node, by its name; to the controller they are one."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = dict(engines)
        self._first = next(iter(self._engines.values()))
        self._where: dict[Key, Engine] = {}

    async def epoch_seen(self) -> int:
        return max([await one.epoch_seen() for one in self._engines.values()])

    async def open(self, epoch: int, sink: Sink) -> Known:
        every = Known([], [])
        for engine in self._engines.values():
            known = await engine.open(epoch, _Ear(engine, self._where, sink))
            for fact in (*known.running, *known.ended):
                self._where[fact["job"], fact["attempt"]] = engine
            every = Known([*every.running, *known.running], [*every.ended, *known.ended])
        return every

    async def start(self, orders: Sequence[Order]) -> None:
        groups: dict[Engine, list[Order]] = {}
        for order in orders:
            # A node that somebody declared by hand is run for by the first, as on one machine.
            engine = self._engines.get(order["node"], self._first)
            self._where[order["job"], order["attempt"]] = engine
            groups.setdefault(engine, []).append(order)
        await asyncio.gather(*(engine.start(some) for engine, some in groups.items()))

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        await self._where.get(key, self._first).stop(key, reason, grace_ms)

    async def signal(self, key: Key, signum: int) -> bool:
        return await self._where.get(key, self._first).signal(key, signum)

    async def forget(self, keys: Sequence[Key]) -> None:
        groups: dict[Engine, list[Key]] = {}
        for key in keys:
            groups.setdefault(self._where.pop(key, self._first), []).append(key)
        await asyncio.gather(*(engine.forget(some) for engine, some in groups.items()))

    async def read_log(self, path: str, offset: int, limit: int) -> list[tuple[int, bytes | int]]:
        return await self._first.read_log(path, offset, limit)

    async def log_size(self, path: str) -> int:
        return await self._first.log_size(path)

    def facts(self) -> Mapping[str, Any]:
        return self._first.facts()

    async def close(self, *, end: bool) -> None:
        for engine in self._engines.values():
            await engine.close(end=end)
