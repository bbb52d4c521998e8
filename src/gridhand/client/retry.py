"""Asking a controller, and asking again when it was restarted meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gridhand.client import routes
from gridhand.client.problems import read_problem, unavailable
from gridhand.client.transport import Address, Stream, Transport

if TYPE_CHECKING:
    from gridhand.client.routes import Ask
    from gridhand.core.errors import GridError

Facts = dict[str, Any]
Revive = Callable[[bool], object]
Sent = TypeVar("Sent")

PATIENCE_S = 60.0  # for a controller to come back, or its store
PAUSE_S = 0.25
_IN_DOUBT = "store_outcome_unknown"
_STORE_AWAY = ("store_unavailable", _IN_DOUBT)


class Away:
    """Whether to ask again when the controller answers that its store is away.

    Mostly not: nothing was changed, and the caller is told so. But what may have been written is
    asked, by the same op id, until that is known; and whoever stays with a job goes on to do so.
    """

    def __init__(self, ask: Ask, waits: Callable[[str], object] | None) -> None:
        self._ask = ask
        self._waits = waits
        self._until = time.monotonic() + PATIENCE_S
        self._doubt: GridError | None = None
        self._said = False

    def refused(self, error: GridError) -> None:
        """Come back if it is to be asked again after a pause; else raise what was answered."""
        if error.code == _IN_DOUBT and self._ask.op_id is not None:
            self._doubt = error
        hope = error.code in _STORE_AWAY and (self._doubt is not None or self._ask.stays)
        if not hope or time.monotonic() > self._until:
            raise self._doubt if self._doubt is not None and error.code in _STORE_AWAY else error
        if self._waits is not None and not self._said:
            self._said = True
            self._waits(f"waiting for the controller's store: {error}")


class Caller:
    """A transport, and what to do when it breaks."""

    def __init__(
        self, address: Address | str, *, owner: str | None = None, timeout_s: float = 60.0
    ) -> None:
        parsed = Address.parse(address) if isinstance(address, str) else address
        self._transport = Transport(parsed, timeout_s=timeout_s)
        self.owner = owner  # in whose name to act, if not the user's that this process runs as

        # Called when the connection is lost, and told whether it may start a controller. Returns
        # when one answers again, or raises `GridError`. Without it the loss is raised at once.
        self.revive: Revive | None = None

        # Told what is waited for, once, when the controller cannot say yet what has become of
        # something.
        self.waits: Callable[[str], object] | None = None

    def for_owner(self, owner: str) -> Self:
        """The same controller, acting in the name of another owner."""
        other = type(self)(self._transport.address, owner=owner)
        other.revive, other.waits = self.revive, self.waits
        return other

    def look(self) -> Facts | None:
        """What the controller says of itself; None when none is there."""
        ask = routes.version()
        try:
            status, _, content = self._send(ask)
        except (ConnectionError, FileNotFoundError):
            return None
        except OSError as error:
            raise self._gone(error) from error
        if status >= 400:
            raise read_problem(status, content)
        facts: Facts = read_answer(ask, content)
        return facts

    @property
    def address(self) -> str:
        return str(self._transport.address)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _facts(self, ask: Ask, *, again: bool = True) -> Facts:
        facts: Facts = self.ask(ask, again=again)
        return facts

    def ask(self, ask: Ask, *, again: bool = True) -> Any:
        """The answer to any of `routes`."""
        _, content = self._reply(ask, again=again)
        return read_answer(ask, content)

    def _reply(self, ask: Ask, *, again: bool = True) -> tuple[Mapping[str, str], bytes]:
        away = Away(ask, self.waits)
        while True:
            status, headers, content = self._persist(ask, lambda: self._send(ask), again=again)
            if status < 400:
                return headers, content
            away.refused(read_problem(status, content))
            time.sleep(PAUSE_S)

    def _stream(self, ask: Ask) -> Stream:
        def send() -> tuple[int, Stream]:
            return self._transport.stream(ask.method, ask.target, self._headers(ask), ask.body)

        away = Away(ask, self.waits)
        while True:
            status, stream = self._persist(ask, send)
            if status < 400:
                return stream
            with stream:
                away.refused(read_problem(status, stream.rest()))
            time.sleep(PAUSE_S)

    def _send(self, ask: Ask) -> tuple[int, Mapping[str, str], bytes]:
        return self._transport.request(
            ask.method, ask.target, self._headers(ask), ask.body, repeatable=ask.repeatable
        )

    def _headers(self, ask: Ask) -> Mapping[str, str]:
        return ask.headers if self.owner is None else {**ask.headers, **_acting_for(self.owner)}

    def _persist(self, ask: Ask, send: Callable[[], Sent], *, again: bool = True) -> Sent:
        """Send it until there is a reply, as long as that is safe and there is hope."""
        deadline = 0.0
        while True:
            try:
                return send()
            except OSError as error:
                now = time.monotonic()
                deadline = deadline or now + PATIENCE_S
                if not (again and may_repeat(ask, error) and now < deadline):
                    raise self._gone(error) from error
                self._lost(error)

    def _lost(self, error: OSError | None = None, *, start: bool = True) -> None:
        if self.revive is None:
            raise self._gone(error) from error
        self.revive(start)

    def _gone(self, error: OSError | None) -> GridError:
        return gone(self.address, error)


def _acting_for(owner: str) -> dict[str, str]:
    if not owner.isascii() or not owner.isprintable():  # it is to be a header, and only that
        from gridhand.core.errors import InvalidInput

        raise InvalidInput("owner", owner, "the name of a user")
    return {"x-gridhand-owner": owner}


def may_repeat(ask: Ask, error: OSError) -> bool:
    """Whether to ask again: nothing was sent, or it does no harm to send it twice."""
    unsent = isinstance(error, ConnectionRefusedError | FileNotFoundError)
    return unsent or (ask.repeatable and isinstance(error, ConnectionError))


def read_answer(ask: Ask, content: bytes) -> Any:
    answer = json.loads(content) if content else {}
    return answer if ask.pick is None else answer[ask.pick]


def gone(address: str, error: Exception | None) -> GridError:
    """The error for a controller that does not answer, or not any more."""
    if isinstance(error, TimeoutError):
        hint = "It may be held up; `grid doctor` looks at it."
        return unavailable(f"the controller at {address} does not answer in time", hint)
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return unavailable(f"no controller listens at {address}", "Start one with `grid serve`.")
    if isinstance(error, PermissionError):
        return unavailable(f"you may not connect to {address}", "Ask who runs that controller.")
    because = f": {error}" if error else ""
    return unavailable(f"the connection to the controller at {address} was lost{because}")
