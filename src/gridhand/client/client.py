"""Client: the HTTP API of a controller as Python methods.

Answers are the API's own dicts and lists. Failures are raised as `GridError`: those that the
controller tells as it told them, and a controller that does not answer as
`controller_unavailable`.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gridhand.client import routes
from gridhand.client.calling import Caller
from gridhand.client.following import Following

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gridhand.client.calling import Facts
    from gridhand.client.following import Frame
    from gridhand.client.transport import Stream


class Log(NamedTuple):
    """A part of a log, where it begins and ends, and how long the log is by now.

    Offsets count what was cut out of a log that grew too long; the data has a line about it.
    """

    data: bytes
    offset: int
    size: int
    end: int


_MEASURES = ("offset", "size", "end")


class Session:
    """A connection that is kept open: what is held in the session ends with it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.facts: Facts = json.loads(stream.line())
        self.id: str = self.facts["session"]

    def wait(self) -> None:
        """Return when the connection has ended, which is for another thread to wait for."""
        with contextlib.suppress(OSError):
            while self._stream.line():
                pass

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(Caller):
    """One controller. Any thread may use it, and so may a signal handler."""

    # ---- jobs

    def submit(self, submission: Mapping[str, Any], *, op_id: str | None = None) -> list[Facts]:
        """Queue a command; several jobs if it is an array."""
        jobs: list[Facts] = self.ask(routes.submit(submission, op_id))
        return jobs

    def plan(self, submission: Mapping[str, Any]) -> Facts:
        """What would become of it if it were submitted now; nothing is changed."""
        return self._facts(routes.plan(submission))

    def jobs(
        self,
        *,
        states: Iterable[str] = (),
        owner: str | None = None,
        array: str | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[Facts]:
        """The newest first; `before` an id, for the next page."""
        jobs: list[Facts] = self.ask(routes.jobs(states, owner, array, limit, before))
        return jobs

    def job(self, id: str) -> Facts:
        return self._facts(routes.job(id))

    def cancel(self, id: str, *, op_id: str | None = None) -> list[Facts]:
        """End a job, or every task of an array; those that have ended stay as they are."""
        jobs: list[Facts] = self.ask(routes.cancel(id, op_id))
        return jobs

    def signal(self, id: str, number: int, *, op_id: str | None = None) -> bool:
        """Whether it was sent: to a job that does not run there is nobody to send it to."""
        return bool(self.ask(routes.signal(id, number, op_id)))

    def why(self, id: str) -> Facts:
        return self._facts(routes.why(id))

    def logs(
        self,
        id: str,
        stream: str = "stdout",
        *,
        offset: int | None = None,
        limit: int | None = None,
        tail: int | None = None,
    ) -> Log:
        headers, data = self._reply(routes.logs(id, stream, offset, limit, tail))
        offset, size, end = (int(headers[f"x-gridhand-{word}"]) for word in _MEASURES)
        return Log(data, offset, size, end)

    def follow(
        self,
        id: str,
        *,
        attach: bool = False,
        output: bool = True,
        stdout: int = 0,
        stderr: int = 0,
    ) -> Iterator[Frame]:
        """Events of a job with the bytes that belong to them, until it has ended.

        Attached, the job ends when this is closed. When the controller is restarted meanwhile,
        this goes on with the new one, and tells no byte twice.
        """
        told = Following(id, attach=attach, output=output, stdout=stdout, stderr=stderr)
        while not told.ended:
            with self._stream(told.ask()) as stream:
                yield from told.read(stream)
            if not told.ended:
                self._lost(start=not told.stopping)

    # ---- calls of functions

    def calls(
        self,
        *,
        states: Iterable[str] = (),
        name: str | None = None,
        run: str | None = None,
        owner: str | None = None,
        limit: int | None = None,
    ) -> list[Facts]:
        """Those that are open, the newest first; then those that ended, the latest first."""
        calls: list[Facts] = self.ask(routes.calls(states, name, run, owner, limit))
        return calls

    def call(self, id: str) -> Facts:
        return self._facts(routes.call(id))

    def report_calls(self, report: Mapping[str, Any]) -> int:
        """How many were written down."""
        return int(self.ask(routes.report_calls(report)))

    # ---- nodes

    def status(self) -> Facts:
        return self._facts(routes.status())

    def nodes(self) -> list[Facts]:
        nodes: list[Facts] = self.ask(routes.nodes())
        return nodes

    def node(self, name: str) -> Facts:
        return self._facts(routes.node(name))

    def register(
        self, nodes: Sequence[Mapping[str, Any]], *, op_id: str | None = None
    ) -> list[Facts]:
        """Add nodes, or describe them anew: all of them, or none."""
        registered: list[Facts] = self.ask(routes.register(nodes, op_id))
        return registered

    def drain(self, name: str, *, op_id: str | None = None) -> Facts:
        return self._facts(routes.drain(name, op_id))

    def resume(self, name: str, *, op_id: str | None = None) -> Facts:
        return self._facts(routes.resume(name, op_id))

    def remove(self, name: str, *, force: bool = False, op_id: str | None = None) -> Facts:
        return self._facts(routes.remove(name, force, op_id))

    def set_health(
        self, name: str, health: str, why: str = "", *, op_id: str | None = None
    ) -> Facts:
        return self._facts(routes.set_health(name, health, why, op_id))

    def set_foreign(self, name: str, used: Mapping[str, int]) -> None:
        """Say how much of each GPU others use."""
        self.ask(routes.set_foreign(name, used))

    # ---- allocations

    def allocations(self) -> list[Facts]:
        held: list[Facts] = self.ask(routes.allocations())
        return held

    def allocate(self, order: Mapping[str, Any], *, op_id: str | None = None) -> Facts:
        return self._facts(routes.allocate(order, op_id))

    def allocate_group(self, order: Mapping[str, Any], *, op_id: str | None = None) -> list[Facts]:
        """Hold several at once: all of them, or none."""
        held: list[Facts] = self.ask(routes.allocate_group(order, op_id))
        return held

    def move(
        self, id: str, move: str, *, ttl_s: float | None = None, op_id: str | None = None
    ) -> Facts:
        """Confirm, renew or release an allocation."""
        return self._facts(routes.move(id, move, ttl_s, op_id))

    def fits(self, asked: Mapping[str, Any]) -> bool:
        return bool(self.ask(routes.fits(asked)))

    def explain(self, request: Mapping[str, Any]) -> Facts:
        return self._facts(routes.explain(request))

    # ---- the controller

    def version(self) -> Facts:
        return self._facts(routes.version())

    def events(self, *, after: int = 0, limit: int | None = None) -> list[Facts]:
        events: list[Facts] = self.ask(routes.events(after, limit))
        return events

    def check(self) -> Facts:
        return self._facts(routes.check())

    def stop(self, *, jobs: str = "refuse", op_id: str | None = None) -> Facts:
        """End the controller; `jobs` says what becomes of those there are."""
        try:
            return self._facts(routes.stop(jobs, op_id), again=False)
        except Exception as error:
            if getattr(error, "code", "") != "controller_unavailable" or self.look():
                raise
            return {}  # it has ended before its reply was out

    def identity(self) -> str:
        """Which ledger this is, and how often it has changed hands."""
        return str(self.ask(routes.identity()))

    def dump(self) -> Facts:
        """The whole ledger as rows."""
        return self._facts(routes.dump())

    def prune(self, older_than_s: float, most: int) -> int:
        """Forget old events; how many are left that are older."""
        return int(self.ask(routes.prune(older_than_s, most)))

    def session(self, order: Mapping[str, Any] | None = None) -> Session:
        """A session that lasts until it is closed, or until this process ends.

        With the id of one whose connection was lost, and what it holds, it goes on.
        """
        return Session(self._stream(routes.session(order or {})))

    def end_session(self, id: str) -> None:
        """End it at once, without waiting whether its connection comes back."""
        self.ask(routes.end_session(id))

    def attach(self, session: str, jobs: Sequence[str]) -> list[str]:
        """Have jobs end with the session, too."""
        attached: list[str] = self.ask(routes.attach(session, jobs))
        return attached
