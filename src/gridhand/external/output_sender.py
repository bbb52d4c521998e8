"""OutputSender: sends the output of jobs to the controller, in parts with offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from enum import IntEnum
from typing import Any, NamedTuple

from gridhand.agent.jobs.capped_log import read_range
from gridhand.engines.base import Key
from gridhand.engines.local import LocalEngine
from gridhand.external.controller_link import ControllerLink
from gridhand.external.worker_folder import JobFiles

PART_BYTES = 1 << 20
_STREAMS = ("stdout", "stderr")
_PAUSE_S = 0.2


class Progress(IntEnum):
    """How much of an attempt is left to send; the lowest one of its streams counts."""

    MORE = 0
    PAUSED = 1  # the controller's reader is far behind
    ALL = 2  # that is there now


class _Sent(NamedTuple):
    """How far a stream has been sent; `unknown` until the controller has said it."""

    end: int = 0
    unknown: bool = True


class OutputSender:
    """The streams of the attempts of a worker."""

    def __init__(self, link: ControllerLink, engine: LocalEngine) -> None:
        self._link, self._engine = link, engine
        self._sent: dict[tuple[Key, str], _Sent] = {}
        self._attached: set[Key] = set()

    def begin(self) -> None:
        """Ask the controller again how far each stream is: it may be another one."""
        self._sent.clear()

    def forget(self, key: Key) -> None:
        self._attached.discard(key)
        for stream in _STREAMS:
            self._sent.pop((key, stream), None)

    async def attach(self, key: Key, attached: bool) -> None:
        """Keep what is not sent yet, for a client that is attached to the job."""
        if attached:
            self._attached.add(key)
        else:
            self._attached.discard(key)
        await self._note_reader(key)

    async def _note_reader(self, key: Key) -> None:
        read = {one: sent.end for one in _STREAMS if (sent := self._sent.get((key, one)))}
        attached = key in self._attached
        await self._engine.note_reader(key, {"stdout": 0, **read} if attached else {})

    async def send(self, session: str, key: Key, files: JobFiles) -> Progress:
        """Send the next part of each stream."""
        found = {await self._send(session, key, one, files.stream(one)) for one in _STREAMS}
        if Progress.MORE in found and key in self._attached:
            await self._note_reader(key)
        return min(found)

    async def _send(self, session: str, key: Key, stream: str, path: str) -> Progress:
        sent = self._sent.get((key, stream), _Sent())
        pieces = await asyncio.to_thread(read_range, path, sent.end, PART_BYTES)
        if not pieces:
            return Progress.ALL
        if sent.unknown:  # an earlier run of this worker may have sent a part
            reply = await self._post(session, key, stream, 0, b"")
            self._sent[key, stream] = _Sent(reply["end"], unknown=False)
            return Progress.MORE
        for offset, piece in pieces:
            if isinstance(piece, bytes):  # else it was cut out, and stays a gap
                reply = await self._post(session, key, stream, offset, piece)
                self._sent[key, stream] = _Sent(offset + len(piece), unknown=False)
                if reply["pause"]:
                    return Progress.PAUSED
            else:
                self._sent[key, stream] = _Sent(offset + piece.bytes, unknown=False)
        return Progress.MORE

    async def _post(
        self, session: str, key: Key, stream: str, offset: int, data: bytes
    ) -> dict[str, Any]:
        query = {"session": session, "job": key[0], "attempt": key[1], "stream": stream}
        return await self._link.send_bytes("output", {**query, "offset": offset}, data)

    async def flush(self, session: str, keys: Collection[tuple[Key, JobFiles]]) -> None:
        """Send all that is left of these attempts."""
        for key, files in keys:
            progress = Progress.MORE
            while progress is not Progress.ALL:
                progress = await self.send(session, key, files)
                if progress is Progress.PAUSED:
                    await asyncio.sleep(_PAUSE_S)
