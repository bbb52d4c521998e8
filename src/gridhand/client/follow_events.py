"""Follow the events of a controller: each once, in order, across restarts of the controller."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from gridhand.client import routes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gridhand.client.retry import RetryingTransport
    from gridhand.client.transport import ReplyStream

_DATA = b"data:"


def follow_events(
    client: RetryingTransport, kinds: Sequence[str], owners: Sequence[str], after: int | None
) -> Iterator[dict[str, Any]]:
    """Yield events after a number, or from now on, until the iterator is closed."""
    while True:
        with client.open_stream(routes.follow_events(kinds, owners, after)) as stream:
            for event in _read(stream):
                after = event["number"]
                yield event
        client.reconnect(start=False)


def _read(stream: ReplyStream) -> Iterator[dict[str, Any]]:
    """Yield the events of one stream until it ends or breaks. Of each the data says it all."""
    with contextlib.suppress(OSError):  # the caller opens the next stream
        while line := stream.line():
            if line.startswith(_DATA):
                yield json.loads(line[len(_DATA) :])
