"""The settings of a running controller: its configuration file, read again on request."""

from __future__ import annotations

import grp
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from gridhand.config.blocks import HttpBlock
from gridhand.config.cluster_config import ClusterConfig
from gridhand.config.config_errors import InvalidConfig
from gridhand.config.fields import Block
from gridhand.controller.queue_rules import named_queues
from gridhand.core.model.names import NodeName
from gridhand.core.model.resources import read_amount
from gridhand.core.observations import UseGranularity, UseQueues, UseStrategy
from gridhand.core.operations import Operation
from gridhand.core.placement.strategies import OwnStrategy, strategy_named
from gridhand.core.queue.named_queues import NamedQueues
from gridhand.store.urls import store_at

RELOADABLE = frozenset(
    {
        "strategy",
        "retention",
        "respect_foreign_use",
        "admin_group",
        "memory_granularity",
        "queues",
        "quotas",
        "scheduling",
    }
)  # the others take effect at the next start


class Settings:
    """A configuration and the file that it comes from, if there is one."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._config = self._read()

    def _read(self) -> ClusterConfig:
        return ClusterConfig() if self.path is None else ClusterConfig.from_yaml(self.path)

    @property
    def store(self) -> str | None:
        return self._config.store

    @property
    def http(self) -> HttpBlock:
        """Where the HTTP API listens, and its limits."""
        return self._config.http

    @property
    def strategy(self) -> OwnStrategy | None:
        return strategy_named(self._config.strategy)

    @property
    def memory_step_bytes(self) -> int:
        """The memory of a request is rounded up to whole ones; 0 for any amount."""
        return read_amount("memory", self._config.memory_granularity or 0)

    @property
    def queues(self) -> NamedQueues:
        """The named queues, and the quotas of owners."""
        return named_queues(self._config)

    @property
    def urgent(self) -> str | tuple[str, ...] | None:
        """The users of priority `urgent`: `anyone`, `admins` or owners; None for the default."""
        return self._config.scheduling.urgent

    @property
    def admin_group(self) -> str | None:
        """The group whose members may see and end the jobs of all users of the machine."""
        return self._config.admin_group

    def check_admin_group(self) -> None:
        """Raise InvalidConfig if this machine has no such group."""
        _check_admin_group(self.path, self._config)

    def kept_ms(self) -> int:
        """Return for how long ended jobs and their events are kept."""
        return round(self._config.retention.jobs * 1000)

    def respects_foreign_use(self, node: NodeName) -> bool:
        """Return whether CPU and memory that others use on a node are not promised."""
        own = [
            block.respect_foreign_use for block in self._config.nodes or () if block.name == node
        ]
        return own[0] if own and own[0] is not None else self._config.respect_foreign_use

    def facts(self) -> dict[str, Any]:
        """Return every value with its source, and the keys that have no effect yet."""
        values = {
            key: {"value": value, "from": self.path if given else "default"}
            for key, value, given in _leaves(self._config)
        }
        if self.store is not None:
            values["store"]["value"] = store_at(self.store).url  # without a password
        return {
            "file": self.path,
            "values": values,
            "not_used_yet": self._config.not_used_yet(),
        }

    async def apply(self, ask: Callable[[Operation[Any]], Awaitable[Any]]) -> None:
        """Tell the keeper what it has to know besides the strategy."""
        await ask(UseGranularity(self.memory_step_bytes))
        await ask(UseQueues(self.queues))

    async def reload(self, ask: Callable[[Operation[Any]], Awaitable[Any]]) -> dict[str, Any]:
        """Read the file again and apply it; raise InvalidConfig and change nothing if it is wrong.

        Return the keys that changed, and those of them that need a restart.
        """
        before, after = self._config, self._read()
        if after.admin_group != before.admin_group:
            _check_admin_group(self.path, after)
        changed = {key for key in type(after).model_fields if _differs(key, before, after)}
        if "strategy" in changed:
            await ask(UseStrategy(strategy_named(after.strategy)))
        self._config = after
        await self.apply(ask)
        return {
            "file": self.path,
            "changed": sorted(changed & RELOADABLE),
            "needs_restart": sorted(changed - RELOADABLE - after.NOT_USED_YET),
            "not_used_yet": after.not_used_yet(),
        }


def _check_admin_group(path: str | None, config: ClusterConfig) -> None:
    if config.admin_group is None:
        return
    try:
        grp.getgrnam(config.admin_group)
    except KeyError:
        problem = f"{config.admin_group!r} is not allowed: give a group of this machine"
        raise InvalidConfig(path or "", [("admin_group", problem)]) from None


def _leaves(block: Block, above: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield the path and the value of each setting, and whether the file has it."""
    plain = block.model_dump(mode="json")
    for name in type(block).model_fields:
        value = getattr(block, name)
        if isinstance(value, Block):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield above + name, plain[name], name in block.model_fields_set


def _differs(key: str, before: ClusterConfig, after: ClusterConfig) -> bool:
    return bool(getattr(before, key) != getattr(after, key))
