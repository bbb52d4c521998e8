"""Stream the state and the output of a job as frames, until it has ended.

A frame is a line of JSON, followed by as many raw bytes as its `bytes` says. A client that lost the
connection passes the offsets it has reached; so it misses nothing and gets nothing twice.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from gridhand.api.json_views import hide_private, job_json
from gridhand.controller.controller import Controller
from gridhand.controller.jobs.job_feed import Listening
from gridhand.controller.jobs.start_orders import log_path
from gridhand.core.errors import StoreUnavailable
from gridhand.core.model.names import JobId
from gridhand.core.queue.job_view import JobView
from gridhand.core.rows.stream_messages import Frame, StreamName

_CHUNK = 1 << 18
_SOON_S, _LATER_S = 0.02, 0.2  # between reads of the log files: often at first, then less
_WHY_S = 1.0  # between updates of what a queued job waits for
_REFRESH_S = 2.0
_ALIVE_S = 5.0
_ON_ITS_WAY = 4 << 20
_TELL_BYTES = 8 << 20  # of progress, between reports of it to the node


class FollowRequest(NamedTuple):
    """A client's request to follow a job, with the offsets in bytes to begin at."""

    id: JobId
    attach: bool = False
    output: bool = True
    stdout: int = 0
    stderr: int = 0
    whole: bool = True  # whether the client may see all of the job


class Follower:
    """One client that follows one job."""

    def __init__(
        self, controller: Controller, request: FollowRequest, view: JobView, changes: int
    ) -> None:
        """`changes` is the count of the feed from before the view was taken."""
        self._controller = controller
        self._request = request
        self._view = view
        self._changes = changes
        self._stale = False  # the store was away at the last refresh
        self._offsets: dict[StreamName, int] = {"stdout": request.stdout, "stderr": request.stderr}
        self._sent: dict[str, Any] = {}
        self._sent_at = self._refreshed_at = time.monotonic()
        self._pause_s = _SOON_S
        self._reader: tuple[JobId, int] | None = None  # the attempt whose node knows of us
        self._told = 0  # and how far it knows that we have read

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield encoded frames until the job has ended or the controller stops."""
        controller = self._controller
        with (
            controller.feed.listen(self._request.id) as listening,
            self._attached(),
            self._reading(),
        ):
            if controller.feed.count != self._changes:  # else nothing has changed since
                await self._refresh()
            while True:
                view = self._view
                if (frame := self._changed_job(view)) is not None:
                    yield frame
                async for frame in self._output(view):
                    yield frame
                if not view.job.open:
                    yield self._frame({"event": "end", "job": self._shown(view)})
                    return
                if controller.stopping.is_set():
                    return  # the client goes on with the next controller
                if time.monotonic() - self._sent_at > _ALIVE_S:
                    yield self._frame({"event": "alive"})
                await self._next(view, listening)

    def _attached(self) -> contextlib.AbstractContextManager[None]:
        if self._request.attach:
            return self._controller.attached.connected(self._request.id)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Tell the node at the end that nobody reads any more."""
        try:
            yield
        finally:
            if self._reader is not None:
                self._controller.runner.note_reader(self._reader, {})

    def _note_reader(self, view: JobView) -> None:
        """Tell the node how far an attached client has read, if that is new or much further."""
        attempt = view.job.attempt
        if not self._request.attach or not self._request.output or attempt is None:
            return
        key, read = (view.job.id, attempt.number), sum(self._offsets.values())
        if self._reader != key or read - self._told > _TELL_BYTES:
            self._reader, self._told = key, read
            # What is on its way may be lost with the connection, and asked for again.
            reached: dict[str, int] = {
                name: max(0, at - _ON_ITS_WAY) for name, at in self._offsets.items()
            }
            self._controller.runner.note_reader(key, reached)

    async def _next(self, view: JobView, listening: Listening) -> None:
        """Wait for a change or for a moment, and refresh the view of the job."""
        running = view.job.attempt is not None
        wait_s = self._pause_s if running and self._request.output else _WHY_S
        self._pause_s = min(_LATER_S, self._pause_s * 1.3)
        changed = await listening.changes(wait_s)
        if changed or self._stale or not running or self._is_due():
            await self._refresh()

    async def _refresh(self) -> None:
        """Read the job again. While the store is away the last view stands, and the job goes on."""
        try:
            self._view = await self._controller.job(self._request.id)
            self._stale = False
        except StoreUnavailable:
            self._stale = True

    def _is_due(self) -> bool:
        """Return whether to refresh without a change: a late commit notifies no listener."""
        if time.monotonic() - self._refreshed_at < _REFRESH_S:
            return False
        self._refreshed_at = time.monotonic()
        return True

    def _changed_job(self, view: JobView) -> bytes | None:
        job = self._shown(view)
        if job == self._sent or not view.job.open:
            return None
        self._sent = job
        return self._frame({"event": "job", "job": job})

    def _shown(self, view: JobView) -> dict[str, Any]:
        job = job_json(view, self._controller.home)
        return job if self._request.whole else hide_private(job)

    async def _output(self, view: JobView) -> AsyncIterator[bytes]:
        if not self._request.output or not view.job.attempts:
            return
        self._note_reader(view)
        folder = self._controller.home.job(view.job.id)
        paths = {name: log_path(view.job, folder, name) for name in self._offsets}
        if paths["stderr"] == paths["stdout"]:
            del paths["stderr"]
        for name in paths:
            async for frame in self._read(name, view):
                self._pause_s = _SOON_S
                yield frame

    async def _read(self, name: StreamName, view: JobView) -> AsyncIterator[bytes]:
        while True:
            offset = self._offsets[name]
            pieces = await self._controller.logs.read(view.job, name, offset, _CHUNK)
            for frame in self._frames_of(name, pieces):
                yield frame
            self._note_reader(self._view)
            if self._offsets[name] == offset:
                return

    def _frames_of(
        self, name: StreamName, pieces: list[tuple[int, bytes | int]]
    ) -> Iterator[bytes]:
        """Encode pieces of a log: bytes as output, a number as so many bytes that are gone."""
        for offset, piece in pieces:
            if isinstance(piece, int):
                self._offsets[name] = offset + piece
                yield self._frame({"event": "cut", "stream": name, "cut": piece})
            elif piece:
                size = len(piece)
                self._offsets[name] = offset + size
                head: Frame = {"event": "output", "stream": name, "offset": offset, "bytes": size}
                yield self._frame(head) + piece

    def _frame(self, head: Frame) -> bytes:
        self._sent_at = time.monotonic()
        return json.dumps(head, separators=(",", ":")).encode() + b"\n"
