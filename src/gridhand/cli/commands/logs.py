"""`grid logs`: what a job has written, and what it goes on to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli.attached import cut_text, say, write
from gridhand.cli.outcome import exit_code, last_words

if TYPE_CHECKING:
    from gridhand.client import Client

_CHUNK = 1 << 20
_TAILS = (1 << 16, 1 << 20, 4 << 20)  # the last is as much as a controller tells at once
_STREAMS = ("stdout", "stderr")


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until it ends, with its exit code.")
@click.option("--stdout", "only", flag_value="stdout", help="Only its output.")
@click.option("--stderr", "only", flag_value="stderr", help="Only its errors, as our output.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each.")
@click.argument("id")
@click.pass_context
def logs(ctx: click.Context, id: str, follow: bool, only: str | None, tail: int | None) -> None:
    """Print what a job has written.

    Its output goes to ours and its errors to ours. ID may be that of an array, whose tasks come
    one after the other, or @ for your last job. Ctrl-C leaves the job alone.
    """
    from gridhand.cli.jobs import tasks
    from gridhand.client import connect

    codes = [0]
    with connect() as client:
        client.waits = say
        for job in tasks(client, id):
            printer = Printer(client, job["id"], only, tail)
            if follow:
                codes.append(printer.follow())
            else:
                printer.copy()
    ctx.exit(max(codes))


class Printer:
    """Prints what one job writes: both of its streams as ours, or the one that is wanted."""

    def __init__(self, client: Client, id: str, only: str | None, tail: int | None) -> None:
        self._client = client
        self._id = id
        self._only = only
        self._tail = tail

    def copy(self) -> dict[str, int]:
        """Print what is there; answer, for each stream, how far that is."""
        reached = dict.fromkeys(_STREAMS, 0)
        for stream in [self._only] if self._only else _STREAMS:
            parts = self._written(stream) if self._tail is None else self._last(stream, self._tail)
            for data, end in parts:
                reached[stream] = end
                self._write(stream, data)
        return reached

    def follow(self) -> int:
        """Print until the job has ended; answer its exit code."""
        begin = {} if self._tail is None else self.copy()
        job: dict[str, Any] = {}
        stdout, stderr = (begin.get(stream, 0) for stream in _STREAMS)
        for frame, data in self._client.follow(self._id, stdout=stdout, stderr=stderr):
            if "job" in frame:
                job = frame["job"]
            elif frame["event"] == "output":
                self._write(frame["stream"], data)
            elif frame["event"] == "cut":
                say(cut_text(self._id, frame))
        if text := last_words(job):
            say(f"job {self._id}: {text}")
        return exit_code(job)

    def _write(self, stream: str, data: bytes) -> None:
        if self._only in (None, stream):
            write("stdout" if self._only else stream, data)

    def _written(self, stream: str) -> Iterator[tuple[bytes, int]]:
        """What the stream has by now, in parts, each with the offset behind it."""
        offset = 0
        while True:
            part = self._client.logs(self._id, stream, offset=offset, limit=_CHUNK)
            if not part.data:
                return
            offset = getattr(part, "end", part.offset + len(part.data))
            yield part.data, offset

    def _last(self, stream: str, lines: int) -> Iterator[tuple[bytes, int]]:
        """Its last lines: of what is at the end, and more of it as long as they are not all there.

        Lines that are longer than all of that are shown from where it begins.
        """
        for tail in _TAILS:
            part = self._client.logs(self._id, stream, tail=tail)
            found = _last_lines(part.data, lines)
            if len(found) < len(part.data) or part.offset == 0:
                break
        yield found, part.size


def _last_lines(data: bytes, count: int) -> bytes:
    """
    >>> _last_lines(b"a\\nb\\nc\\n", 2)
    b'b\\nc\\n'
    """
    if count == 0:
        return b""
    begin = len(data) - data.endswith(b"\n")
    for _ in range(count):
        begin = data.rfind(b"\n", 0, begin)
        if begin < 0:
            return data
    return data[begin + 1 :]
