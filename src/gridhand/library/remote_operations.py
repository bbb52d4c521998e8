"""Calls to a controller: what to send, how to read the reply, and how to undo it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gridhand.client import routes
from gridhand.client.errors import unavailable
from gridhand.client.routes import PREFIX, HttpCall, new_op_id, quoted
from gridhand.core.errors import InvalidInput, NeverFits, NoRoom, UnknownAllocation
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import Allocation, Lifetime
from gridhand.core.operations import Allocate, Granted, MoveAllocation, Operation, Reply
from gridhand.core.rows.ledger import allocation_from_row
from gridhand.core.rows.requests import request_row
from gridhand.library.idle_slots import are_slots_held, give_back_idle

if TYPE_CHECKING:
    from gridhand.client.http1 import HttpConnection
    from gridhand.client.session import Session
    from gridhand.library.remote import Remote

_TRIES = 3
_WHILE_S = 30.0
_LONGEST_ID = 100


class WaitAbandoned(Exception):
    """Nobody waits for the reply any more."""


class RemoteOperation(Operation[Reply]):
    """An operation that runs at a controller; `run` blocks until the reply is there."""

    __slots__ = ()

    def run(self, remote: Remote) -> Reply:
        raise NotImplementedError

    def undo(self, remote: Remote, reply: Reply) -> None:
        """Release what was granted to this call alone: nobody waits for its reply."""


class RemoteRequest(RemoteOperation[Reply]):
    """A request in the name of an owner, and how to read the reply."""

    __slots__ = ("ask", "owner", "read")

    def __init__(self, owner: str | None, ask: HttpCall, read: Callable[[Any], Reply]) -> None:
        self.owner = owner
        self.ask = ask
        self.read = read

    def run(self, remote: Remote) -> Reply:
        return self.read(remote.ask(self.owner, self.ask))


class RemoteMove(RemoteOperation[list[Allocation]]):
    """A move of an allocation, which may take it out of the session that holds it."""

    __slots__ = ("_ask", "_id")

    def __init__(self, operation: MoveAllocation, ask: RemoteRequest[list[Allocation]]) -> None:
        self._id = operation.id
        self._ask = ask

    def run(self, remote: Remote) -> list[Allocation]:
        if not self._id or len(self._id) > _LONGEST_ID:
            raise UnknownAllocation(self._id)
        moved = self._ask.run(remote)
        remote.forget(moved[0])
        return moved


class RemoteAllocate(RemoteOperation[Granted]):
    """An allocation on its way: it may wait for room, and its session may be lost meanwhile."""

    __slots__ = (
        "_connection", "abandoned", "chosen", "op_id", "owner", "priority", "requests", "terms",
        "wait_ms",
    )  # fmt: skip

    def __init__(self, operation: Allocate) -> None:
        self.owner = operation.owner
        self.op_id = operation.op_id or new_op_id()
        self.chosen = operation.op_id is not None or operation.terms.holder is not None
        self.requests = operation.requests
        self.terms = operation.terms
        self.wait_ms = operation.wait_ms
        self.priority = operation.priority
        self.abandoned = False  # nobody waits for it any more
        self._connection: HttpConnection | None = None  # that it waits on

    def run(self, remote: Remote) -> Granted:
        """Return what was granted. Long-poll for room in slices of 30 s.

        What idle slots of this process hold is given back before it is refused.
        """
        deadline = time.monotonic() + self.wait_ms / 1000
        if are_slots_held():
            try:
                return self._run(remote, 0.0)
            except NoRoom as error:
                if isinstance(error, NeverFits):
                    raise
                give_back_idle(remote.client(None).address)
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return self._run(remote, min(left_s, _WHILE_S))
            except NoRoom as error:
                if isinstance(error, NeverFits) or left_s <= _WHILE_S or self.abandoned:
                    raise

    def leave(self) -> None:
        """Give up the place in line: the controller sees the connection end. Any thread may."""
        self.abandoned = True
        if (connection := self._connection) is not None:
            connection.shut_down()

    def _opened(self, connection: HttpConnection) -> None:
        self._connection = connection
        if self.abandoned:
            raise WaitAbandoned

    def _send(self, remote: Remote, session: str | None, wait_s: float) -> Granted:
        try:
            return self._read(remote.ask(self.owner, self._ask(session, wait_s), self._opened))
        finally:
            self._connection = None

    def _run(self, remote: Remote, wait_s: float) -> Granted:
        if self.terms.lifetime is Lifetime.LEASE:
            return self._send(remote, None, wait_s)
        session = remote.session(self.owner)
        lost = False
        for _ in range(_TRIES):
            id = session.ready()
            try:
                made = self._send(remote, id, wait_s)
            except InvalidInput as error:
                if error.field != "session":
                    raise
                session.lost(id)
                lost = True
                continue
            if not (lost and self._ended_meanwhile(remote, made)):
                return self._held_in(session, made)
        raise unavailable("the connection to the controller is lost again and again")

    def _ended_meanwhile(self, remote: Remote, made: Granted) -> bool:
        """Return whether it was granted to the session that was lost, and has ended with it.

        It is asked for once more then, and as something new.
        """
        if made.fresh or self.chosen:
            return False
        id = quoted(made.allocations[0].id)
        now = remote.ask(self.owner, HttpCall("GET", f"{PREFIX}/allocations/{id}"))
        if allocation_from_row(now["row"]).live:
            return False
        self.op_id = new_op_id()
        return True

    def undo(self, remote: Remote, reply: Granted) -> None:
        if reply.fresh:
            remote.run(MoveAllocation(self.owner, id=reply.allocations[0].id))

    def _ask(self, session: str | None, wait_s: float) -> HttpCall:
        terms, rows = self.terms, list(map(request_row, self.requests))
        order: dict[str, Any] = {
            "holder": terms.holder,
            "ttl_s": None if terms.ttl_ms is None else terms.ttl_ms / 1000,
            "state": str(terms.state),
            "session": session,
            "wait_s": wait_s,
        }
        if self.priority is not Priority.MEDIUM:
            order["priority"] = str(self.priority)
        if len(rows) == 1:
            return routes.allocate({**order, "request_row": rows[0]}, self.op_id)
        order |= {"request_rows": rows, "layout": str(terms.layout)}
        return routes.allocate_group(order, self.op_id)

    def _held_in(self, session: Session, made: Granted) -> Granted:
        for held in made.allocations:
            if held.lifetime is Lifetime.SESSION:
                session.hold(held.id)
        return made

    def _read(self, reply: Any) -> Granted:
        made = reply if isinstance(reply, list) else [reply]
        fresh = all(found["fresh"] for found in made)
        return Granted([allocation_from_row(found["row"]) for found in made], fresh)
