"""The messages that the API streams: frames of a job, and the lines of a session.

Each message is one line of JSON. `gridhand.api` writes them; `gridhand.client` reads them, and
imports this module only for its types.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from gridhand.core.model.names import AllocationId, JobId

StreamName = Literal["stdout", "stderr"]


class JobFrame(TypedDict):
    """The job as it is now (`job`), or as it ended (`end`, the last frame)."""

    event: Literal["job", "end"]
    job: dict[str, Any]


class OutputFrame(TypedDict):
    """A piece of the job's output. So many raw `bytes` follow the line."""

    event: Literal["output"]
    stream: StreamName
    offset: int
    bytes: int


class CutFrame(TypedDict):
    """A part of the output that is gone: so many bytes of a log that grew too long."""

    event: Literal["cut"]
    stream: StreamName
    cut: int


class AliveFrame(TypedDict):
    """A sign of life, sent when there has been nothing else for a while."""

    event: Literal["alive"]


Frame = JobFrame | OutputFrame | CutFrame | AliveFrame


class SessionRequest(TypedDict, total=False):
    """The body that opens a session. A client that reconnects says what it had before."""

    session: str | None
    held: list[str]
    jobs: list[str]
    runs: list[str]


class SessionOpened(TypedDict):
    """The first line of a session: its id, and what the controller still has for it."""

    session: str
    held: list[AllocationId]
    jobs: list[JobId]
