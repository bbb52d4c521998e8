"""Remote: the library's backend when a controller keeps the ledger."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from gridhand.client import routes
from gridhand.core.allocations import Allocation, Lifetime, Move
from gridhand.core.answers import (
    added_up,
    explanation_from_row,
    node_status_from_row,
    refusal_from_row,
)
from gridhand.core.calls import Call, Reply
from gridhand.core.check import Violation
from gridhand.core.errors import GridClosed, GridError, InvalidInput, NoRoom, UnknownAllocation
from gridhand.core.jobviews import request_row
from gridhand.core.rowreading import allocation_from_row, node_from_row
from gridhand.core.views import node_row
from gridhand.library.asking import Asking, Holding, RemoteCall
from gridhand.library.session import Session
from gridhand.library.threads import ThreadPort

if TYPE_CHECKING:
    import asyncio

    from gridhand.client.client import Client
    from gridhand.client.routes import Ask
    from gridhand.core.explanation import Explanation
    from gridhand.core.ledger import Terms
    from gridhand.core.nodes import Health, Node
    from gridhand.core.requests import Request
    from gridhand.core.views import NodeStatus, Status
    from gridhand.store.base import Event

_THREADS = 32
_LONGEST_ID = 100


def connected(address: str | None) -> Remote:
    """The controller at an address; else that of this machine, started if need be."""
    from gridhand.client.starting import connect

    if address is not None and not isinstance(address, str):
        raise InvalidInput("address", address, "an address such as http://host:7070")
    return Remote(connect(address))


class Remote:
    """The calls of the library, answered by a controller."""

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
        """The name that the controller knows us by, on this machine: that of our user id."""
        import pwd

        from gridhand.core.names import check_label

        try:
            return check_label(pwd.getpwuid(os.geteuid()).pw_name, "owner")
        except Exception:  # no such user, or a name that is not one of ours
            return f"uid-{os.geteuid()}"

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

    # ---- asking

    def call(self, call: Call[Reply]) -> Reply:
        """The answer to `call`, or the error it met."""
        try:
            return self.run(call)
        except GridError:
            raise
        except BaseException:  # interrupted: nobody will read the answer
            if isinstance(call, Holding) and not call.chosen and not self._closed:
                threading.Thread(target=self._take_back, args=(call,), daemon=True).start()
            raise

    def run(self, call: Call[Reply]) -> Reply:
        return cast("RemoteCall[Reply]", call).run(self)

    def port(self, loop: asyncio.AbstractEventLoop) -> ThreadPort:
        return ThreadPort(self, loop)

    def give_back(self, call: Call[list[Allocation]], made: list[Allocation]) -> None:
        """Release what `call` was granted, since nobody will. Not what the holder had before."""
        self.undo(call, made)

    def undo(self, call: Call[Reply], reply: Reply) -> None:
        """In a thread: who calls this may be an event loop."""

        def work() -> None:
            with suppress(GridError):  # what is left ends with the session
                cast("RemoteCall[Reply]", call).undo(self, reply)

        with suppress(GridClosed):
            self.in_a_thread(work)

    def checked(self) -> Remote:
        """Itself, unless it was closed or belongs to another process."""
        self._check()
        return self

    def in_a_thread(self, work: Callable[[], object], *, long: bool = False) -> None:
        """What takes `long` has a thread of its own: those that are shared stay free."""
        with self._changing:
            self._check()
            if long:
                threading.Thread(target=work, name="gridhand-wait", daemon=True).start()
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "gridhand")
            self._pool.submit(work)

    def ask(self, owner: str | None, ask: Ask) -> Any:
        self._check()
        try:
            return self.client(owner).ask(ask)
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

    def session(self, owner: str) -> Session:
        client = self.client(owner)
        with self._changing:
            self._check()
            if owner not in self._sessions:
                self._sessions[owner] = Session(client, owner)
            return self._sessions[owner]

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this grid belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        if self._closed:
            raise GridClosed("this grid was closed", hint="Open another one.")

    def _take_back(self, call: Holding) -> None:
        """Ask again with the same op id, which tells what was granted, and release that."""
        call.wait_ms = 0
        with suppress(GridError):  # it was not granted, or ends with the session
            made = call.run(self)
            self.run(self.move(call.owner, None, made[0].id, Move.RELEASE, None))

    # ---- what can be asked

    def allocate(
        self,
        owner: str,
        op_id: str | None,
        requests: tuple[Request, ...],
        terms: Terms,
        wait_ms: int = 0,
    ) -> Call[list[Allocation]]:
        return Holding(owner, op_id, requests, terms, wait_ms)

    def move(
        self, owner: str, op_id: str | None, id: str, move: Move, ttl_ms: int | None
    ) -> Call[list[Allocation]]:
        if not id or len(id) > _LONGEST_ID:
            raise UnknownAllocation(id)

        def read(told: Any) -> list[Allocation]:
            moved = allocation_from_row(told["row"])
            session = self._sessions.get(owner)
            over = not moved.live or moved.lifetime is not Lifetime.SESSION
            if session is not None and over:
                session.let_go(id)
            return [moved]

        ttl_s = None if ttl_ms is None else ttl_ms / 1000
        return Asking(owner, routes.move(id, str(move), ttl_s, op_id), read)

    def register(self, owner: str, op_id: str | None, nodes: tuple[Node, ...]) -> Call[list[Node]]:
        return Asking(
            owner,
            routes.register([{"row": node_row(node)} for node in nodes], op_id),
            lambda told: [node_from_row(one["row"]) for one in told],
        )

    def set_draining(
        self, owner: str, op_id: str | None, name: str, draining: bool
    ) -> Call[list[Node]]:
        change = routes.drain if draining else routes.resume
        return Asking(owner, change(name, op_id), _one_node)

    def set_health(
        self, owner: str, op_id: str | None, name: str, health: Health, why: str
    ) -> Call[list[Node]]:
        return Asking(owner, routes.set_health(name, str(health), why, op_id), _one_node)

    def unregister(self, owner: str, op_id: str | None, name: str, force: bool) -> Call[list[Node]]:
        return Asking(owner, routes.remove(name, force, op_id), lambda told: [])

    def fits(self, owner: str, request: Request) -> Call[bool]:
        return Asking(owner, routes.fits({"request_row": request_row(request)}), bool)

    def explain(
        self, owner: str, request: Request, lower: tuple[Request, ...]
    ) -> Call[Explanation]:
        rows = {"request_row": request_row(request), "lower_rows": list(map(request_row, lower))}
        return Asking(owner, routes.explain(rows), lambda told: explanation_from_row(told["row"]))

    def set_foreign(self, node: str, used: Mapping[str, int]) -> Call[None]:
        return Asking(None, routes.set_foreign(node, used), lambda told: None)

    def node(self, name: str) -> Call[NodeStatus]:
        return Asking(None, routes.node(name), lambda told: node_status_from_row(told["row"]))

    def status(self) -> Call[Status]:
        return Asking(None, routes.nodes(), _status)

    def allocations(self) -> Call[list[Allocation]]:
        return Asking(
            None,
            routes.allocations(),
            lambda told: [allocation_from_row(one["row"]) for one in told],
        )

    def dump(self) -> Call[dict[str, Any]]:
        return Asking(None, routes.dump(), dict)

    def check(self) -> Call[list[Violation]]:
        return Asking(
            None, routes.check(), lambda told: [Violation(**one) for one in told["violations"]]
        )

    def events(self, after: int, limit: int) -> Call[list[Event]]:
        return Asking(None, routes.events(after, limit), _events)

    def prune(self, age_ms: int, most: int) -> Call[int]:
        return Asking(None, routes.prune(age_ms / 1000, most), int)


def _one_node(told: Any) -> list[Node]:
    return [node_from_row(told["row"])]


def _status(told: Any) -> Status:
    return added_up(node_status_from_row(one["row"]) for one in told)


def _events(told: Any) -> list[Event]:
    from gridhand.store.base import Event

    return [
        Event(**{name: one[name] for name in Event._fields} | {"at": one["at_ms"]}) for one in told
    ]
