"""Grid: the ledger as Python methods, from any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gridhand.core.allocations import Allocation as Record
from gridhand.core.allocations import Move
from gridhand.core.calls import Call, Reply
from gridhand.core.errors import GridError
from gridhand.core.gpus import Gpu
from gridhand.core.html import table
from gridhand.core.names import check_label
from gridhand.core.nodes import Node
from gridhand.core.resources import Resources
from gridhand.library.allocation import Allocation
from gridhand.library.backend import Backend, read_flag, read_owner, read_ttl, the_backend
from gridhand.library.calling import close_caller
from gridhand.library.calls import DEFAULT_RESERVATION_S, Calls, read_layout
from gridhand.library.current import enter, leave
from gridhand.library.graphs import RunsGraphs
from gridhand.library.running import Asked, RunsJobs

if TYPE_CHECKING:
    from gridhand.core.check import Violation
    from gridhand.core.explanation import Explanation
    from gridhand.core.views import NodeStatus, Status
    from gridhand.library.backend import Tracker
    from gridhand.library.caller import Caller
    from gridhand.store.base import Event

    def _is_a_tracker(grid: Grid) -> Tracker:
        return grid  # for the type checker to prove


OwnStrategy = str | Callable[..., Sequence[float]]


class Grid(RunsJobs, RunsGraphs):
    """Nodes, and resources held on them.

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
    ) -> None:
        """The grid of this machine's controller, which is started if need be; or of another's.

        What is allocated ends with this grid, or with its process; a `ttl` makes it last.
        """
        self._backend = the_backend(backend, address)
        self._calls = Calls(self._backend, read_owner(owner, self._backend))
        self._caller: Caller | None = None

    @classmethod
    def in_memory(cls, *, strategy: OwnStrategy = "default", owner: str | None = None) -> Self:
        """A grid of this process alone, gone when it is closed."""
        from gridhand.controller.embedded import Embedded

        owner = read_owner(owner)
        return cls(backend=Embedded.in_memory(strategy), owner=owner)

    @classmethod
    def at(
        cls,
        store_url: str,
        *,
        strategy: OwnStrategy = "default",
        owner: str | None = None,
        wait: float = 0,
        take_over: bool = False,
        create: bool = True,
        expect: str | None = None,
    ) -> Self:
        """A grid whose state is kept in a store, and is there after a restart or a crash.

        One process at a time owns a store; `StoreOwned` says which one does. `wait` is for how
        many seconds to wait for it to end; `take_over` takes the store from an owner that hangs,
        and that can write nothing from then on. With `create=False` the store must be there;
        with `expect` it must be that ledger, and not older: an `identity` that was noted before.
        """
        from gridhand.controller.embedded import Embedded

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
        """The same grid, acting in the name of another owner."""
        return type(self)(backend=self._backend, owner=check_label(owner, "owner"))

    @property
    def owner(self) -> str:
        return self._calls.owner

    @property
    def identity(self) -> str:
        """Which ledger this is and how often it has changed hands, for `expect` of `Grid.at`."""
        return self._backend.identity

    def close(self) -> None:
        """Give the store back: what is held in it stays held. Or let go of the controller: what
        was allocated without a `ttl` ends, and so do jobs that are not detached.

        Functions that are being called are stopped first.
        """
        leave(self)
        close_caller(self)
        self._backend.close()

    def __repr__(self) -> str:
        return f"<grid of {self.owner} {self._backend.where}>"

    def _repr_html_(self) -> str:
        """A table of the nodes, as they are now."""
        try:
            nodes = self.nodes()
        except GridError as error:
            return table((), (), f"{self!r}: {error}")
        rows = [(one.name, one.health, one.total, one.allocated, one.available) for one in nodes]
        return table(("node", "health", "total", "allocated", "available"), rows, repr(self))

    def __enter__(self) -> Self:
        """Tasks that are submitted inside of the block go to this grid."""
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
        """Add a node, or describe it anew: what is held there stays held."""
        node = Node.of(
            name, resources, gpus=gpus, labels=labels, price=price, address=address, **named
        )
        return self.register_nodes([node], op_id=op_id)[0]

    def register_nodes(self, nodes: Sequence[Node], *, op_id: str | None = None) -> list[Node]:
        """Add many nodes as one: all of them, or none."""
        return self._ask(self._calls.register(nodes, op_id))

    def nodes(self) -> list[NodeStatus]:
        """Every node, in the order of their names."""
        return list(self.status().nodes)

    def node(self, name: str) -> NodeStatus:
        return self._ask(self._calls.node(name))

    def drain(self, name: str, *, op_id: str | None = None) -> Node:
        """Give the node no new work. What is held there stays held."""
        return self._ask(self._calls.set_draining(name, True, op_id))[0]

    def resume(self, name: str, *, op_id: str | None = None) -> Node:
        """Give a drained node work again."""
        return self._ask(self._calls.set_draining(name, False, op_id))[0]

    def set_health(
        self, name: str, health: str, *, why: str = "", op_id: str | None = None
    ) -> Node:
        """Mark a node `up`, `suspect` (no new work) or `down` (what it held is lost, and free)."""
        return self._ask(self._calls.set_health(name, health, why, op_id))[0]

    def unregister(self, name: str, *, force: bool = False, op_id: str | None = None) -> None:
        """Remove a node. With live allocations only by `force`, and these are then lost."""
        self._ask(self._calls.unregister(name, force, op_id))

    def report_foreign(self, node: str, used: Mapping[str, Any]) -> None:
        """Say how much memory of each device strangers use: `{"gpu1/0": "10GB"}`."""
        self._ask(self._calls.set_foreign(node, used))

    # ---- allocations

    def fits(self, node: str, resources: Asked = None, **named: Any) -> bool:
        """Whether the request would be granted on that node now."""
        return self._ask(self._calls.fits(node, resources, named))

    def explain(self, resources: Asked = None, **named: Any) -> Explanation:
        """Where the request would go now; or why nowhere, if it ever could, and what would fit.

        It takes what `allocate` takes, and changes nothing. Print it, or read its fields.
        """
        return self._ask(self._calls.explain(resources, named))

    def allocate(
        self,
        resources: Asked = None,
        *,
        holder: str | None = None,
        ttl: float | None = None,
        wait: float = 0,
        op_id: str | None = None,
        **named: Any,
    ) -> Allocation:
        """Hold resources on one node until they are released, or `NoRoom`.

        With a `ttl` in seconds it is a lease, to be renewed before it is over. Keywords are
        amounts (`cpu=2`) and the wishes of `Request.of` (`node=`, `prefer=`, `quality=` …).

        With `wait` it comes back when there is room, and `NoRoom` only after so many seconds.
        Those who wait are served in the order they came, except that one who asks for much does
        not keep others from what is there.
        """
        return self._held(
            self._ask(self._calls.allocate(resources, holder, ttl, op_id, named, wait))
        )

    def allocate_group(
        self,
        requests: Sequence[Asked],
        *,
        holder: str | None = None,
        ttl: float | None = None,
        wait: float = 0,
        apart: bool = False,
        together: bool = False,
        op_id: str | None = None,
    ) -> list[Allocation]:
        """Hold all of the requests, or none. They are renewed and released as one, too.

        With `apart` each is on a node of its own, with `together` all are on one.
        """
        layout = read_layout(apart, together)
        made = self._ask(self._calls.group(requests, holder, ttl, op_id, layout, wait))
        return [Allocation(record, self) for record in made]

    def reserve(
        self,
        resources: Asked = None,
        *,
        ttl: float = DEFAULT_RESERVATION_S,
        holder: str | None = None,
        wait: float = 0,
        op_id: str | None = None,
        **named: Any,
    ) -> Allocation:
        """Hold resources for at most `ttl` seconds, within which they are to be confirmed."""
        return self._held(
            self._ask(self._calls.reserve(resources, holder, ttl, op_id, named, wait))
        )

    def confirm(
        self, allocation: str | Allocation, *, ttl: float | None = None, op_id: str | None = None
    ) -> Allocation:
        """Turn a reservation into an allocation; with a `ttl` into a lease."""
        return self._move(allocation, Move.CONFIRM, ttl, op_id)

    def renew(
        self, allocation: str | Allocation, *, ttl: float | None = None, op_id: str | None = None
    ) -> Allocation:
        """Put the end of a lease off, to `ttl` seconds (or as many as before) from now."""
        return self._move(allocation, Move.RENEW, ttl, op_id)

    def release(self, allocation: str | Allocation, *, op_id: str | None = None) -> Allocation:
        """Give an allocation back, by its id or itself. What has ended already stays as it is."""
        return self._move(allocation, Move.RELEASE, None, op_id)

    def allocations(self) -> list[Allocation]:
        """Everything that is held, by anyone."""
        return [Allocation(record, self) for record in self._ask(self._backend.allocations())]

    # ---- knowing

    def status(self) -> Status:
        """The cluster added up, and each of its nodes."""
        return self._ask(self._backend.status())

    def check(self) -> list[Violation]:
        """Recount everything and say which invariants do not hold: none, if all is well."""
        return self._ask(self._backend.check())

    def dump(self) -> dict[str, Any]:
        """The state as plain data, as `check` reads it."""
        return self._ask(self._backend.dump())

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened, in order, from the event after number `after`."""
        return self._ask(self._calls.events(after, limit))

    def prune(self, older_than_s: float, *, most: int = 5000) -> Iterator[int]:
        """Forget what is older, `most` events at a time; yields how many are still to go.

        A step is taken when the next number is asked for, and none before: loop over it. Others
        are served between two steps. What is kept can still be replayed.
        """
        left = 1
        while left:
            left = self._ask(self._calls.prune(older_than_s, most))
            yield left

    # ---- inside

    def _ask(self, call: Call[Reply]) -> Reply:
        return self._backend.call(call)

    def _held(self, made: list[Record]) -> Allocation:
        return Allocation(made[0], self)

    def _move(
        self, allocation: str | Allocation, move: Move, ttl: float | None, op_id: str | None
    ) -> Allocation:
        return self._held(self._ask(self._calls.move(allocation, move, ttl, op_id)))
