"""A session with a controller: what this process holds for as long as it is connected.

A thread reads the session's connection, so it notices when the controller is restarted; it then
reconnects and says what the session holds. When this process ends, however it ends, the connection
ends too, and the controller releases what was held.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Self, cast

from gridhand.client import routes
from gridhand.client.errors import read_problem, unavailable
from gridhand.client.retry import PAUSE_S, STORE_AWAY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridhand.client.client import Client
    from gridhand.client.http1 import HttpConnection
    from gridhand.client.transport import ReplyStream
    from gridhand.core.errors import GridError
    from gridhand.core.rows.stream_messages import SessionOpened, SessionRequest

_PATIENCE_S = 75.0


class Session:
    """A session that reconnects. It connects when it is first used."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changing = threading.Condition()
        self._id: str | None = None  # while connected
        self._last_id: str | None = None
        self._held: set[str] = set()
        self._jobs: set[str] = set()
        self._runs: set[str] = set()
        self._failure: GridError | None = None
        self._thread: threading.Thread | None = None
        self._connection: HttpConnection | None = None
        self._closed = False
        _sessions.add(self)

    def ready(self) -> str:
        """Connect if need be, and return the id of the session."""
        with self._changing:
            if self._id is not None:
                return self._id
        self._client.version()  # starts a controller if none runs any more
        with self._changing:
            if self._thread is None or not self._thread.is_alive():
                self._start_thread()
            arrived = self._changing.wait_for(lambda: self._id or self._failure, _PATIENCE_S)
            if self._id is None:
                late = unavailable("the controller did not open a session in time")
                raise self._failure if arrived and self._failure else late
            return self._id

    @property
    def id(self) -> str | None:
        """The id of the session, or None while it is not connected."""
        return self._id

    def report_on(self, run: str) -> None:
        """Have the open calls of this run end with the session."""
        with self._changing:
            self._runs.add(run)

    def reported(self, run: str) -> None:
        """Forget a run: all of its calls have ended and were reported."""
        with self._changing:
            self._runs.discard(run)

    def hold(self, id: str) -> None:
        """Note an allocation that ends with the session."""
        with self._changing:
            self._held.add(id)

    def let_go(self, id: str) -> None:
        """Forget an allocation that was released, or does not end with the session any more."""
        with self._changing:
            self._held.discard(id)

    def attach(self, jobs: Sequence[str]) -> None:
        """Have these jobs end with the session."""
        id = self.ready()
        with self._changing:
            self._jobs.update(jobs)
        self._client.attach(id, jobs)

    def lost(self, id: str) -> None:
        """Connect again: the controller does not know the session `id` any more."""
        with self._changing:
            if self._id == id:
                self._id = None
        self._disconnect()

    def close(self) -> None:
        """End the session now, and with it everything that it holds."""
        from gridhand.core.errors import GridError

        with self._changing:
            self._closed, id, thread = True, self._id, self._thread
        if id is not None:
            with suppress(GridError):  # it ends with the connection
                self._client.ask(routes.end_session(id), again=False)
        self._disconnect()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def __enter__(self) -> Self:
        self.ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the session, unless something went wrong: it ends with this process then."""
        if kind is None:
            self.close()

    def forked(self) -> None:
        """Drop the connection in a forked child: it must end with the parent."""
        if self._connection is not None:
            self._connection.drop()
            self._connection = None

    # ---- the thread

    def _start_thread(self) -> None:
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="gridhand-session", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from gridhand.core.errors import GridError

        while not self._closed:
            try:
                self._stay_connected()
                if not self._closed:
                    self._client.reconnect(start=False)
            except GridError as error:
                if self._last_id is None or error.code not in STORE_AWAY:
                    return self._fail(error)
                time.sleep(PAUSE_S)  # a session goes on when the controller's store is back
        return None

    def _stay_connected(self) -> None:
        """Open one connection and read it until it ends."""
        call = routes.session(self._request())
        try:
            with suppress(OSError, ValueError):  # the controller is gone, perhaps within a line
                status, stream = self._client.try_stream(call, self._opened)
                with stream:
                    if status >= 400:
                        raise read_problem(status, stream.rest())
                    self._connected(_read_opened(stream))
                    while stream.line():
                        pass
        finally:
            with self._changing:
                self._id = self._connection = None

    def _request(self) -> SessionRequest:
        with self._changing:
            held, jobs, runs = map(sorted, (self._held, self._jobs, self._runs))
        request: SessionRequest = {"session": self._last_id, "held": held, "jobs": jobs}
        if runs:
            request["runs"] = runs
        return request

    def _opened(self, connection: HttpConnection) -> None:
        self._connection = connection
        if self._closed:
            connection.shut_down()

    def _connected(self, opened: SessionOpened) -> None:
        with self._changing:
            self._id = self._last_id = opened["session"]
            self._jobs.intersection_update(opened["jobs"])
            self._failure = None
            self._changing.notify_all()

    def _fail(self, error: GridError) -> None:
        with self._changing:
            self._failure = error
            self._changing.notify_all()

    def _disconnect(self) -> None:
        if (connection := self._connection) is not None:
            connection.shut_down()


def _read_opened(stream: ReplyStream) -> SessionOpened:
    """Decode the first line of a session; raise ValueError if it is none."""
    opened = json.loads(stream.line())
    if not isinstance(opened, dict) or not isinstance(opened.get("session"), str):
        raise ValueError(f"not the beginning of a session: {opened!r:.100}")
    return cast("SessionOpened", opened)


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.forked()


os.register_at_fork(after_in_child=_after_fork)
