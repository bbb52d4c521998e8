"""The operations of `Grid` and `AsyncGrid`, made and checked from what their users give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gridhand.core.errors import InvalidInput
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import AllocationMove, AllocationState, Lifetime, Terms
from gridhand.core.model.names import check_label, check_node_name
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.quality import AUTO, LEVELS
from gridhand.core.model.requests import GangLayout, Request
from gridhand.core.model.resources import read_amount
from gridhand.core.observations import SetForeignUse
from gridhand.core.operations import (
    Allocate,
    Explain,
    Fits,
    GetNode,
    ListEvents,
    MoveAllocation,
    Prune,
    Register,
    SetDraining,
    SetHealth,
    Unregister,
)
from gridhand.library.backend import (
    Duration,
    read_count,
    read_flag,
    read_op_id,
    read_text,
    read_ttl,
    read_wait,
)

DEFAULT_RESERVATION_S = 60.0
MOST_IN_A_GROUP = 1000
MOST_NODES = 100_000
_REMEMBERED = 1000


def read_layout(apart: bool, together: bool) -> GangLayout:
    if read_flag(apart, "apart") and read_flag(together, "together"):
        raise InvalidInput("together", together, "either that or apart")
    return GangLayout.APART if apart else GangLayout.TOGETHER if together else GangLayout.ANY


def _lower(request: Request, resources: Any, named: dict[str, Any]) -> tuple[Request, ...]:
    """Return the same request at every lower level of quality, the highest first.

    One that was read before does not tell how its amounts were scaled, so it has no lower ones.
    """
    quality = request.quality or "standard"
    if isinstance(resources, Request) or named.get("quality") == AUTO:
        return ()
    below = list(LEVELS)[list(LEVELS).index(quality) + 1 :]
    return tuple(Request.of(resources, **{**named, "quality": level}) for level in below)


def _with_priority(hold: Allocate, priority: str | None) -> Allocate:
    return hold if priority is None else replace(hold, priority=Priority.read(priority))


class LedgerMethods:
    """Makes the operations of one owner."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._requests: dict[Any, Request] = {}

    def allocate(
        self,
        resources: Any,
        holder: str | None,
        ttl: Duration | None,
        op_id: str | None,
        named: Any,
        wait: Duration = 0,
        priority: str | None = None,
    ) -> Allocate:
        request = self._request(resources, named)
        hold = self._hold((request,), AllocationState.ACTIVE, holder, read_ttl(ttl), op_id, wait)
        return _with_priority(hold, priority)

    def reserve(
        self,
        resources: Any,
        holder: str | None,
        ttl: Duration,
        op_id: str | None,
        named: Any,
        wait: Duration = 0,
        priority: str | None = None,
    ) -> Allocate:
        request = self._request(resources, named)
        ttl_ms = read_ttl(ttl)
        if ttl_ms is None:
            raise InvalidInput("ttl", ttl, "the seconds within which it will be confirmed")
        hold = self._hold((request,), AllocationState.RESERVED, holder, ttl_ms, op_id, wait)
        return _with_priority(hold, priority)

    def group(
        self,
        requests: Sequence[Any],
        holder: str | None,
        ttl: Duration | None,
        op_id: str | None,
        layout: GangLayout = GangLayout.ANY,
        wait: Duration = 0,
        priority: str | None = None,
    ) -> Allocate:
        if not isinstance(requests, list | tuple) or not 1 <= len(requests) <= MOST_IN_A_GROUP:
            raise InvalidInput("requests", requests, f"a list of 1 to {MOST_IN_A_GROUP} requests")
        asked = tuple(Request.of(request) for request in requests)
        ttl_ms = read_ttl(ttl)
        hold = self._hold(asked, AllocationState.ACTIVE, holder, ttl_ms, op_id, wait, layout)
        return _with_priority(hold, priority)

    def _request(self, resources: Any, named: dict[str, Any]) -> Request:
        """Return the request, read once for all calls with equal arguments: reading is expensive.

        The types belong to the key, since True == 1 but is not an amount.
        """
        if resources is not None:
            return Request.of(resources, **named)
        key = tuple([(name, value, type(value)) for name, value in named.items()])
        try:
            known = self._requests.get(key)
        except TypeError:  # a list or a mapping among the wishes
            return Request.of(**named)
        if known is None:
            known = Request.of(**named)
            if len(self._requests) >= _REMEMBERED:
                self._requests.clear()
            self._requests[key] = known
        return known

    def _hold(
        self,
        requests: tuple[Request, ...],
        state: AllocationState,
        holder: str | None,
        ttl_ms: int | None,
        op_id: str | None,
        wait: Duration,
        layout: GangLayout = GangLayout.ANY,
    ) -> Allocate:
        if holder is not None:
            check_label(holder, "holder")
        lease = state is AllocationState.ACTIVE and ttl_ms is not None
        lifetime = Lifetime.LEASE if lease else Lifetime.UNTIL_RELEASED
        terms = Terms(self.owner, holder, state, lifetime, ttl_ms, layout)
        wait_ms = read_wait(wait)
        return Allocate(self.owner, read_op_id(op_id), requests, terms, wait_ms)

    def move(
        self, allocation: Any, move: AllocationMove, ttl: Duration | None, op_id: str | None
    ) -> MoveAllocation:
        id = allocation if isinstance(allocation, str) else getattr(allocation, "id", None)
        if not isinstance(id, str):
            raise InvalidInput("allocation", allocation, "an id or an allocation, never amounts")
        return MoveAllocation(self.owner, read_op_id(op_id), id, move, read_ttl(ttl))

    def register(self, nodes: Sequence[Node], op_id: str | None) -> Register:
        if not isinstance(nodes, list | tuple) or len(nodes) > MOST_NODES:
            raise InvalidInput("nodes", nodes, f"a list of at most {MOST_NODES} nodes")
        seen: set[str] = set()
        for node in nodes:
            if not isinstance(node, Node):
                raise InvalidInput("nodes", node, "nodes made with Node.of")
            if check_node_name(node.name) in seen:
                raise InvalidInput("nodes", node.name, "each node once")
            seen.add(node.name)
        checked = tuple(node.checked() for node in nodes)
        return Register(self.owner, read_op_id(op_id), checked)

    def set_draining(self, name: str, draining: bool, op_id: str | None) -> SetDraining:
        return SetDraining(self.owner, read_op_id(op_id), check_node_name(name), draining)

    def set_health(self, name: str, health: str, why: str, op_id: str | None) -> SetHealth:
        if health not in list(Health):
            raise InvalidInput("health", health, "up, suspect or down")
        node = check_node_name(name)
        why = read_text(why, "why")
        return SetHealth(self.owner, read_op_id(op_id), node, Health(health), why)

    def unregister(self, name: str, force: bool, op_id: str | None) -> Unregister:
        node, forced = check_node_name(name), read_flag(force, "force")
        return Unregister(self.owner, read_op_id(op_id), node, forced)

    def node(self, name: str) -> GetNode:
        return GetNode(check_node_name(name))

    def events(self, after: int, limit: int) -> ListEvents:
        read_count(after, "after", 0, 2**63 - 1)
        return ListEvents(after, read_count(limit, "limit", 1, 10_000))

    def fits(self, node: str, resources: Any, named: Any) -> Fits:
        return Fits(self.owner, Request.of(resources, **named).pinned(node))

    def explain(self, resources: Any, named: dict[str, Any]) -> Explain:
        request = self._request(resources, named)
        return Explain(self.owner, request, _lower(request, resources, named))

    def set_foreign(self, node: str, used: Mapping[str, Any]) -> SetForeignUse:
        if not isinstance(used, Mapping):
            raise InvalidInput("used", used, 'a mapping such as {"gpu1/0": "10GB"}')
        read = {
            check_label(id, "gpu id"): read_amount("gpu_memory", amount)
            for id, amount in used.items()
        }
        return SetForeignUse(check_node_name(node), read)

    def prune(self, older_than_s: float, most: int) -> Prune:
        age_ms = read_ttl(older_than_s, "older_than_s")
        if age_ms is None:
            raise InvalidInput("older_than_s", older_than_s, "seconds")
        return Prune(age_ms, read_count(most, "most", 1, 1_000_000))
