"""Send requests to a controller, and send them again after it was restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from gridhand.client import routes
from gridhand.client.errors import make_error, read_problem, unavailable
from gridhand.client.transport import Address, ReplyStream, Transport

if TYPE_CHECKING:
    from socket import socket

    from gridhand.client.http1 import HttpConnection
    from gridhand.client.routes import HttpCall
    from gridhand.core.errors import GridError

Facts = dict[str, Any]
Revive = Callable[[bool], object]
OnOpen = Callable[["HttpConnection"], object]
Sent = TypeVar("Sent")

PATIENCE_S = 60.0  # for a controller to come back, or its store
PAUSE_S = 0.25
_IN_DOUBT = "store_outcome_unknown"
STORE_AWAY = ("store_unavailable", "store_removed", _IN_DOUBT)
STOPPING = "controller_stopping"  # nothing was changed, and the next controller can be asked


class StoreRetry:
    """Decides whether a request is sent again when the controller has lost its store.

    Usually not: nothing was changed, and the caller is told so. But a change that may have been
    written, because the store or the controller was lost before it was answered, is repeated under
    its op id until the outcome is known, and a client that stays with a job keeps trying.
    """

    def __init__(self, call: HttpCall, on_wait: Callable[[str], object] | None) -> None:
        self._call = call
        self._on_wait = on_wait
        self._deadline = 0.0  # from the first refusal on
        self._doubt: GridError | None = None
        self._reported = False

    def lost(self) -> None:
        """Note that the request was sent and not answered: it may have been done."""
        if self._call.op_id is not None:
            message = "the controller did not answer, so nobody knows whether it was done"
            hint = "Look before you ask again: `grid jobs` lists jobs."
            self._doubt = make_error(_IN_DOUBT, message, hint)

    def refused(self, error: GridError) -> None:
        """Pause and return if the request is to be sent again; else raise the right error."""
        if error.code == _IN_DOUBT and self._call.op_id is not None:
            self._doubt = error
        away = error.code in STORE_AWAY
        retry = away and (self._doubt is not None or self._call.stays)
        now = time.monotonic()
        self._deadline = self._deadline or now + PATIENCE_S
        if not retry or now > self._deadline:
            raise self._doubt if self._doubt is not None and away else error
        if self._on_wait is not None and not self._reported:
            self._reported = True
            self._on_wait(f"waiting up to {PATIENCE_S:.0f} s for the controller's store: {error}")
        time.sleep(PAUSE_S)


class RetryingTransport:
    """A transport that reconnects to a controller which was restarted."""

    def __init__(
        self,
        address: Address | str,
        *,
        owner: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """`token` is for controllers on the network; by default it is found where users keep it."""
        parsed = Address.parse(address) if isinstance(address, str) else address
        self._token = None if parsed.path else token or _find_token()
        self._transport = Transport(parsed, timeout_s=timeout_s)
        self.owner = owner  # acts in this name instead of the user's who runs this process

        # Called when the connection is lost, with whether it may start a controller. It returns
        # when a controller answers, or raises `GridError`. Without it the loss is raised at once.
        self.revive: Revive | None = None

        # Called with a sentence when a request has to wait for the controller or its store.
        self.on_wait: Callable[[str], object] | None = None

    def for_owner(self, owner: str) -> Self:
        """Return a client of the same controller that acts in the name of another owner."""
        other = type(self)(self._transport.address, owner=owner, token=self._token)
        other.revive, other.on_wait = self.revive, self.on_wait
        return other

    def probe(self) -> Facts | None:
        """Return the version facts of the controller, or None when none is there.

        If it does not answer for a while, that is said.
        """
        call = routes.version()
        try:
            status, _, content = self._send(call, _report_silence)
        except (ConnectionError, FileNotFoundError):
            return None
        except OSError as error:
            raise self._gone(error) from error
        if status >= 400:
            raise read_problem(status, content)
        facts: Facts = read_answer(call, content)
        return facts

    @property
    def remote(self) -> bool:
        """Whether the controller is reached over the network: it does not know our folders."""
        return not self._transport.address.path

    @property
    def address(self) -> str:
        return str(self._transport.address)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, call: HttpCall, *, again: bool = True, opened: OnOpen | None = None) -> Any:
        """Send any request of `routes` and return its answer. With `again=False`, only once.

        Each connection is passed to `opened` first, which may raise to give up.
        """
        _, content = self._reply(call, again=again, opened=opened)
        return read_answer(call, content)

    def _facts(self, call: HttpCall, *, again: bool = True) -> Facts:
        facts: Facts = self.ask(call, again=again)
        return facts

    def open_stream(self, call: HttpCall, opened: OnOpen | None = None) -> ReplyStream:
        """Return a reply that lasts. Each connection made for it is passed to `opened` first."""
        retry = StoreRetry(call, self.on_wait)
        while True:
            send = partial(self.try_stream, call, opened)
            status, stream = self._persist(call, send, retry)
            if status < 400:
                return stream
            with stream:
                error = read_problem(status, stream.rest())
            if error.code == STOPPING:
                self.reconnect()
            else:
                retry.refused(error)

    def try_stream(self, call: HttpCall, opened: OnOpen | None = None) -> tuple[int, ReplyStream]:
        """Send the request once; return the status and the reply, or raise OSError."""
        headers = self._headers(call)
        return self._transport.stream(call.method, call.target, headers, call.body, opened)

    def reconnect(self, error: OSError | None = None, *, start: bool = True) -> None:
        """Return when the controller answers again; raise `ControllerUnavailable` if it does not.

        With `start` a controller of this user is started if it does not come back by itself.
        """
        if self.revive is None:
            raise self._gone(error) from error
        self.revive(start)

    def report_wait(self, sentence: str) -> None:
        """Tell the user that a request has to wait: through `on_wait`, else on stderr."""
        if self.on_wait is not None:
            self.on_wait(sentence)
            return
        from gridhand.client.launch import say

        say(f"grid: {sentence}\n")

    def _reply(
        self, call: HttpCall, *, again: bool = True, opened: OnOpen | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        retry = StoreRetry(call, self.on_wait)
        while True:
            send = partial(self._send, call, opened=opened)
            status, headers, content = self._persist(call, send, retry, again=again)
            if status < 400:
                return headers, content
            error = read_problem(status, content)
            if error.code == STOPPING and again and self.revive is not None:
                self.reconnect()
            else:
                retry.refused(error)

    def _send(
        self,
        call: HttpCall,
        on_silence: Callable[[socket], object] | None = None,
        opened: OnOpen | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        return self._transport.request(
            call.method,
            call.target,
            self._headers(call),
            call.body,
            repeatable=call.repeatable,
            on_silence=on_silence,
            opened=opened,
        )

    def _headers(self, call: HttpCall) -> Mapping[str, str]:
        headers = call.headers
        if self.owner is not None:
            headers |= _acting_for(self.owner)
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        return headers

    def _persist(
        self, call: HttpCall, send: Callable[[], Sent], retry: StoreRetry, *, again: bool = True
    ) -> Sent:
        """Send until there is a reply, as long as a repeat is safe and patience lasts."""
        deadline = 0.0
        while True:
            try:
                return send()
            except OSError as error:
                now = time.monotonic()
                deadline = deadline or now + PATIENCE_S
                if not (again and may_repeat(call, error) and now < deadline):
                    raise self._gone(error) from error
                if not _is_unsent(error):
                    retry.lost()
                self.reconnect(error)

    def _gone(self, error: OSError | None) -> GridError:
        return gone(self.address, error)


def _find_token() -> str | None:
    from gridhand.client.credentials import find_token

    return find_token()


def _report_silence(connected: socket) -> None:
    from gridhand.client.silence import report_silence

    report_silence(connected)


def _acting_for(owner: str) -> dict[str, str]:
    if not owner.isascii() or not owner.isprintable():  # it must not break out of the header
        from gridhand.core.errors import InvalidInput

        raise InvalidInput("owner", owner, "the name of a user")
    return {"x-gridhand-owner": owner}


def may_repeat(call: HttpCall, error: OSError) -> bool:
    """Return whether to send again: nothing was sent, or sending it twice does no harm.

    A change that was not answered in time is sent again to learn whether it was done.
    """
    if call.op_id is not None and isinstance(error, TimeoutError):
        return True
    return _is_unsent(error) or (call.repeatable and isinstance(error, ConnectionError))


def _is_unsent(error: OSError) -> bool:
    return isinstance(error, ConnectionRefusedError | FileNotFoundError)


def read_answer(call: HttpCall, content: bytes) -> Any:
    """Decode the body of a reply and return the member that `call` picks."""
    answer = json.loads(content) if content else {}
    return answer if call.pick is None else answer[call.pick]


def gone(address: str, error: Exception | None) -> GridError:
    """Return the error for a controller that does not answer, or not any more."""
    if isinstance(error, TimeoutError):
        hint = "It may be overloaded; `grid doctor` looks at it."
        return unavailable(f"the controller at {address} does not answer in time", hint)
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return unavailable(f"no controller listens at {address}", "Start one with `grid serve`.")
    if isinstance(error, PermissionError):
        hint = "Ask the person who runs that controller."
        return unavailable(f"you may not connect to {address}", hint)
    because = f": {error}" if error else ""
    return unavailable(f"the connection to the controller at {address} was lost{because}")
