"""EngineGroup: the engine of this machine, and that of workers elsewhere, as one engine.

Each attempt is with the engine of its node. A node whose label says that its jobs run elsewhere is
never served by this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gridhand.core.model.names import NodeName
from gridhand.engines.base import Engine, Key, Known, Seen, Sink, StartOrder
from gridhand.posix.unix_users import UnixUser


class EngineGroup:
    """Sends each request to the engine of the node that it is about."""

    def __init__(self, local: Engine, others: Mapping[str, Engine]) -> None:
        """`others` are engines by the name that the label of their nodes has."""
        self._local, self._others = local, dict(others)
        self._engine_of: dict[Key, Engine] = {}  # of attempts that run elsewhere
        self._node_of: dict[Key, NodeName] = {}

    async def look(self) -> Seen:
        return await self._local.look()

    async def open(self, epoch: int, sink: Sink) -> Known:
        for engine in self._others.values():  # their nodes come later, by themselves
            await engine.open(epoch, sink)
        return await self._local.open(epoch, sink)

    def node_of(self, key: Key) -> NodeName | None:
        """Return the node of an attempt whose end is not durable."""
        return self._node_of.get(key)

    def place(self, key: Key, node: NodeName, engine: str = "") -> None:
        self._node_of[key] = node
        if engine in self._others:
            self._engine_of[key] = self._others[engine]
        self._find(key).place(key, node, engine)

    def _find(self, key: Key) -> Engine:
        return self._engine_of.get(key, self._local)

    async def start(self, orders: Sequence[StartOrder]) -> None:
        groups: dict[Engine, list[StartOrder]] = {}
        for order in orders:
            groups.setdefault(self._find(order.key), []).append(order)
        await asyncio.gather(*(engine.start(group) for engine, group in groups.items()))

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        await self._find(key).stop(key, reason, grace_ms)

    async def signal(self, key: Key, signum: int) -> bool:
        return await self._find(key).signal(key, signum)

    async def note_reader(self, key: Key, offsets: Mapping[str, int]) -> None:
        await self._find(key).note_reader(key, offsets)

    async def forget(self, keys: Sequence[Key]) -> None:
        groups: dict[Engine, list[Key]] = {}
        for key in keys:
            groups.setdefault(self._find(key), []).append(key)
            self._engine_of.pop(key, None)
            self._node_of.pop(key, None)
        await asyncio.gather(*(engine.forget(group) for engine, group in groups.items()))

    async def sample_every(self, every_ms: int, for_ms: int) -> None:
        engines = (self._local, *self._others.values())
        await asyncio.gather(*(engine.sample_every(every_ms, for_ms) for engine in engines))

    async def read_log(
        self, path: str, offset: int, limit: int, user: UnixUser | None = None
    ) -> list[tuple[int, bytes | int]]:
        # Output from elsewhere is kept in files of this machine, too.
        return await self._local.read_log(path, offset, limit, **_as_user(user))

    async def log_size(self, path: str, user: UnixUser | None = None) -> int:
        return await self._local.log_size(path, **_as_user(user))

    def facts(self) -> Mapping[str, Any]:
        return self._local.facts()

    async def close(self, *, end: bool) -> None:
        for engine in (*self._others.values(), self._local):
            await engine.close(end=end)


def _as_user(user: UnixUser | None) -> dict[str, UnixUser]:
    return {} if user is None else {"user": user}
