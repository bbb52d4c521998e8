"""Client: the HTTP API of a controller as Python methods.

Answers are the API's own dicts and lists. Failures are raised as `GridError`: with the code that
the controller sent, or as `controller_unavailable` if it does not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.client import routes
from gridhand.client.follow import JobFollower, JobFrames
from gridhand.client.follow_events import follow_events
from gridhand.client.retry import RetryingTransport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gridhand.client.retry import Facts


class Log(NamedTuple):
    """A part of a log. Offsets and sizes are in bytes.

    Offsets count what was cut out of a log that grew too long; a line of the data says so.
    """

    data: bytes
    offset: int  # where the part begins
    size: int  # of the whole log by now
    end: int  # where the part ends


_MEASURES = ("offset", "size", "end")


class Client(RetryingTransport):
    """A client of one controller. Any thread may use it, and so may a signal handler."""

    # ---- jobs

    def submit(self, submission: Mapping[str, Any], *, op_id: str | None = None) -> list[Facts]:
        """Queue a command and return its job, or the first jobs of an array.

        `warnings` then has sentences about what may not be as the user expects.
        """
        reply = self._facts(routes.submit(submission, op_id)._replace(pick=None))
        self.warnings: list[str] = reply.get("warnings", [])
        jobs: list[Facts] = reply["jobs"]
        return jobs

    def plan(self, submission: Mapping[str, Any]) -> Facts:
        """Return where the job would be placed if it were submitted now. Nothing is changed."""
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
        """Return jobs, newest first. For the next page, pass the last id as `before`."""
        jobs: list[Facts] = self.ask(routes.jobs(states, owner, array, limit, before))
        return jobs

    def job_lines(
        self,
        *,
        states: Iterable[str] = (),
        owner: str | None = None,
        array: str | None = None,
        limit: int | None = None,
        since: float | None = None,
    ) -> list[Facts]:
        """Return jobs, newest first; like tasks of an array are one, with `tasks` about them."""
        call = routes.jobs(states, owner, array, limit, fold=True, since=since)
        jobs: list[Facts] = self.ask(call)
        return jobs

    def job(self, id: str) -> Facts:
        return self._facts(routes.job(id))

    def cancel(self, id: str, *, op_id: str | None = None) -> list[Facts]:
        """Cancel a job, or every task of an array. Ended ones stay as they are.

        Of an array with very many tasks the first are returned; `cancel_all` counts them.
        """
        jobs: list[Facts] = self.cancel_all(id, op_id=op_id)["jobs"]
        return jobs

    def cancel_all(self, id: str, *, op_id: str | None = None) -> Facts:
        """Cancel likewise; return the first jobs, and how many there are and are stopping."""
        return self._facts(routes.cancel(id, op_id)._replace(pick=None))

    def hold(self, id: str, *, op_id: str | None = None) -> Facts:
        """Keep a queued job from starting; return the jobs that this changed, and their count."""
        return self._facts(routes.hold(id, op_id)._replace(pick=None))

    def unhold(self, id: str, *, op_id: str | None = None) -> Facts:
        """Let a held job start; return the jobs that this changed, and their count."""
        return self._facts(routes.unhold(id, op_id)._replace(pick=None))

    def signal(self, id: str, number: int, *, op_id: str | None = None) -> bool:
        """Send a signal; return False if the job is not running."""
        return bool(self.ask(routes.signal(id, number, op_id)))

    def why(self, id: str) -> Facts:
        return self._facts(routes.why(id))

    def history(self, **filters: Any) -> Facts:
        """Return ended jobs, added up. The filters are the parameters of `GET /history`."""
        return self._facts(routes.history(filters))

    def queue(self, limit: int | None = None, owner: str | None = None) -> Facts:
        """Return the first entries of the queue, and how many jobs wait."""
        return self._facts(routes.queue(limit, owner))

    def predict(self, task_type: str) -> Facts:
        """Return what the next run of a kind of task will need, from the caller's own runs."""
        return self._facts(routes.predict(task_type))

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
    ) -> JobFollower:
        """Return an iterator over the frames of a job, until it has ended.

        `stdout` and `stderr` are the offsets in bytes to begin at. With `attach` the job ends when
        the iterator is closed. When the controller is restarted, the iterator goes on with the new
        one and yields no byte twice.
        """
        frames = JobFrames(id, attach=attach, output=output, stdout=stdout, stderr=stderr)
        return JobFollower(self, frames)

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
        """Return open calls, newest first, then ended ones, latest first."""
        calls: list[Facts] = self.ask(routes.calls(states, name, run, owner, limit))
        return calls

    def call(self, id: str) -> Facts:
        return self._facts(routes.call(id))

    def report_calls(self, report: Mapping[str, Any]) -> int:
        """Record calls; return how many were written."""
        return int(self.ask(routes.report_calls(report)))

    # ---- nodes

    def status(self, *, live: bool = False) -> Facts:
        """Return the status; `live` has the nodes measured every second for a while."""
        return self._facts(routes.status(live=live))

    def nodes(self) -> list[Facts]:
        nodes: list[Facts] = self.ask(routes.nodes())
        return nodes

    def node(self, name: str) -> Facts:
        return self._facts(routes.node(name))

    def register(
        self, nodes: Sequence[Mapping[str, Any]], *, op_id: str | None = None
    ) -> list[Facts]:
        """Add nodes or replace their descriptions: all of them, or none."""
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
        """Report how many bytes of each GPU other programs use."""
        self.ask(routes.set_foreign(name, used))

    # ---- allocations

    def allocations(self) -> list[Facts]:
        held: list[Facts] = self.ask(routes.allocations())
        return held

    def allocate(self, order: Mapping[str, Any], *, op_id: str | None = None) -> Facts:
        return self._facts(routes.allocate(order, op_id))

    def allocate_group(self, order: Mapping[str, Any], *, op_id: str | None = None) -> list[Facts]:
        """Hold several requests: all of them, or none."""
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

    # ---- files of jobs on another machine

    def upload(self, id: str, name: str, offset: int, data: bytes, *, executable: bool) -> None:
        """Write a part of a file for a job that names this id as its `upload`."""
        self.ask(routes.upload(id, name, offset, data, executable=executable))

    def files(self, job: str) -> list[Facts]:
        """Return the names and sizes of the files in the folder of a job."""
        files: list[Facts] = self.ask(routes.files(job))
        return files

    def download(self, job: str, name: str, offset: int = 0) -> tuple[bytes, int]:
        """Return a part of a file in the folder of a job, and the size of the whole."""
        headers, data = self._reply(routes.download(job, name, offset))
        return data, int(headers["x-gridhand-size"])

    # ---- tokens

    def tokens(self) -> list[Facts]:
        tokens: list[Facts] = self.ask(routes.tokens())
        return tokens

    def create_token(
        self, scope: str, *, owner: str | None = None, ttl_s: float | None = None
    ) -> Facts:
        """Create a token; this reply alone has its text, as `token`."""
        given = {"scope": scope, "owner": owner, "ttl_s": ttl_s}
        wanted = {name: value for name, value in given.items() if value is not None}
        return self._facts(routes.create_token(wanted))

    def rotate_token(self, id: str) -> Facts:
        """Give a token another text, which this reply alone has; the old one is refused."""
        return self._facts(routes.rotate_token(id))

    def revoke_token(self, id: str) -> Facts:
        return self._facts(routes.revoke_token(id))

    # ---- the controller

    def version(self) -> Facts:
        return self._facts(routes.version())

    def events(self, *, after: int = 0, limit: int | None = None) -> list[Facts]:
        events: list[Facts] = self.ask(routes.events(after, limit))
        return events

    def event_page(
        self, kinds: Sequence[str], owners: Sequence[str], after: int, limit: int
    ) -> Facts:
        """Return `events` of these kinds and owners after a number, and where to go on: `next`."""
        return self._facts(routes.event_page(kinds, owners, after, limit, None))

    def recent_events(self, kinds: Sequence[str], owners: Sequence[str], last: int) -> Facts:
        """Return the last events likewise."""
        return self._facts(routes.event_page(kinds, owners, None, max(1, last), last))

    def follow_events(
        self, kinds: Sequence[str] = (), owners: Sequence[str] = (), after: int | None = None
    ) -> Iterator[Facts]:
        """Yield events after a number, or from now on. A restart of the controller loses none."""
        return follow_events(self, kinds, owners, after)

    def check(self) -> Facts:
        return self._facts(routes.check())

    def stop(self, *, jobs: str = "refuse", op_id: str | None = None) -> Facts:
        """Stop the controller. `jobs` is `refuse` (the default), `keep` or `kill`."""
        try:
            return self._facts(routes.stop(jobs, op_id), again=False)
        except Exception as error:
            if getattr(error, "code", "") != "controller_unavailable" or self.probe():
                raise
            return {}  # it ended before its reply was sent

    def config(self) -> Facts:
        """Return the settings of the controller, each with its source."""
        return self._facts(routes.config())

    def reload_config(self) -> Facts:
        """Have the controller read its configuration file again; return what changed."""
        return self._facts(routes.reload_config())

    def repair(self) -> bool:
        """Have the controller write its store anew if the file was removed; return whether."""
        return bool(self.ask(routes.repair()))

    def identity(self) -> str:
        """Return the id of the ledger and how often it has changed owners."""
        return str(self.ask(routes.identity()))

    def dump(self) -> Facts:
        """Return the whole ledger as rows."""
        return self._facts(routes.dump())

    def prune(self, older_than_s: float, most: int) -> int:
        """Delete old events, `most` at a time; return how many old ones are left."""
        return int(self.ask(routes.prune(older_than_s, most)))

    def end_session(self, id: str) -> None:
        """End a session at once, without waiting whether its connection comes back."""
        self.ask(routes.end_session(id))

    def attach(self, session: str, jobs: Sequence[str]) -> list[str]:
        """Have jobs end with the session; return those that are still open."""
        attached: list[str] = self.ask(routes.attach(session, jobs))
        return attached
