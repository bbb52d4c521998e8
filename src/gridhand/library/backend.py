"""What the library needs of whatever keeps the ledger: in this process, or over a connection."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gridhand.core.calls import Call, Reply
from gridhand.core.errors import InvalidInput
from gridhand.core.names import check_label

if TYPE_CHECKING:
    import asyncio

    from gridhand.core.allocations import Allocation, Move
    from gridhand.core.check import Violation
    from gridhand.core.explanation import Explanation
    from gridhand.core.ledger import Terms
    from gridhand.core.nodes import Health, Node
    from gridhand.core.requests import Request
    from gridhand.core.views import NodeStatus, Status
    from gridhand.store.base import Event

LONGEST_TTL_S = 10 * 366 * 86_400


@runtime_checkable
class Tracker(Protocol):
    """A tracker of one's own is any object with these three; `Grid` is one."""

    def fits(self, node: str, resources: Any = None, **named: Any) -> bool: ...

    def allocate(self, resources: Any = None, **named: Any) -> Any: ...

    def release(self, allocation: Any) -> Any: ...


class Port(Protocol):
    """Awaits answers in one event loop."""

    def call(self, call: Call[Reply]) -> asyncio.Future[Reply]: ...


class Backend(Protocol):
    """Builds calls, and waits for their answers."""

    def call(self, call: Call[Reply]) -> Reply: ...

    def port(self, loop: asyncio.AbstractEventLoop) -> Port: ...

    def close(self) -> None: ...

    @property
    def identity(self) -> str: ...

    @property
    def where(self) -> str:
        """Where its ledger is, for people."""

    def give_back(self, call: Call[list[Allocation]], made: list[Allocation]) -> None: ...

    def allocate(
        self,
        owner: str,
        op_id: str | None,
        requests: tuple[Request, ...],
        terms: Terms,
        wait_ms: int = 0,
    ) -> Call[list[Allocation]]: ...

    def move(
        self, owner: str, op_id: str | None, id: str, move: Move, ttl_ms: int | None
    ) -> Call[list[Allocation]]: ...

    def register(
        self, owner: str, op_id: str | None, nodes: tuple[Node, ...]
    ) -> Call[list[Node]]: ...

    def set_draining(
        self, owner: str, op_id: str | None, name: str, draining: bool
    ) -> Call[list[Node]]: ...

    def set_health(
        self, owner: str, op_id: str | None, name: str, health: Health, why: str
    ) -> Call[list[Node]]: ...

    def unregister(
        self, owner: str, op_id: str | None, name: str, force: bool
    ) -> Call[list[Node]]: ...

    def fits(self, owner: str, request: Request) -> Call[bool]: ...

    def explain(
        self, owner: str, request: Request, lower: tuple[Request, ...]
    ) -> Call[Explanation]: ...

    def set_foreign(self, node: str, used: Mapping[str, int]) -> Call[None]: ...

    def node(self, name: str) -> Call[NodeStatus]: ...

    def status(self) -> Call[Status]: ...

    def allocations(self) -> Call[list[Allocation]]: ...

    def dump(self) -> Call[dict[str, Any]]: ...

    def check(self) -> Call[list[Violation]]: ...

    def events(self, after: int, limit: int) -> Call[list[Event]]: ...

    def prune(self, age_ms: int, most: int) -> Call[int]: ...


def the_backend(backend: Backend | None, address: str | None = None) -> Backend:
    """The backend that was given, or the controller at an address, or the one of this machine."""
    if backend is not None:
        return backend
    from gridhand.library.remote import connected

    return connected(address)


def read_ttl(seconds: float | None, field: str = "ttl") -> int | None:
    """A time in seconds as milliseconds, or None."""
    if seconds is None:
        return None
    # A comparison with NaN is never true.
    if type(seconds) not in (int, float) or not 0.001 <= seconds <= LONGEST_TTL_S:
        raise InvalidInput(field, seconds, f"seconds from 0.001 to {LONGEST_TTL_S}")
    return round(seconds * 1000)


def read_wait(seconds: float) -> int:
    """How long to wait, in seconds, as milliseconds; 0 is not to wait."""
    if type(seconds) in (int, float) and seconds == 0:
        return 0
    wait_ms = read_ttl(seconds, "wait")
    if wait_ms is None:
        raise InvalidInput("wait", seconds, "seconds, or 0 not to wait")
    return wait_ms


def read_count(value: int, field: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most}")
    return value


def read_flag(value: bool, field: str) -> bool:
    """True or False, and nothing that merely counts as one: a text such as "no" is true."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "True or False")
    return value


def read_text(value: str, field: str) -> str:
    """A sentence for the record: anything that can be written down."""
    if isinstance(value, str) and len(value) <= 500 and "\0" not in value:
        with contextlib.suppress(UnicodeEncodeError):
            value.encode()
            return value
    raise InvalidInput(field, value, "a text of at most 500 characters")


def read_owner(owner: str | None, backend: Backend | None = None) -> str:
    """The owner given, or the user this process runs as, by the name the backend has for it."""
    if owner is None:
        owner = getattr(backend, "user", None)
    if owner is not None:
        return check_label(owner, "owner")
    try:
        return check_label(getpass.getuser(), "owner")
    except Exception:  # no such user, or a name that is not one of ours
        return f"uid-{os.getuid()}"


def read_op_id(op_id: str | None) -> str | None:
    return None if op_id is None else check_label(op_id, "op_id")
