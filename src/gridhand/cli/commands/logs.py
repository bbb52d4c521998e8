"""`grid logs`: the output of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli.help_format import command, option
from gridhand.cli.support.attach import cut_text, say, why_ended, write
from gridhand.cli.support.completions import complete_jobs
from gridhand.cli.support.outcome import exit_code

if TYPE_CHECKING:
    from gridhand.client import Client

_CHUNK = 1 << 20
_TAILS = (1 << 16, 1 << 20, 4 << 20)  # the last is the most that a controller sends at once
_STREAMS = ("stdout", "stderr")


@command(
    epilog="""
    grid logs -f 17           follow job 17 to its end
    grid logs --tail 20 @     the last lines of your last job
    """
)
@option("-f", "--follow", is_flag=True, help="Follow the job to its end, and exit with its code.")
@option("--stdout", "only", flag_value="stdout", help="Print only stdout.")
@option("--stderr", "only", flag_value="stderr", help="Print only stderr, to stdout.")
@option("--tail", type=click.IntRange(0), metavar="N", help="Print only the last N lines of each.")
@click.argument("id", shell_complete=complete_jobs)
@click.pass_context
def logs(ctx: click.Context, id: str, follow: bool, only: str | None, tail: int | None) -> None:
    """Print the output of a job.

    Its stdout is printed to stdout and its stderr to stderr. ID may be that of an array, whose
    tasks are printed one after the other, or @ for your last job. Ctrl-C does not touch the job.
    """
    from gridhand.cli.commands.jobs import tasks
    from gridhand.client import connect

    codes = [0]
    with connect() as client:
        client.on_wait = say
        for task in [job["id"] for job in tasks(client, id)]:
            printer = Printer(client, task, only, tail)
            if follow:
                codes.append(printer.follow())
            else:
                printer.copy()
    ctx.exit(max(codes))


class Printer:
    """Prints the output of one job: both streams, or only one of them."""

    def __init__(self, client: Client, id: str, only: str | None, tail: int | None) -> None:
        self._client = client
        self._id = id
        self._only = only
        self._tail = tail

    def copy(self) -> dict[str, int]:
        """Print what there is by now, and return the offset of each stream."""
        reached = dict.fromkeys(_STREAMS, 0)
        for stream in [self._only] if self._only else _STREAMS:
            parts = self._written(stream) if self._tail is None else self._last(stream, self._tail)
            for data, end in parts:
                reached[stream] = end
                self._write(stream, data)
        return reached

    def follow(self) -> int:
        """Print until the job has ended, and return its exit code."""
        begin = {} if self._tail is None else self.copy()
        job: dict[str, Any] = {}
        stdout, stderr = (begin.get(stream, 0) for stream in _STREAMS)
        for frame, data in self._client.follow(self._id, stdout=stdout, stderr=stderr):
            if frame["event"] == "job" or frame["event"] == "end":
                job = frame["job"]
            elif frame["event"] == "output":
                self._write(frame["stream"], data)
            elif frame["event"] == "cut":
                say(cut_text(self._id, frame))
        if text := why_ended(self._client, job):
            say(f"job {self._id}: {text}")
        return exit_code(job)

    def _write(self, stream: str, data: bytes) -> None:
        if self._only in (None, stream):
            write("stdout" if self._only else stream, data)

    def _written(self, stream: str) -> Iterator[tuple[bytes, int]]:
        """Yield what the stream has by now in parts, each with the offset of its end."""
        offset = 0
        while True:
            part = self._client.logs(self._id, stream, offset=offset, limit=_CHUNK)
            if not part.data:
                return
            offset = getattr(part, "end", part.offset + len(part.data))
            yield part.data, offset

    def _last(self, stream: str, lines: int) -> Iterator[tuple[bytes, int]]:
        """Yield the last lines, from a tail that is read larger until it contains them.

        Lines that are longer than the largest tail are cut at their beginning.
        """
        for tail in _TAILS:
            part = self._client.logs(self._id, stream, tail=tail)
            text = _last_lines(part.data, lines)
            if len(text) < len(part.data) or part.offset == 0:
                break
        yield text, part.size


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
