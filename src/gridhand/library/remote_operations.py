"""Calls to a controller: what to ask, how to read the answer, and what to do if nobody wants it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gridhand.client import routes
from gridhand.client.problems import unavailable
from gridhand.client.routes import PREFIX, Ask, new_op_id, quoted
from gridhand.core.allocations import Allocation, Lifetime, Move
from gridhand.core.calls import Call, Reply
from gridhand.core.errors import InvalidInput, NeverFits, NoRoom
from gridhand.core.jobviews import request_row
from gridhand.core.rowreading import allocation_from_row

if TYPE_CHECKING:
    from gridhand.core.ledger import Terms
    from gridhand.core.requests import Request
    from gridhand.library.remote import Remote
    from gridhand.library.session import Session

_TRIES = 3
_WHILE_S = 30.0


class RemoteCall(Call[Reply]):
    """A call that knows how to ask a controller, and blocks until the answer is there."""

    __slots__ = ()

    def run(self, remote: Remote) -> Reply:
        raise NotImplementedError

    def undo(self, remote: Remote, reply: Reply) -> None:
        """Nobody waits for the answer: give back what was granted to this call alone."""


class Asking(RemoteCall[Reply]):
    """Something to ask in the name of an owner, and how to read the answer."""

    __slots__ = ("ask", "owner", "read")

    def __init__(self, owner: str | None, ask: Ask, read: Callable[[Any], Reply]) -> None:
        self.owner = owner
        self.ask = ask
        self.read = read

    def run(self, remote: Remote) -> Reply:
        return self.read(remote.ask(self.owner, self.ask))


class Holding(RemoteCall[list[Allocation]]):
    """Something to be held. `fresh` when it was granted to this call, and to no earlier one."""

    __slots__ = (
        "abandoned", "chosen", "fresh", "op_id", "owner", "requests", "terms", "wait_ms",
    )  # fmt: skip

    def __init__(
        self,
        owner: str,
        op_id: str | None,
        requests: tuple[Request, ...],
        terms: Terms,
        wait_ms: int = 0,
    ) -> None:
        self.owner = owner
        self.op_id = op_id or new_op_id()
        self.chosen = op_id is not None or terms.holder is not None
        self.requests = requests
        self.terms = terms
        self.wait_ms = wait_ms
        self.fresh = False
        self.abandoned = False  # nobody waits for it any more

    def run(self, remote: Remote) -> list[Allocation]:
        """What was granted. For room it is waited a while at a time, so that a reply comes."""
        deadline = time.monotonic() + self.wait_ms / 1000
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return self._run(remote, min(left_s, _WHILE_S))
            except NoRoom as error:
                if isinstance(error, NeverFits) or left_s <= _WHILE_S or self.abandoned:
                    raise

    def _run(self, remote: Remote, wait_s: float) -> list[Allocation]:
        if self.terms.lifetime is Lifetime.LEASE:
            return self._read(remote.ask(self.owner, self._ask(None, wait_s)))
        session = remote.session(self.owner)
        lost = False
        for _ in range(_TRIES):
            id = session.ready()
            try:
                made = self._read(remote.ask(self.owner, self._ask(id, wait_s)))
            except InvalidInput as error:
                if error.field != "session":
                    raise
                session.lost(id)
                lost = True
                continue
            if not (lost and self._ended_meanwhile(remote, made)):
                return self._held_in(session, made)
        raise unavailable("the connection to the controller is lost again and again")

    def _ended_meanwhile(self, remote: Remote, made: list[Allocation]) -> bool:
        """Whether it was granted to the session that was lost, and has ended with it.

        It is asked for once more then, and as something new.
        """
        if self.fresh or self.chosen:
            return False
        now = remote.ask(self.owner, Ask("GET", f"{PREFIX}/allocations/{quoted(made[0].id)}"))
        if allocation_from_row(now["row"]).live:
            return False
        self.op_id = new_op_id()
        return True

    def undo(self, remote: Remote, reply: list[Allocation]) -> None:
        if self.fresh:
            remote.run(remote.move(self.owner, None, reply[0].id, Move.RELEASE, None))

    def _ask(self, session: str | None, wait_s: float) -> Ask:
        terms, rows = self.terms, list(map(request_row, self.requests))
        order: dict[str, Any] = {
            "holder": terms.holder,
            "ttl_s": None if terms.ttl_ms is None else terms.ttl_ms / 1000,
            "state": str(terms.state),
            "session": session,
            "wait_s": wait_s,
        }
        if len(rows) == 1:
            return routes.allocate({**order, "request_row": rows[0]}, self.op_id)
        order |= {"request_rows": rows, "layout": str(terms.layout)}
        return routes.allocate_group(order, self.op_id)

    def _held_in(self, session: Session, made: list[Allocation]) -> list[Allocation]:
        for held in made:
            if held.lifetime is Lifetime.SESSION:
                session.hold(held.id)
        return made

    def _read(self, told: Any) -> list[Allocation]:
        several = told if isinstance(told, list) else [told]
        self.fresh = all(one["fresh"] for one in several)
        return [allocation_from_row(one["row"]) for one in several]
