"""Follows a job until it ends: prints its output, passes signals on, and says why it waits.

One thread does this, the one that reads the controller's stream. Signals interrupt it, so their
handlers print and send requests themselves. They write to the file descriptor directly, because
the thread may be inside a buffered write of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Container
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.cli.support.outcome import OWN_FAILURE, end_message, exit_code

if TYPE_CHECKING:
    from types import FrameType

    from gridhand.cli.support.stdin import Stdin
    from gridhand.client import Client
    from gridhand.core.rows.stream_messages import CutFrame

Job = dict[str, Any]

_PATIENCE_S = 1.0  # after this the waiting line is shown
_ALIKE = 5  # tasks of an array with the same message; further ones are only counted


def say(text: str) -> None:
    """Print a line of our own to stderr, between the lines of jobs."""
    _write_stderr(f"grid: {text}\n")


def _write_stderr(text: str) -> None:
    with suppress(OSError):  # a closed stderr is no reason to leave the job
        os.write(2, text.encode(errors="replace"))


class WaitingLine:
    """Shows why a job waits: in a line that is updated, or once where stderr is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = not quiet and os.isatty(2)
        self._due = False
        self._shown = False
        self._job: Job | None = None

    def update(self, job: Job) -> None:
        self._job = job if job["state"] == "queued" else None
        if self._job is None:
            self.clear()
        elif self._due:
            self._show(self._job)

    def due(self) -> None:
        """Show the line from now on: the job has waited for a second."""
        self._due = True
        if self._job is not None:
            self._show(self._job)

    def clear(self) -> None:
        if self._live and self._shown:
            _write_stderr("\r\033[K")
            self._shown = False

    def _show(self, job: Job) -> None:
        if self._quiet or (self._shown and not self._live):
            return
        self._shown = True
        text = f"job {job['id']} waits: {job.get('why') or 'not scheduled yet'}"
        if self._live:
            text = " ".join(text.split())[: max(20, _columns() - 7)]
            _write_stderr(f"\r\033[Kgrid: {text}")
        else:
            say(text)


def why_ended(client: Client, job: Job) -> str:
    """Return why the job ended, with the dependency that failed; empty if it exited by itself."""
    if job.get("reason") == "dependency" and not job.get("message"):
        from gridhand.cli.support.failed_dependency import dependency_message

        return dependency_message(client, job)
    return end_message(job)


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


class Attached:
    """A client that its jobs end with, and that passes its signals on to them."""

    def __init__(
        self, client: Client, job: Job, *, quiet: bool = False, elsewhere: Container[str] = ()
    ) -> None:
        self._client = client
        self._array: str | None = job["array"]
        self._kind = "job" if job["array"] is None else "gang" if job.get("nodes") else "array"
        self._id: str = job["array"] or job["id"]
        self._elsewhere = elsewhere  # streams that go to files
        self._job: Job | None = None  # the job that is followed now
        self._interrupts = 0
        self._signals: list[int] = []  # not handled yet
        self._sent = 0  # the signal that was passed on, or that cancelled the job
        self._quiet = quiet
        self._waiting = WaitingLine(quiet)
        self._messages: Counter[str] = Counter()
        self._missed = 0  # bytes of output that were dropped before they were read
        self._old_handlers: dict[int, Any] = {}
        self._timer = (0.0, 0.0)

    def __enter__(self) -> Attached:
        for number, handler in self._handlers().items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup, or after `&`
                self._old_handlers[number] = signal.signal(number, handler)
        self._timer = signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # our alarm must not reach another handler
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.setitimer(signal.ITIMER_REAL, *self._timer)
        self._waiting.clear()
        for text, count in self._messages.items():
            if count > _ALIKE:
                say(f"and {count - _ALIKE} more of {self._id}: {text}")

    def follow(self, job: Job, *, stdin: Stdin | None = None, output: bool = True) -> Job:
        """Follow the job until it ends, and return it."""
        self._job = job
        for frame, data in self._client.follow(job["id"], attach=True, output=output):
            match frame["event"]:
                case "job" | "end":
                    self._job = job = frame["job"]
                    self._waiting.update(job)
                    if stdin is not None and job["state"] == "running":
                        stdin.pump()
                case "output" if frame["stream"] not in self._elsewhere:
                    write(frame["stream"], data)
                case "cut" if frame["stream"] not in self._elsewhere:
                    self._missed += frame["cut"]
        return job

    def end(self, job: Job) -> int:
        """Print why the job ended, and return the exit code."""
        passed_on = self._sent and job.get("signal") == self._sent
        if not self._quiet and not passed_on and (text := why_ended(self._client, job)):
            self._messages[text] += 1
            if self._messages[text] <= _ALIKE:
                say(f"job {job['id']}: {text}")
        code = exit_code(job, instead=128 + self._sent if self._sent else None)
        if self._missed:
            say(missed_text(job["id"], self._missed))
        # A reader of a pipe must not take a part of the output for all of it.
        return OWN_FAILURE if self._missed and not code else code

    def _handlers(self) -> dict[int, Callable[[int, FrameType | None], None]]:
        return {
            signal.SIGALRM: lambda *_: self._waiting.due(),
            signal.SIGINT: lambda number, _: self._signalled(number),
            signal.SIGTERM: lambda number, _: self._signalled(number),
            signal.SIGHUP: _hang_up,
        }

    def _signalled(self, number: int) -> None:
        """Handle signals one after the other: a second may arrive while the first is handled."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 2:
            raise KeyboardInterrupt  # leave, even if the controller does not answer
        self._signals.append(number)
        if len(self._signals) > 1:
            return
        while self._signals:
            self._act(self._signals[0])
            del self._signals[0]

    def _act(self, number: int) -> None:
        """Pass the first Ctrl-C on to a job that runs; cancel it otherwise, and a whole array."""
        started = self._job is not None and self._job["state"] == "running"
        if number != signal.SIGINT or self._sent or not started or self._array is not None:
            self._cancel(number)
            return
        self._sent = signal.SIGINT
        self._say(f"sent Ctrl-C to job {self._id}; press again to cancel it")
        self._request(lambda: self._client.signal(self._id, signal.SIGINT))

    def _cancel(self, number: int) -> None:
        self._sent = number
        self._say(f"cancelling {self._kind} {self._id}")
        self._request(lambda: self._client.cancel(self._id))

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._waiting.clear()
            say(text)

    def _request(self, call: Callable[[], object]) -> None:
        """Send a request from a signal handler, where a failure must not end the client."""
        try:
            call()
        except Exception as error:
            code = getattr(error, "code", None)  # errors of the controller, and our own, have one
            if code is None:
                raise
            if code != "job_refused":  # it has just ended by itself
                say(str(error))


def _hang_up(number: int, frame: FrameType | None) -> None:
    """Leave in good order when the terminal is gone. Attached jobs end with this process."""
    raise SystemExit(128 + number)


def write(stream: str, data: bytes) -> None:
    """Write what a job wrote, unchanged and at once."""
    out = sys.stderr if stream == "stderr" else sys.stdout
    if out is None:  # closed by the caller
        return
    rest = memoryview(data)
    while rest:  # without a buffer (PYTHONUNBUFFERED), a signal cuts a write short
        rest = rest[out.buffer.write(rest) :]
    out.buffer.flush()


def missed_text(id: str, count: int) -> str:
    return (
        f"job {id}: {count} bytes of output are missing: it wrote faster than they were read;"
        " -o FILE keeps all of it"
    )


def cut_text(id: str, frame: CutFrame) -> str:
    return f"job {id}: {frame['cut']} bytes of its {frame['stream']} were not kept"
