"""The interface of a backend, and the checks of what the library's users pass."""

from __future__ import annotations

import contextlib
import getpass
import os
from typing import TYPE_CHECKING, Any, Protocol

from gridhand.core.errors import InvalidInput
from gridhand.core.model.durations import read_duration
from gridhand.core.model.names import check_label
from gridhand.core.operations import Operation, Reply

if TYPE_CHECKING:
    import asyncio

LONGEST_TTL_S = 10 * 366 * 86_400

Duration = float | str  # seconds, or a text such as "5m"


class BackendPort(Protocol):
    """Runs operations for the tasks of one event loop."""

    def run(self, operation: Operation[Reply]) -> asyncio.Future[Reply]: ...


class Backend(Protocol):
    """Keeps a ledger, in this process or over a connection, and runs operations on it."""

    def run(self, operation: Operation[Reply]) -> Reply:
        """Return the reply to an operation, or raise its error."""

    def port(self, loop: asyncio.AbstractEventLoop) -> BackendPort: ...

    def close(self) -> None: ...

    @property
    def identity(self) -> str: ...

    @property
    def where(self) -> str:
        """Where its ledger is, for people."""

    def give_back(self, operation: Operation[Reply], reply: Reply) -> None:
        """Release what the operation alone was granted: nobody waits for its reply."""


def the_backend(
    backend: Backend | None, address: str | None = None, tracker: Any = None
) -> Backend:
    """Return `backend`, else the controller at `address`, else this machine's controller.

    With a `tracker` it is a ledger in this process, which no address leads to.
    """
    if tracker is not None:
        if address is not None or backend is not None:
            raise InvalidInput("tracker", tracker, "it without an address")
        from gridhand.controller.keeper.embedded import Embedded

        return Embedded.in_memory("default", tracker)
    if backend is not None:
        return backend
    from gridhand.library.remote import connected

    return connected(address)


def read_ttl(seconds: Duration | None, field: str = "ttl") -> int | None:
    """Return seconds, or a text with units such as "5m", as milliseconds; None stays None."""
    if seconds is None:
        return None
    if isinstance(seconds, str):
        if any(map(str.isalpha, seconds)):  # a bare number would count minutes, as in Slurm
            return read_duration(seconds, field)
        raise InvalidInput(field, seconds, 'seconds as a number, or a text such as "5m"')
    # A comparison with NaN is never true.
    if type(seconds) not in (int, float) or not 0.001 <= seconds <= LONGEST_TTL_S:
        raise InvalidInput(
            field, seconds, f'seconds from 0.001 to {LONGEST_TTL_S}, or a text such as "5m"'
        )
    return round(seconds * 1000)


def read_wait(seconds: Duration) -> int:
    """Return a waiting time as milliseconds; 0 means not to wait."""
    if type(seconds) in (int, float) and seconds == 0:
        return 0
    wait_ms = read_ttl(seconds, "wait")
    if wait_ms is None:
        raise InvalidInput("wait", seconds, "seconds, or 0 not to wait")
    return wait_ms


def read_count(value: int, field: str, least: int, most: int) -> int:
    """Return a whole number, checked against its bounds."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most}")
    return value


def read_flag(value: bool, field: str) -> bool:
    """Return a bool; refuse other values, since a string such as "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(field, value, "True or False")
    return value


def read_text(value: str, field: str) -> str:
    """Return a text of at most 500 characters that can be stored."""
    if isinstance(value, str) and len(value) <= 500 and "\0" not in value:
        with contextlib.suppress(UnicodeEncodeError):
            value.encode()
            return value
    raise InvalidInput(field, value, "a text of at most 500 characters")


def read_owner(owner: str | None, backend: Backend | None = None) -> str:
    """Return the owner given, else the user of this process by the backend's name for it."""
    if owner is None:
        owner = getattr(backend, "user", None)
    if owner is not None:
        return check_label(owner, "owner")
    try:
        return check_label(getpass.getuser(), "owner")
    except Exception:  # no such user, or not a valid name of an owner
        return f"uid-{os.getuid()}"


def read_op_id(op_id: str | None) -> str | None:
    """Return an op id, checked; None stays None."""
    return None if op_id is None else check_label(op_id, "op_id")
