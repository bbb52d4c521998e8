"""Virtual nodes: several nodes on one machine, each with an agent and a starter of its own.

They are for trying out what a cluster would do, and for tests: the commands are real, the nodes
have the amounts that they were given. The nodes are written in the home folder, so that every
later controller has the same.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gridhand.core.errors import InvalidInput
from gridhand.core.model.names import NodeName, check_node_name
from gridhand.core.model.resources import Resources
from gridhand.engines.base import AttemptReport, Engine, Key, Known, Seen, Sink, StartOrder
from gridhand.engines.local import LocalEngine
from gridhand.home import Home
from gridhand.posix.private_files import replace_file
from gridhand.posix.unix_users import UnixUser


def engine_of(home: Home, nodes: Mapping[str, str]) -> Engine:
    """Return the engine of this machine: for itself, or for these virtual nodes."""
    check_virtual_nodes(nodes)
    if not nodes:
        return LocalEngine(home.agent, home.starter)
    for folder in (home.agent, home.starter):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return VirtualNodes(
        {
            name: LocalEngine(
                os.path.join(home.agent, name), os.path.join(home.starter, name), (name, capacity)
            )
            for name, capacity in nodes.items()
        }
    )


def read_virtual_nodes(home: Home) -> dict[str, str]:
    """Return the amounts of the virtual nodes by name."""
    try:
        with open(home.nodes) as file:
            return {str(name): str(amounts) for name, amounts in json.load(file).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidInput("nodes", home.nodes, "a readable file of names and amounts") from error


def check_virtual_nodes(nodes: Mapping[str, str]) -> None:
    """Raise InvalidInput for a name or an amount that no node can have."""
    for name, amounts in nodes.items():
        check_node_name(name)
        if not Resources.parse(amounts):
            raise InvalidInput("amounts", amounts, "what the node has, as in cpu=4 memory=2GB")


def write_virtual_nodes(home: Home, nodes: Mapping[str, str]) -> None:
    """Have every later controller of a home use these virtual nodes."""
    replace_file(home.nodes, json.dumps(dict(nodes)).encode())


class _NodeSink:
    """The sink of one node: it notes which attempts are there, and passes everything on."""

    def __init__(self, engine: Engine, engines: dict[Key, Engine], sink: Sink) -> None:
        self._engine, self._engines, self._sink = engine, engines, sink
        self.node_changed, self.measured = sink.node_changed, sink.measured
        self.broken, self.settled = sink.broken, sink.settled

    def note(self, reports: Sequence[AttemptReport]) -> None:
        self._engines.update({report.key: self._engine for report in reports})

    def spawned(self, reports: Sequence[AttemptReport]) -> None:
        self.note(reports)
        self._sink.spawned(reports)

    def ended(self, reports: Sequence[AttemptReport]) -> None:
        self.note(reports)
        self._sink.ended(reports)

    def returned(self, known: Known, node: NodeName | None = None) -> None:
        self.note([*known.running, *known.ended])
        self._sink.returned(known, node)


class VirtualNodes:
    """An engine for each virtual node, by its name; the controller sees one engine."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = dict(engines)
        self._first = next(iter(self._engines.values()))
        self._engine_of: dict[Key, Engine] = {}

    async def look(self) -> Seen:
        seen = [await engine.look() for engine in self._engines.values()]
        return Seen(
            max(node.epoch for node in seen), [key for node in seen for key in node.running]
        )

    async def open(self, epoch: int, sink: Sink) -> Known:
        everything = Known([], [])
        for engine in self._engines.values():
            node_sink = _NodeSink(engine, self._engine_of, sink)
            known = await engine.open(epoch, node_sink)
            node_sink.note([*known.running, *known.ended])
            everything.running.extend(known.running)
            everything.ended.extend(known.ended)
        return everything

    def place(self, key: Key, node: NodeName, engine: str = "") -> None:
        # The first engine runs the jobs of nodes that were declared by hand, as on one machine.
        self._engine_of[key] = self._engines.get(node, self._first)

    async def start(self, orders: Sequence[StartOrder]) -> None:
        groups: dict[Engine, list[StartOrder]] = {}
        for order in orders:
            self.place(order.key, order.node)
            groups.setdefault(self._engine_of[order.key], []).append(order)
        await asyncio.gather(*(engine.start(group) for engine, group in groups.items()))

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        await self._engine_of.get(key, self._first).stop(key, reason, grace_ms)

    async def signal(self, key: Key, signum: int) -> bool:
        return await self._engine_of.get(key, self._first).signal(key, signum)

    async def note_reader(self, key: Key, offsets: Mapping[str, int]) -> None:
        await self._engine_of.get(key, self._first).note_reader(key, offsets)

    async def forget(self, keys: Sequence[Key]) -> None:
        groups: dict[Engine, list[Key]] = {}
        for key in keys:
            groups.setdefault(self._engine_of.pop(key, self._first), []).append(key)
        await asyncio.gather(*(engine.forget(group) for engine, group in groups.items()))

    async def sample_every(self, every_ms: int, for_ms: int) -> None:
        engines = self._engines.values()
        await asyncio.gather(*(engine.sample_every(every_ms, for_ms) for engine in engines))

    async def read_log(
        self, path: str, offset: int, limit: int, user: UnixUser | None = None
    ) -> list[tuple[int, bytes | int]]:
        return await self._first.read_log(path, offset, limit, user)

    async def log_size(self, path: str, user: UnixUser | None = None) -> int:
        return await self._first.log_size(path, user)

    def facts(self) -> Mapping[str, Any]:
        return self._first.facts()

    async def close(self, *, end: bool) -> None:
        for engine in self._engines.values():
            await engine.close(end=end)
