"""Grid: nodes, allocations and jobs as Python methods, from any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gridhand.core.errors import GridError
from gridhand.core.html import table
from gridhand.core.ledger.allocations import Allocation as Record
from gridhand.core.ledger.allocations import AllocationMove
from gridhand.core.model.gpus import Gpu
from gridhand.core.model.names import check_label
from gridhand.core.model.nodes import Node
from gridhand.core.model.resources import Resources
from gridhand.core.operations import (
    CheckLedger,
    DumpLedger,
    GetStatus,
    ListAllocations,
)
from gridhand.library.allocation_handle import Allocation, AllocationFacts
from gridhand.library.backend import Backend, Duration, read_flag, read_owner, read_ttl, the_backend
from gridhand.library.current_grid import enter, leave
from gridhand.library.functions.function_runner import close_runner
from gridhand.library.graph_methods import GraphMethods
from gridhand.library.job_methods import Asked, JobMethods
from gridhand.library.ledger_methods import DEFAULT_RESERVATION_S, LedgerMethods, read_layout

if TYPE_CHECKING:
    from gridhand.audit import Violation
    from gridhand.controller.keeper.tracked_grants import Tracker
    from gridhand.core.explain.explanation import Explanation
    from gridhand.core.ledger.status import NodeStatus, Status
    from gridhand.core.rows.ledger import Event

    def _is_a_tracker(grid: Grid) -> Tracker:
        return grid  # for the type checker to prove


OwnStrategy = str | Callable[..., Sequence[float]]


class Grid(JobMethods, GraphMethods):
    """A cluster: its nodes, the resources held on them, and the jobs that run there.

    `Grid()` talks to this machine's controller, which runs jobs. `Grid.in_memory()` and
    `Grid.at(store_url)` keep a ledger in this process; they hold resources and call functions, but
    run no jobs. Any number of threads may use one grid. Failures are raised as `GridError`.

    >>> grid = Grid.in_memory()
    >>> node = grid.register_node("box", cpu=4, memory="8GB")
    >>> with grid.allocate(cpu=2) as held:
    ...     grid.node("box").available
    Resources('cpu=2 memory=8GB')
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        owner: str | None = None,
        backend: Backend | None = None,
        tracker: Tracker | None = None,
    ) -> None:
        """Connect to the controller at `address`, or to this machine's, started if need be.

        An address is `unix:/PATH` or `http://HOST:PORT`. Allocations without a `ttl` end when
        this grid is closed or its process ends. `Grid(tracker=own)` is
        `Grid.in_memory(tracker=own)`.
        """
        self._backend = the_backend(backend, address, tracker)
        self._operations = LedgerMethods(read_owner(owner, self._backend))
        self._caller = None

    @classmethod
    def in_memory(
        cls,
        *,
        strategy: OwnStrategy = "default",
        tracker: Tracker | None = None,
        owner: str | None = None,
    ) -> Self:
        """Return a grid that lives in this process and is gone when it is closed.

        A `tracker` is an object of your own with the methods `fits`, `allocate` and `release`. It
        is asked before each grant, may refuse a node, and is told of each end.
        """
        from gridhand.controller.keeper.embedded import Embedded

        owner = read_owner(owner)
        return cls(backend=Embedded.in_memory(strategy, tracker), owner=owner)

    @classmethod
    def at(
        cls,
        store_url: str,
        *,
        strategy: OwnStrategy = "default",
        owner: str | None = None,
        wait: Duration = 0,
        take_over: bool = False,
        create: bool = True,
        expect: str | None = None,
    ) -> Self:
        """Return a grid whose state is kept in a store and survives restarts and crashes.

        `store_url` is a path of a SQLite file or a `postgresql://` URL. One process at a time owns
        a store; another one gets `StoreOwned`, which names the owner.

        wait: seconds to wait for the owner to close the store.
        take_over: take the store from an owner that hangs. It can write nothing from then on.
        create: create the store if it does not exist.
        expect: an `identity` noted before: the store must be that ledger, and not an older copy.
        """
        from gridhand.controller.keeper.embedded import Embedded

        owner = read_owner(owner)
        backend = Embedded.at(
            store_url,
            strategy,
            wait_s=(read_ttl(wait, "wait") or 0) / 1000 if wait else 0.0,
            take_over=read_flag(take_over, "take_over"),
            must_exist=not read_flag(create, "create"),
            expect=expect,
        )
        return cls(backend=backend, owner=owner)

    def for_owner(self, owner: str) -> Self:
        """Return the same grid, acting in the name of another owner."""
        return type(self)(backend=self._backend, owner=check_label(owner, "owner"))

    @property
    def owner(self) -> str:
        """The owner of what this grid allocates and submits."""
        return self._operations.owner

    @property
    def identity(self) -> str:
        """The id of the ledger and how often it has changed owners, for `expect` of `Grid.at`."""
        return self._backend.identity

    def close(self) -> None:
        """Stop the functions being called, then disconnect or close the store.

        With a controller, allocations without a `ttl` end, and so do jobs that are not detached.
        With a store, everything stays held in it.
        """
        leave(self)
        close_runner(self)
        self._backend.close()

    def __repr__(self) -> str:
        return f"<grid of {self.owner} {self._backend.where}>"

    def _repr_html_(self) -> str:
        """Return a table of the nodes as they are now, for notebooks."""
        try:
            nodes = self.nodes()
        except GridError as error:
            return table((), (), f"{self!r}: {error}")
        rows = [
            (node.name, node.health, node.total, node.allocated, node.available) for node in nodes
        ]
        return table(("node", "health", "total", "allocated", "available"), rows, repr(self))

    def __enter__(self) -> Self:
        """Make this the grid that tasks of the `with` block are submitted to."""
        enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    # ---- nodes

    def register_node(
        self,
        /,
        name: str,
        resources: Resources | Mapping[str, Any] | str | None = None,
        *,
        gpus: Sequence[Gpu | Mapping[str, Any]] | None = None,
        labels: Mapping[str, str] | None = None,
        price: float | str = 0,
        address: str = "",
        op_id: str | None = None,
        **named: Any,
    ) -> Node:
        """Add a node, or replace the description of one. Its allocations stay as they are.

        Give its capacity as keywords (`cpu=8, memory="32GB", gpu=2`), as a mapping or as a string.
        A bare number for `memory`, `disk` or `gpu_memory` is in MB. `gpus` describes the devices
        one by one; `gpu=2` alone makes two devices without a model.
        """
        node = Node.of(
            name, resources, gpus=gpus, labels=labels, price=price, address=address, **named
        )
        return self._run_then(self._operations.register([node], op_id), _first)

    def register_nodes(self, nodes: Sequence[Node], *, op_id: str | None = None) -> list[Node]:
        """Add nodes made with `Node.of` in one transaction: all of them, or none."""
        return self._run(self._operations.register(nodes, op_id))

    def nodes(self) -> list[NodeStatus]:
        """Return the status of every node, sorted by name."""
        return self._run_then(GetStatus(), lambda status: list(status.nodes))

    def node(self, name: str) -> NodeStatus:
        """Return the status of one node; raise `UnknownNode` if there is none of that name."""
        return self._run(self._operations.node(name))

    def drain(self, name: str, *, op_id: str | None = None) -> Node:
        """Place no new work on a node. Its allocations stay as they are."""
        return self._run_then(self._operations.set_draining(name, True, op_id), _first)

    def resume(self, name: str, *, op_id: str | None = None) -> Node:
        """Place work on a drained node again."""
        return self._run_then(self._operations.set_draining(name, False, op_id), _first)

    def set_health(
        self, name: str, health: str, *, why: str = "", op_id: str | None = None
    ) -> Node:
        """Mark a node `up`, `suspect` or `down`.

        A suspect node gets no new work. The allocations of a node that is down become `lost`,
        and their resources are free again.
        """
        return self._run_then(self._operations.set_health(name, health, why, op_id), _first)

    def unregister(self, name: str, *, force: bool = False, op_id: str | None = None) -> None:
        """Remove a node. One with live allocations needs `force`, and they become `lost`."""
        return self._run_then(self._operations.unregister(name, force, op_id), _nothing)

    def report_foreign(self, node: str, used: Mapping[str, Any]) -> None:
        """Report how much memory of each GPU other programs use: `{"gpu1/0": "10GB"}`."""
        return self._run(self._operations.set_foreign(node, used))

    # ---- allocations

    def fits(self, /, node: str, resources: Asked = None, **named: Any) -> bool:
        """Return whether the node has room for the request now. Takes what `allocate` takes."""
        return self._run(self._operations.fits(node, resources, named))

    def explain(self, /, resources: Asked = None, **named: Any) -> Explanation:
        """Return where a request would be placed now, or why it would not.

        The explanation says what each node lacks, whether the request could ever fit, and which
        smaller request would fit now. It takes what `allocate` takes and changes nothing.
        """
        return self._run(self._operations.explain(resources, named))

    def allocate(
        self,
        /,
        resources: Asked = None,
        *,
        holder: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0,
        priority: str | None = None,
        op_id: str | None = None,
        **named: Any,
    ) -> Allocation:
        """Hold resources on one node until they are released; raise `NoRoom` if none has room.

        >>> grid = Grid.in_memory()
        >>> node = grid.register_node("box", cpu=4, memory="8GB")
        >>> held = grid.allocate(cpu=2, memory="4GB")
        >>> held.node, held.state
        ('box', 'active')

        Amounts are keywords, a mapping or a string: `cpu=2`, `{"cpu": 2}`, `"cpu=2"`. The other
        keywords are those of `Request.of`, such as `node=`, `prefer=`, `labels=`, `strategy=`
        or `quality=`.

        holder: a name for the allocation, unique among the owner's live ones. The same request
            under the same name returns the allocation that exists; another one raises
            `HolderBusy`.
        ttl: seconds after which the allocation expires unless it is renewed. Without it the
            allocation lasts until it is released, and with a controller at most as long as this
            grid is open.
        wait: seconds to wait for room before `NoRoom` is raised. Waiting requests are served in
            order of arrival, but a large one does not block smaller ones that fit.
        priority: while it waits: `urgent`, `high`, `medium` (the default) or `low`.
        op_id: an id of your choice that makes a repeat safe: the same id returns the same reply
            for a day.
        """
        operation = self._operations.allocate(resources, holder, ttl, op_id, named, wait, priority)
        return self._run_then(operation, lambda granted: self._allocation(granted.allocations))

    def allocate_group(
        self,
        requests: Sequence[Asked],
        *,
        holder: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0,
        priority: str | None = None,
        apart: bool = False,
        together: bool = False,
        op_id: str | None = None,
    ) -> list[Allocation]:
        """Hold all of the requests, or none. They are renewed and released together.

        With `apart` each is on a node of its own; with `together` all are on one node. The other
        options are those of `allocate`.
        """
        layout = read_layout(apart, together)
        operation = self._operations.group(requests, holder, ttl, op_id, layout, wait, priority)
        return self._run_then(operation, lambda granted: self._allocations(granted.allocations))

    def reserve(
        self,
        /,
        resources: Asked = None,
        *,
        ttl: Duration = DEFAULT_RESERVATION_S,
        holder: str | None = None,
        wait: Duration = 0,
        priority: str | None = None,
        op_id: str | None = None,
        **named: Any,
    ) -> Allocation:
        """Hold resources that expire after `ttl` seconds unless they are confirmed before.

        The other options are those of `allocate`.
        """
        operation = self._operations.reserve(resources, holder, ttl, op_id, named, wait, priority)
        return self._run_then(operation, lambda granted: self._allocation(granted.allocations))

    def confirm(
        self,
        allocation: str | AllocationFacts,
        *,
        ttl: Duration | None = None,
        op_id: str | None = None,
    ) -> Allocation:
        """Turn a reservation into an allocation; with a `ttl` in seconds, into a lease."""
        operation = self._operations.move(allocation, AllocationMove.CONFIRM, ttl, op_id)
        return self._run_then(operation, self._allocation)

    def renew(
        self,
        allocation: str | AllocationFacts,
        *,
        ttl: Duration | None = None,
        op_id: str | None = None,
    ) -> Allocation:
        """Extend a lease to `ttl` seconds from now, or by its own `ttl` if none is given."""
        operation = self._operations.move(allocation, AllocationMove.RENEW, ttl, op_id)
        return self._run_then(operation, self._allocation)

    def release(self, allocation: str | AllocationFacts, *, op_id: str | None = None) -> Allocation:
        """Release an allocation, given itself or its id. One that has ended stays as it is."""
        operation = self._operations.move(allocation, AllocationMove.RELEASE, None, op_id)
        return self._run_then(operation, self._allocation)

    def allocations(self) -> list[Allocation]:
        """Return every live allocation, of all owners."""
        return self._run_then(ListAllocations(), self._allocations)

    # ---- inspection

    def status(self) -> Status:
        """Return the totals of the cluster and the status of each node."""
        return self._run(GetStatus())

    def check(self) -> list[Violation]:
        """Recount everything independently and return the invariants that do not hold."""
        return self._run(CheckLedger())

    def dump(self) -> dict[str, Any]:
        """Return the whole state as plain data, as `check` reads it."""
        return self._run(DumpLedger())

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return what happened, in order, starting behind event number `after`."""
        return self._run(self._operations.events(after, limit))

    def prune(self, older_than_s: float, *, most: int = 5000) -> Iterator[int]:
        """Delete events older than that many seconds, `most` at a time; yield how many are left.

        Each step runs when the next number is requested, so loop over the result. Other
        operations run between two steps. The events that stay can still be replayed.
        """
        left = 1
        while left:
            left = self._run(self._operations.prune(older_than_s, most))
            yield left

    # ---- handles

    def _allocation(self, records: list[Record]) -> Allocation:
        return Allocation(records[0], self)

    def _allocations(self, records: list[Record]) -> list[Allocation]:
        return [Allocation(record, self) for record in records]


def _first(nodes: list[Node]) -> Node:
    return nodes[0]


def _nothing(_: object) -> None:
    return None
