"""A job's frames put together from several streams, each byte once.

A controller may be restarted while somebody follows a job. The next stream is asked for from the
offsets that were reached; what comes twice all the same is left out here.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from gridhand.client import routes
from gridhand.client.http1 import Lost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.client.routes import Ask
    from gridhand.client.transport import Stream

Frame = tuple[dict[str, Any], bytes]


class Following:
    """What was told of a job so far."""

    def __init__(
        self,
        id: str,
        *,
        attach: bool = False,
        output: bool = True,
        stdout: int = 0,
        stderr: int = 0,
    ) -> None:
        self._id = id
        self._attach = attach
        self._output = output
        self._offsets = {"stdout": stdout, "stderr": stderr}
        self._job: dict[str, Any] | None = None
        self.ended = False
        self.stopping = False  # the controller ends on purpose, and is not to be replaced

    def ask(self) -> Ask:
        """The stream to read next: the first one, or what one that broke has left over."""
        self.stopping = False
        offsets = self._offsets
        return routes.follow(self._id, attach=self._attach, output=self._output, offsets=offsets)

    def read(self, stream: Stream) -> Iterator[Frame]:
        """What this stream has to tell that is new, until it ends or breaks."""
        with contextlib.suppress(OSError):  # whoever reads looks for the next stream
            while not self.ended and (line := stream.line()):
                event, count = read_event(line)
                if frame := self.take(event, stream.exactly(count)):
                    yield frame
            self.finished()

    def finished(self) -> None:
        """The stream has ended in good order; before the job, if the controller is to stop."""
        self.stopping = True

    def take(self, event: dict[str, Any], data: bytes) -> Frame | None:
        """The frame as it is to be told, or nothing when it was told before."""
        match event.get("event"):
            case "output":
                return self._take_output(event, data)
            case "job":
                known, self._job = self._job, event["job"]
                return None if known == self._job else (event, data)
            case "cut":
                return self._take_cut(event, data)
            case "end":
                self.ended = True
        return event, data

    def _take_output(self, event: dict[str, Any], data: bytes) -> Frame | None:
        stream, offset = event["stream"], event["offset"]
        known = max(0, self._offsets[stream] - offset)
        self._offsets[stream] = max(self._offsets[stream], offset + len(data))
        if known == 0:
            return event, data
        fresh = data[known:]
        return ({**event, "offset": offset + known, "bytes": len(fresh)}, fresh) if fresh else None

    def _take_cut(self, event: dict[str, Any], data: bytes) -> Frame:
        """Offsets count what was cut out as well, so that it is not told of again."""
        self._offsets[event["stream"]] += event["cut"]
        return event, data


def read_event(line: bytes) -> tuple[dict[str, Any], int]:
    """A frame's line, and how many bytes follow it."""
    try:
        event = json.loads(line)
        count = event.get("bytes", 0)
        if not isinstance(event["event"], str) or not isinstance(count, int):
            raise TypeError
    except (ValueError, TypeError, KeyError) as error:
        raise Lost(f"a frame that cannot be read: {line[:100]!r}") from error
    return event, count
