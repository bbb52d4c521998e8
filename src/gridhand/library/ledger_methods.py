"""The calls of `Grid` and `AsyncGrid`: what people give becomes what the backend takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridhand.core.allocations import Allocation, Lifetime, Move, State
from gridhand.core.calls import Call
from gridhand.core.errors import InvalidInput
from gridhand.core.ledger import Terms
from gridhand.core.names import check_label, check_node_name
from gridhand.core.nodes import Health, Node
from gridhand.core.quality import AUTO, LEVELS
from gridhand.core.requests import Layout, Request
from gridhand.core.resources import read_amount
from gridhand.library.backend import (
    Backend,
    read_count,
    read_flag,
    read_op_id,
    read_text,
    read_ttl,
    read_wait,
)

if TYPE_CHECKING:
    from gridhand.core.explanation import Explanation
    from gridhand.core.views import NodeStatus
    from gridhand.store.base import Event

Holding = Call[list[Allocation]]

DEFAULT_RESERVATION_S = 60.0
MOST_IN_A_GROUP = 1000
MOST_NODES = 100_000
_REMEMBERED = 1000


def read_layout(apart: bool, together: bool) -> Layout:
    if read_flag(apart, "apart") and read_flag(together, "together"):
        raise InvalidInput("together", together, "either that or apart")
    return Layout.APART if apart else Layout.TOGETHER if together else Layout.ANY


def _lower(request: Request, resources: Any, named: dict[str, Any]) -> tuple[Request, ...]:
    """The same request at every lower level of quality, the highest first, as it would be read.

    One that was read before does not tell how its amounts were scaled, so it has no lower ones.
    """
    quality = request.quality or "standard"
    if isinstance(resources, Request) or named.get("quality") == AUTO:
        return ()
    below = list(LEVELS)[list(LEVELS).index(quality) + 1 :]
    return tuple(Request.of(resources, **{**named, "quality": level}) for level in below)


class Calls:
    """Builds calls in the name of one owner."""

    def __init__(self, backend: Backend, owner: str) -> None:
        self.backend = backend
        self.owner = owner
        self._requests: dict[Any, Request] = {}

    def allocate(
        self,
        resources: Any,
        holder: str | None,
        ttl: float | None,
        op_id: str | None,
        named: Any,
        wait: float = 0,
    ) -> Holding:
        request = self._request(resources, named)
        return self._hold((request,), State.ACTIVE, holder, read_ttl(ttl), op_id, wait)

    def reserve(
        self,
        resources: Any,
        holder: str | None,
        ttl: float,
        op_id: str | None,
        named: Any,
        wait: float = 0,
    ) -> Holding:
        request = self._request(resources, named)
        ttl_ms = read_ttl(ttl)
        if ttl_ms is None:
            raise InvalidInput("ttl", ttl, "the seconds within which it will be confirmed")
        return self._hold((request,), State.RESERVED, holder, ttl_ms, op_id, wait)

    def group(
        self,
        requests: Sequence[Any],
        holder: str | None,
        ttl: float | None,
        op_id: str | None,
        layout: Layout = Layout.ANY,
        wait: float = 0,
    ) -> Holding:
        if not isinstance(requests, list | tuple) or not 1 <= len(requests) <= MOST_IN_A_GROUP:
            raise InvalidInput("requests", requests, f"a list of 1 to {MOST_IN_A_GROUP} requests")
        asked = tuple(Request.of(one) for one in requests)
        return self._hold(asked, State.ACTIVE, holder, read_ttl(ttl), op_id, wait, layout)

    def _request(self, resources: Any, named: dict[str, Any]) -> Request:
        """The request, read once for all calls that spell it alike: reading costs more than asking.

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
        state: State,
        holder: str | None,
        ttl_ms: int | None,
        op_id: str | None,
        wait: float,
        layout: Layout = Layout.ANY,
    ) -> Holding:
        if holder is not None:
            check_label(holder, "holder")
        lease = state is State.ACTIVE and ttl_ms is not None
        lifetime = Lifetime.LEASE if lease else Lifetime.UNTIL_RELEASED
        terms = Terms(self.owner, holder, state, lifetime, ttl_ms, layout)
        wait_ms = read_wait(wait)
        return self.backend.allocate(self.owner, read_op_id(op_id), requests, terms, wait_ms)

    def move(self, allocation: Any, move: Move, ttl: float | None, op_id: str | None) -> Holding:
        id = allocation if isinstance(allocation, str) else getattr(allocation, "id", None)
        if not isinstance(id, str):
            raise InvalidInput("allocation", allocation, "an id or an allocation, never amounts")
        return self.backend.move(self.owner, read_op_id(op_id), id, move, read_ttl(ttl))

    def register(self, nodes: Sequence[Node], op_id: str | None) -> Call[list[Node]]:
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
        return self.backend.register(self.owner, read_op_id(op_id), checked)

    def set_draining(self, name: str, draining: bool, op_id: str | None) -> Call[list[Node]]:
        node = check_node_name(name)
        return self.backend.set_draining(self.owner, read_op_id(op_id), node, draining)

    def set_health(self, name: str, health: str, why: str, op_id: str | None) -> Call[list[Node]]:
        if health not in list(Health):
            raise InvalidInput("health", health, "up, suspect or down")
        node = check_node_name(name)
        return self.backend.set_health(
            self.owner, read_op_id(op_id), node, Health(health), read_text(why, "why")
        )

    def unregister(self, name: str, force: bool, op_id: str | None) -> Call[list[Node]]:
        node = check_node_name(name)
        forced = read_flag(force, "force")
        return self.backend.unregister(self.owner, read_op_id(op_id), node, forced)

    def node(self, name: str) -> Call[NodeStatus]:
        return self.backend.node(check_node_name(name))

    def events(self, after: int, limit: int) -> Call[list[Event]]:
        read_count(after, "after", 0, 2**63 - 1)
        return self.backend.events(after, read_count(limit, "limit", 1, 10_000))

    def fits(self, node: str, resources: Any, named: Any) -> Call[bool]:
        return self.backend.fits(self.owner, Request.of(resources, **named).pinned(node))

    def explain(self, resources: Any, named: dict[str, Any]) -> Call[Explanation]:
        request = self._request(resources, named)
        return self.backend.explain(self.owner, request, _lower(request, resources, named))

    def set_foreign(self, node: str, used: Mapping[str, Any]) -> Call[None]:
        if not isinstance(used, Mapping):
            raise InvalidInput("used", used, 'a mapping such as {"gpu1/0": "10GB"}')
        read = {
            check_label(id, "gpu id"): read_amount("gpu_memory", amount)
            for id, amount in used.items()
        }
        return self.backend.set_foreign(check_node_name(node), read)

    def prune(self, older_than_s: float, most: int) -> Call[int]:
        age_ms = read_ttl(older_than_s, "older_than_s")
        if age_ms is None:
            raise InvalidInput("older_than_s", older_than_s, "seconds")
        return self.backend.prune(age_ms, read_count(most, "most", 1, 1_000_000))
