"""A session with a controller: what this process holds for as long as it is connected.

A thread reads the session's connection, which is how it notices that the controller was restarted;
it then comes back, and says what it holds. When this process ends, however it ends, the connection
ends with it, and the controller takes back what was held.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.client import routes
from gridhand.client.http1 import Connection
from gridhand.client.problems import read_problem, unavailable
from gridhand.client.transport import Address
from gridhand.core.errors import GridError

if TYPE_CHECKING:
    from gridhand.client.client import Client

_PATIENCE_S = 75.0


class Session:
    """Opened when something is first held in it."""

    def __init__(self, client: Client, owner: str) -> None:
        self._client = client
        self._owner = owner
        self._changing = threading.Condition()
        self._id: str | None = None  # while connected
        self._before: str | None = None
        self._held: set[str] = set()
        self._jobs: set[str] = set()
        self._runs: set[str] = set()
        self._failure: GridError | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._closed = False
        _sessions.add(self)

    def ready(self) -> str:
        """The id of the session, once it is connected."""
        with self._changing:
            if self._id is not None:
                return self._id
        self._client.version()  # starts a controller where there is none any more
        with self._changing:
            if self._thread is None or not self._thread.is_alive():
                self._begin()
            arrived = self._changing.wait_for(lambda: self._id or self._failure, _PATIENCE_S)
            if self._id is None:
                late = unavailable("the controller did not open a session in time")
                raise self._failure if arrived and self._failure else late
            return self._id

    @property
    def id(self) -> str | None:
        """None while it is not connected."""
        return self._id

    def report_on(self, run: str) -> None:
        """Have the open calls of this run end with the session."""
        with self._changing:
            self._runs.add(run)

    def reported(self, run: str) -> None:
        """There is no more to say of it."""
        with self._changing:
            self._runs.discard(run)

    def hold(self, id: str) -> None:
        with self._changing:
            self._held.add(id)

    def let_go(self, id: str) -> None:
        with self._changing:
            self._held.discard(id)

    def attach(self, jobs: list[str]) -> None:
        """Have these jobs end with the session."""
        id = self.ready()
        with self._changing:
            self._jobs.update(jobs)
        self._client.attach(id, jobs)

    def lost(self, id: str) -> None:
        """The controller does not know this session any more: connect again."""
        with self._changing:
            if self._id == id:
                self._id = None
        self._hang_up()

    def close(self) -> None:
        """Give back what is held in it, now."""
        with self._changing:
            self._closed, id, thread = True, self._id, self._thread
        if id is not None:
            with suppress(GridError):  # the end of the connection will do
                self._client.ask(routes.end_session(id), again=False)
        self._hang_up()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def forked(self) -> None:
        """In a child: the connection is the parent's, and is not to last as long as the child."""
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None

    # ---- the thread

    def _begin(self) -> None:
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="gridhand-session", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._last()
            except (OSError, ValueError):
                pass  # the controller is gone, within a line perhaps, and may come back
            except GridError as error:
                return self._fail(error)
            if self._closed:
                return None
            try:
                if self._client.revive is None:
                    raise unavailable(f"the connection to {self._client.address} was lost")
                self._client.revive(False)
            except GridError as error:
                return self._fail(error)
        return None

    def _last(self) -> None:
        """One connection, from its beginning to its end."""
        ask = routes.session(self._had())
        connected = _open(Address.parse(self._client.address))
        self._socket = connected
        try:
            connection = Connection(connected, "localhost")
            headers = {**ask.headers, "x-gridhand-owner": self._owner}
            reply = connection.ask(ask.method, ask.target, headers, ask.body, None)
            if reply.status >= 400:
                raise read_problem(reply.status, reply.body.read())
            self._connected(json.loads(reply.body.readline()))
            while reply.body.readline():
                pass
        finally:
            with self._changing:
                self._id = self._socket = None
            connected.close()

    def _had(self) -> dict[str, Any]:
        with self._changing:
            held, jobs, runs = map(sorted, (self._held, self._jobs, self._runs))
        had = {"session": self._before, "held": held, "jobs": jobs}
        return {**had, "runs": runs} if runs else had

    def _connected(self, told: dict[str, Any]) -> None:
        with self._changing:
            self._id = self._before = told["session"]
            self._jobs.intersection_update(told["jobs"])
            self._failure = None
            self._changing.notify_all()

    def _fail(self, error: GridError) -> None:
        with self._changing:
            self._failure = error
            self._changing.notify_all()

    def _hang_up(self) -> None:
        if (connected := self._socket) is not None:
            with suppress(OSError):  # it has ended by itself
                connected.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.forked()


os.register_at_fork(after_in_child=_after_fork)


def _open(address: Address) -> socket.socket:
    """A connection that lasts for as long as we do, without a time-out."""
    if not address.path:
        return socket.create_connection((address.host, address.port))
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(address.path)
    except BaseException:
        connected.close()
        raise
    return connected
