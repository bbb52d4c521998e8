"""Remote: the library's backend when a controller keeps the ledger."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from gridhand.audit import Violation
from gridhand.client import routes
from gridhand.client.session import Session
from gridhand.core.errors import GridClosed, GridError, InvalidInput, NoRoom
from gridhand.core.ledger.allocations import Allocation, Lifetime
from gridhand.core.observations import SetForeignUse
from gridhand.core.operations import (
    Allocate,
    CheckLedger,
    DumpLedger,
    Explain,
    Fits,
    GetNode,
    GetStatus,
    ListAllocations,
    ListEvents,
    MoveAllocation,
    Operation,
    Prune,
    Register,
    Reply,
    SetDraining,
    SetHealth,
    Unregister,
)
from gridhand.core.rows.answers import (
    added_up,
    explanation_from_row,
    node_status_from_row,
    refusal_from_row,
)
from gridhand.core.rows.ledger import Event, allocation_from_row, node_from_row, node_row
from gridhand.core.rows.requests import request_row
from gridhand.library.loop_bridge import LoopThreadPort
from gridhand.library.remote_operations import (
    RemoteAllocate,
    RemoteMove,
    RemoteOperation,
    RemoteRequest,
)

if TYPE_CHECKING:
    import asyncio

    from gridhand.client.client import Client
    from gridhand.client.retry import OnOpen
    from gridhand.client.routes import HttpCall
    from gridhand.core.explain.explanation import Explanation
    from gridhand.core.ledger.status import NodeStatus, Status
    from gridhand.core.model.nodes import Node

_THREADS = 32


def connected(address: str | None) -> Remote:
    """Return the controller at an address, else this machine's, started if need be."""
    from gridhand.client.controller_finder import connect

    if address is not None and not isinstance(address, str):
        raise InvalidInput("address", address, "an address such as http://host:7070")
    return Remote(connect(address))


class Remote:
    """Runs operations at a controller."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._clients: dict[str, Client] = {}
        self._sessions: dict[str, Session] = {}
        self._changing = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False

    @property
    def user(self) -> str:
        """The owner that the controller takes us for: our user, or the owner of our token."""
        from gridhand.posix.unix_users import user_name

        if self._client.remote:
            return str(self._client.version()["owner"])

        return user_name(os.geteuid())

    @property
    def where(self) -> str:
        return f"at {self._client.address}"

    @property
    def identity(self) -> str:
        return str(self.ask(None, routes.identity()))

    def close(self) -> None:
        """End the sessions, and with them what is held in them."""
        if os.getpid() != self._pid:
            return
        with self._changing:
            sessions, self._sessions = self._sessions, {}
            self._closed = True
        for session in sessions.values():
            session.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        for client in (self._client, *self._clients.values()):
            client.close()

    # ---- operations

    def run(self, operation: Operation[Reply]) -> Reply:
        """Return the reply to an operation, or raise its error.

        If the wait is interrupted, what the operation is granted is released.
        """
        call = self.call_for(operation)
        try:
            return call.run(self)
        except GridError:
            raise
        except BaseException:
            if isinstance(call, RemoteAllocate) and not call.chosen and not self._closed:
                threading.Thread(target=self.take_back, args=(call,), daemon=True).start()
            raise

    def call_for(self, operation: Operation[Reply]) -> RemoteOperation[Reply]:
        """Return what has to be done here to run an operation at the controller."""
        if isinstance(operation, RemoteOperation):
            return operation
        if isinstance(operation, Allocate):
            return cast("RemoteOperation[Reply]", RemoteAllocate(operation))
        if isinstance(operation, MoveAllocation):
            return cast("RemoteOperation[Reply]", RemoteMove(operation, http_call(operation)))
        return http_call(operation)

    def port(self, loop: asyncio.AbstractEventLoop) -> LoopThreadPort:
        return LoopThreadPort(self, loop)

    def give_back(self, operation: Operation[Reply], reply: Reply) -> None:
        """Release what the operation alone was granted: nobody waits for its reply."""
        self.undo(self.call_for(operation), reply)

    def undo(self, call: RemoteOperation[Reply], reply: Reply) -> None:
        """Undo a call in a thread, since the caller may be an event loop."""

        def work() -> None:
            with suppress(GridError):  # what is left ends with the session
                call.undo(self, reply)

        with suppress(GridClosed):
            self.in_a_thread(work)

    def checked(self) -> Remote:
        """Return itself; raise `GridClosed` if it is closed or belongs to another process."""
        self._check()
        return self

    def in_a_thread(self, work: Callable[[], object], *, long: bool = False) -> None:
        """Run `work` in a shared thread, or in a thread of its own if it takes `long`."""
        with self._changing:
            self._check()
            if long:
                threading.Thread(target=work, name="gridhand-wait", daemon=True).start()
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "gridhand")
            self._pool.submit(work)

    def ask(self, owner: str | None, ask: HttpCall, opened: OnOpen | None = None) -> Any:
        self._check()
        try:
            return self.client(owner).ask(ask, opened=opened)
        except NoRoom as error:
            if isinstance(row := getattr(error, "refusal", None), Mapping):
                error.refusal = refusal_from_row(row)
            raise

    def client(self, owner: str | None) -> Client:
        if owner is None:
            return self._client
        with self._changing:
            if owner not in self._clients:
                self._clients[owner] = self._client.for_owner(owner)
            return self._clients[owner]

    def forget(self, moved: Allocation) -> None:
        """Take an allocation out of its owner's session if it has ended or outlasts the session."""
        session = self._sessions.get(moved.owner)
        if session is not None and not (moved.live and moved.lifetime is Lifetime.SESSION):
            session.let_go(moved.id)

    def session(self, owner: str) -> Session:
        client = self.client(owner)
        with self._changing:
            self._check()
            if owner not in self._sessions:
                self._sessions[owner] = Session(client)
            return self._sessions[owner]

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this grid belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        if self._closed:
            raise GridClosed("this grid was closed", hint="Open another one.")

    def take_back(self, call: RemoteAllocate) -> None:
        """Repeat the operation under its op id to learn what was granted, and release it."""
        call.wait_ms, call.abandoned = 0, False
        with suppress(GridError):  # it was not granted, or ends with the session
            made = call.run(self).allocations
            self.run(MoveAllocation(call.owner, id=made[0].id))


def http_call(operation: Operation[Any]) -> RemoteRequest[Any]:
    """Return the request that sends an operation to a controller, and how to read the reply.

    Questions are asked in nobody's name unless they depend on the owner.
    """
    match operation:
        case MoveAllocation(owner, op_id, id, move, ttl_ms):
            ttl_s = None if ttl_ms is None else ttl_ms / 1000
            return RemoteRequest(owner, routes.move(id, str(move), ttl_s, op_id), _one_allocation)
        case Register(owner, op_id, nodes):
            rows = [{"row": node_row(node)} for node in nodes]
            return RemoteRequest(owner, routes.register(rows, op_id), _nodes)
        case SetDraining(owner, op_id, name, draining):
            change = routes.drain if draining else routes.resume
            return RemoteRequest(owner, change(name, op_id), _one_node)
        case SetHealth(owner, op_id, name, health, why):
            return RemoteRequest(owner, routes.set_health(name, str(health), why, op_id), _one_node)
        case Unregister(owner, op_id, name, force):
            return RemoteRequest(owner, routes.remove(name, force, op_id), lambda reply: [])
        case Fits(owner, request):
            return RemoteRequest(owner, routes.fits({"request_row": request_row(request)}), bool)
        case Explain(owner, request, lower):
            rows = list(map(request_row, lower))
            body = {"request_row": request_row(request), "lower_rows": rows}
            return RemoteRequest(owner, routes.explain(body), _explanation)
        case SetForeignUse(node, used):
            return RemoteRequest(None, routes.set_foreign(node, used), lambda reply: None)
        case GetNode(name):
            return RemoteRequest(None, routes.node(name), _node_status)
        case GetStatus():
            return RemoteRequest(None, routes.nodes(), _status)
        case ListAllocations():
            return RemoteRequest(None, routes.allocations(), _allocations)
        case DumpLedger():
            return RemoteRequest(None, routes.dump(), dict)
        case CheckLedger():
            return RemoteRequest(None, routes.check(), _violations)
        case ListEvents(after, limit):
            return RemoteRequest(None, routes.events(after, limit), _events)
        case Prune(age_ms, most):
            return RemoteRequest(None, routes.prune(age_ms / 1000, most), int)
        case _:
            raise TypeError(f"{type(operation).__name__} cannot be sent to a controller")


def _allocations(reply: Any) -> list[Allocation]:
    return [allocation_from_row(held["row"]) for held in reply]


def _one_allocation(reply: Any) -> list[Allocation]:
    return _allocations([reply])


def _nodes(reply: Any) -> list[Node]:
    return [node_from_row(node["row"]) for node in reply]


def _one_node(reply: Any) -> list[Node]:
    return _nodes([reply])


def _node_status(reply: Any) -> NodeStatus:
    return node_status_from_row(reply["row"])


def _explanation(reply: Any) -> Explanation:
    return explanation_from_row(reply["row"])


def _violations(reply: Any) -> list[Violation]:
    return [Violation(**violation) for violation in reply["violations"]]


def _status(reply: Any) -> Status:
    return added_up(map(_node_status, reply))


def _events(reply: Any) -> list[Event]:
    return [
        Event(**{name: row[name] for name in Event._fields} | {"at": row["at_ms"]}) for row in reply
    ]
