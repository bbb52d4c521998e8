"""Follow a job: its frames, joined from as many streams as it takes, each byte once.

A controller may be restarted while a job is followed. The next stream is then requested from the
offsets that were reached, and what arrives twice all the same is dropped here.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Self, cast

from gridhand.client import routes
from gridhand.client.http1 import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from gridhand.client.http1 import HttpConnection
    from gridhand.client.retry import RetryingTransport
    from gridhand.client.routes import HttpCall
    from gridhand.client.transport import ReplyStream
    from gridhand.core.rows.stream_messages import CutFrame, Frame, OutputFrame

    FrameData = tuple[Frame, bytes]


class JobFollower:
    """An iterator over the frames of a job and the bytes that belong to them.

    One thread iterates and closes it; any thread may `stop` it.
    """

    def __init__(self, client: RetryingTransport, frames: JobFrames) -> None:
        # The generator does not refer to this object: dropping it closes the connection at once.
        self._switch = _Switch()
        self._frames = _follow(client, frames, self._switch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FrameData:
        return next(self._frames)

    def close(self) -> None:
        """Close the connection. Only the thread that iterates may call this."""
        self._frames.close()

    def stop(self) -> None:
        """End the iteration soon, wherever it waits. Any thread may call this; it never blocks."""
        self._switch.stop()


def _follow(
    client: RetryingTransport, frames: JobFrames, switch: _Switch
) -> Generator[FrameData, None, None]:
    try:
        while not frames.ended:
            with client.open_stream(frames.next_call(), switch.opened) as stream:
                yield from frames.read(stream)
            if not frames.ended:
                switch.check()
                client.reconnect(start=not frames.stopping)
    except Exception:
        if not switch.stopped:  # else the connection was shut down on purpose
            raise


class _Switch:
    """Stops a thread that reads a connection, from another thread."""

    def __init__(self) -> None:
        self.stopped = False
        self._connection: HttpConnection | None = None

    def opened(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.check()

    def check(self) -> None:
        if self.stopped:
            raise _Stopped

    def stop(self) -> None:
        self.stopped = True  # before the connection is read: see `opened`
        if self._connection is not None:
            self._connection.shut_down()


class _Stopped(Exception):
    """Raised in the thread that iterates, after `stop`."""


class JobFrames:
    """The frames of a job so far: the offsets reached, and whether the job has ended."""

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
        self.stopping = False  # the controller stops on purpose and must not be restarted

    def next_call(self) -> HttpCall:
        """Return the request for the next stream, from the offsets reached."""
        self.stopping = False
        offsets = self._offsets
        return routes.follow(self._id, attach=self._attach, output=self._output, offsets=offsets)

    def read(self, stream: ReplyStream) -> Iterator[FrameData]:
        """Yield what is new in this stream until it ends or breaks."""
        with contextlib.suppress(OSError):  # the caller opens the next stream
            while not self.ended and (line := stream.line()):
                frame, count = read_frame(line)
                if (fresh := self.take(frame, stream.exactly(count))) is not None:
                    yield fresh
            self.stopping = True  # ended in good order, though the job goes on

    def take(self, frame: Frame, data: bytes) -> FrameData | None:
        """Return the frame without what was seen before, or None if nothing of it is new."""
        if frame["event"] == "output":
            return self._take_output(frame, data)
        if frame["event"] == "cut":
            return self._take_cut(frame, data)
        if frame["event"] == "end":
            self.ended = True
        elif frame["event"] == "job":
            known, self._job = self._job, frame["job"]
            if known == self._job:
                return None
        return frame, data

    def _take_output(self, frame: OutputFrame, data: bytes) -> FrameData | None:
        stream, offset = frame["stream"], frame["offset"]
        known = max(0, self._offsets[stream] - offset)
        self._offsets[stream] = max(self._offsets[stream], offset + len(data))
        if known == 0:
            return frame, data
        fresh = data[known:]
        return ({**frame, "offset": offset + known, "bytes": len(fresh)}, fresh) if fresh else None

    def _take_cut(self, frame: CutFrame, data: bytes) -> FrameData:
        """Count the cut in the offset, so that the next stream does not report it again."""
        self._offsets[frame["stream"]] += frame["cut"]
        return frame, data


def read_frame(line: bytes) -> tuple[Frame, int]:
    """Decode the line of a frame; return it with the number of bytes that follow the line."""
    try:
        frame = json.loads(line)
        count = frame.get("bytes", 0)
        if not isinstance(frame["event"], str) or not isinstance(count, int):
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConnectionLost(f"the controller sent an invalid frame: {line[:100]!r}") from error
    return cast("Frame", frame), count
