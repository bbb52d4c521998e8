"""Following a job: how it stands and what it writes, as a stream of frames, until it is over.

A frame is a line of JSON; if it has `bytes`, so many raw bytes come after it. Whoever lost the
connection gives the offsets they have got to, and misses nothing and gets nothing twice.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from gridhand.api.views import job_json
from gridhand.controller.controller import Controller
from gridhand.controller.feed import Listening
from gridhand.controller.looking import Seen
from gridhand.controller.orders import log_path
from gridhand.core.errors import StoreUnavailable

_CHUNK = 1 << 18
_SOON_S, _LATER_S = 0.02, 0.2  # between looks at the files: often at first, then less
_WHY_S = 1.0  # between looks at what a queued job waits for
_LOOK_S = 2.0
_ALIVE_S = 5.0


class Following(NamedTuple):
    """What a client wants to hear of a job, and from where on."""

    id: str
    attach: bool = False
    output: bool = True
    stdout: int = 0
    stderr: int = 0


class Follower:
    """One client that follows one job."""

    def __init__(self, controller: Controller, wanted: Following, seen: Seen) -> None:
        self._controller = controller
        self._wanted = wanted
        self._seen = seen
        self._unsure = False  # the store was away when we looked
        self._offsets = {"stdout": wanted.stdout, "stderr": wanted.stderr}
        self._told: dict[str, Any] = {}
        self._told_at = self._looked_at = time.monotonic()
        self._pause_s = _SOON_S

    async def frames(self) -> AsyncIterator[bytes]:
        controller = self._controller
        with controller.feed.listen(self._wanted.id) as listening, self._attached():
            await self._look()
            while True:
                seen = self._seen
                told = self._tell(seen)
                if told:
                    yield told
                async for frame in self._output(seen):
                    yield frame
                if not seen.job.open:
                    yield self._frame({"event": "end", "job": job_json(seen, controller.home)})
                    return
                if controller.stopping.is_set():
                    return  # the next controller goes on from here
                if time.monotonic() - self._told_at > _ALIVE_S:
                    yield self._frame({"event": "alive"})
                await self._next(seen, listening)

    def _attached(self) -> contextlib.AbstractContextManager[None]:
        if self._wanted.attach:
            return self._controller.attached.connected(self._wanted.id)
        return contextlib.nullcontext()

    async def _next(self, seen: Seen, listening: Listening) -> None:
        """Wait for a change, or for a while, and look how the job stands."""
        running = seen.job.attempt is not None
        wait_s = self._pause_s if running and self._wanted.output else _WHY_S
        self._pause_s = min(_LATER_S, self._pause_s * 1.3)
        changed = await listening.changes(wait_s)
        if changed or self._unsure or not running or self._is_due():
            await self._look()

    async def _look(self) -> None:
        """How it stands, as far as that can be told: the store may be away, and the job goes on."""
        try:
            self._seen = await self._controller.job(self._wanted.id)
            self._unsure = False
        except StoreUnavailable:
            self._unsure = True

    def _is_due(self) -> bool:
        """Whether to look though nothing was told: what a store did late nobody is told of."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return False
        self._looked_at = time.monotonic()
        return True

    def _tell(self, seen: Seen) -> bytes | None:
        job = job_json(seen, self._controller.home)
        if job == self._told or not seen.job.open:
            return None
        self._told = job
        return self._frame({"event": "job", "job": job})

    async def _output(self, seen: Seen) -> AsyncIterator[bytes]:
        if not self._wanted.output or not seen.job.attempts:
            return
        folder = self._controller.home.job(seen.job.id)
        paths = {name: log_path(seen.job, folder, name) for name in self._offsets}
        if paths["stderr"] == paths["stdout"]:
            del paths["stderr"]
        for name, path in paths.items():
            async for frame in self._read(name, path):
                self._pause_s = _SOON_S
                yield frame

    async def _read(self, name: str, path: str) -> AsyncIterator[bytes]:
        while True:
            offset = self._offsets[name]
            pieces = await self._controller.runner.read_log(path, offset, _CHUNK)
            for frame in self._frames_of(name, pieces):
                yield frame
            if self._offsets[name] == offset:
                return

    def _frames_of(self, name: str, pieces: list[tuple[int, bytes | int]]) -> Iterator[bytes]:
        for offset, piece in pieces:
            if isinstance(piece, int):
                self._offsets[name] = offset + piece
                yield self._frame({"event": "cut", "stream": name, "cut": piece})
            elif piece:
                self._offsets[name] = offset + len(piece)
                head = {"event": "output", "stream": name, "offset": offset, "bytes": len(piece)}
                yield self._frame(head) + piece

    def _frame(self, head: dict[str, Any]) -> bytes:
        self._told_at = time.monotonic()
        return json.dumps(head, separators=(",", ":")).encode() + b"\n"
