"""ForeignUse: has placement plan around what processes outside of the grid use.

Samples come all the time, and the keeper hears of them only when there is something to decide
differently: when the memory used on devices has changed, or, on nodes where the use of CPU and
memory by others is respected, their rounded use or the largest of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from gridhand.core.errors import GridError
from gridhand.core.model.host_use import NO_HOST_USE, HostUse, Stranger
from gridhand.core.model.names import NodeName
from gridhand.core.model.resources import UNIT
from gridhand.core.observations import SetForeignUse, SetHostUse
from gridhand.core.operations import Operation
from gridhand.engines.base import UsageEvent


class ForeignUse:
    """The use by others as the keeper knows it, by node."""

    def __init__(
        self,
        ask: Callable[[Operation[Any]], Awaitable[Any]],
        respects: Callable[[NodeName], bool],
    ) -> None:
        """`respects` returns whether the use of CPU and memory by others is respected."""
        self._ask, self._respects = ask, respects
        self._devices: dict[NodeName, Mapping[str, int]] = {}
        self._hosts: dict[NodeName, HostUse] = {}

    def forget(self, node: NodeName) -> None:
        """Tell the keeper again with the next sample: it may have forgotten the node."""
        self._devices.pop(node, None)
        self._hosts.pop(node, None)

    def changes(self, node: NodeName, usage: UsageEvent) -> Iterator[SetForeignUse | SetHostUse]:
        """Yield what the keeper has to know after a sample."""
        if usage["foreign"] != self._devices.get(node, {}):
            self._devices[node] = usage["foreign"]
            yield SetForeignUse(node, usage["foreign"])
        before = self._hosts.get(node, NO_HOST_USE)
        used = before.follow(_host_use(usage)) if self._respects(node) else NO_HOST_USE
        if _key(used) != _key(before):
            self._hosts[node] = used
            yield SetHostUse(node, used, _machine(usage))

    async def tell(self, observed: SetForeignUse | SetHostUse) -> None:
        """Tell the keeper; what it refuses, as for an unknown node, comes with a later sample."""
        try:
            await self._ask(observed)
        except GridError:
            self.forget(observed.node)


def _host_use(usage: UsageEvent) -> HostUse:
    others = usage.get("others")
    if others is None:
        return NO_HOST_USE
    strangers = [
        Stranger(one["pid"], one["name"], round(one["cpu"] * UNIT), one["memory_bytes"])
        for one in others["processes"]
    ]
    return HostUse(round(others["cpu"] * UNIT), others["memory_bytes"], tuple(strangers))


def _machine(usage: UsageEvent) -> dict[str, int]:
    others = usage.get("others")
    if others is None:
        return {}
    return {"cpu": round(others["machine_cpu"] * UNIT), "memory": others["machine_bytes"]}


def _key(used: HostUse) -> object:
    """Return what has to change before the keeper is told: the amounts, or who they are."""
    return used.amounts, {(one.pid, one.name) for one in used.strangers}
