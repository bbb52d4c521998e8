"""Staying with a job until it ends: its output, its signals, and why it waits.

One thread does it, the one that reads what the controller tells. Signals interrupt it there, so
what has to be said or asked at once is said or asked by their handlers, which write to the file
descriptor itself: the thread may be within a buffered write of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Container
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.cli.outcome import OWN_FAILURE, exit_code, last_words

if TYPE_CHECKING:
    from types import FrameType

    from gridhand.cli.stdin import Stdin
    from gridhand.client import Client

Job = dict[str, Any]

_PATIENCE_S = 1.0  # a job that waits longer says why
_ALIKE = 5  # tasks of an array of which the same is said; the others are counted


def say(text: str) -> None:
    """A line of ours on stderr, among what jobs write there."""
    tell(f"grid: {text}\n")


def tell(text: str) -> None:
    with suppress(OSError):  # nobody listens, and that is no reason to leave a job
        os.write(2, text.encode(errors="replace"))


class Waiting:
    """Says why a job waits: in one line that changes, or once if nobody watches."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = not quiet and os.isatty(2)
        self._due = False
        self._shown = False
        self._job: Job | None = None

    def news(self, job: Job) -> None:
        self._job = job if job["state"] == "queued" else None
        if self._job is None:
            self.clear()
        elif self._due:
            self._show(self._job)

    def due(self) -> None:
        """A second has passed."""
        self._due = True
        if self._job is not None:
            self._show(self._job)

    def clear(self) -> None:
        if self._live and self._shown:
            tell("\r\033[K")
            self._shown = False

    def _show(self, job: Job) -> None:
        if self._quiet or (self._shown and not self._live):
            return
        self._shown = True
        text = f"job {job['id']} waits: {job.get('why') or 'it has not been looked at yet'}"
        if self._live:
            text = " ".join(text.split())[: max(20, _columns() - 7)]
            tell(f"\r\033[Kgrid: {text}")
        else:
            say(text)


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


class Attached:
    """A client that stands for its jobs: what is done to it is done to them."""

    def __init__(
        self, client: Client, job: Job, *, quiet: bool = False, elsewhere: Container[str] = ()
    ) -> None:
        self._client = client
        self._array: str | None = job["array"]
        self._whole: str = job["array"] or job["id"]
        self._elsewhere = elsewhere  # streams that go to files of their own
        self._now: Job | None = None  # the one that is followed
        self._interrupts = 0
        self._signals: list[int] = []  # not dealt with yet
        self._sent = 0  # the signal that was passed on, or that it was cancelled for
        self._quiet = quiet
        self._waiting = Waiting(quiet)
        self._said: Counter[str] = Counter()
        self._missed = 0  # bytes of its output that were cut out before they were read
        self._before: dict[int, Any] = {}
        self._timer = (0.0, 0.0)

    def __enter__(self) -> Attached:
        for number, handler in self._handlers().items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup, or after `&`
                self._before[number] = signal.signal(number, handler)
        self._timer = signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # ours shall not meet a handler that is not
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.setitimer(signal.ITIMER_REAL, *self._timer)
        self._waiting.clear()
        for text, count in self._said.items():
            if count > _ALIKE:
                say(f"and {count - _ALIKE} more of {self._whole}: {text}")

    def follow(self, job: Job, *, stdin: Stdin | None = None, output: bool = True) -> Job:
        """Stay until the job ends; answer it as it ended."""
        self._now = job
        for frame, data in self._client.follow(job["id"], attach=True, output=output):
            match frame["event"]:
                case "job" | "end":
                    self._now = job = frame["job"]
                    self._waiting.news(job)
                    if stdin is not None and job["state"] == "running":
                        stdin.pump()
                case "output" if frame["stream"] not in self._elsewhere:
                    write(frame["stream"], data)
                case "cut" if frame["stream"] not in self._elsewhere:
                    self._missed += frame["cut"]
        return job

    def end(self, job: Job) -> int:
        """Say what there is to say about the end, and answer the exit code."""
        passed_on = self._sent and job.get("signal") == self._sent
        if not self._quiet and not passed_on and (text := last_words(job)):
            self._said[text] += 1
            if self._said[text] <= _ALIKE:
                say(f"job {job['id']}: {text}")
        code = exit_code(job, instead=128 + self._sent if self._sent else None)
        if self._missed:
            say(missed_text(job["id"], self._missed))
        # Whoever pipes it on must not take a part for the whole.
        return OWN_FAILURE if self._missed and not code else code

    def _handlers(self) -> dict[int, Callable[[int, FrameType | None], None]]:
        return {
            signal.SIGALRM: lambda *_: self._waiting.due(),
            signal.SIGINT: lambda number, _: self._signalled(number),
            signal.SIGTERM: lambda number, _: self._signalled(number),
            signal.SIGHUP: _hang_up,
        }

    def _signalled(self, number: int) -> None:
        """Do what a signal means, one after the other: a second may come within the first."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 2:
            raise KeyboardInterrupt  # whatever does not answer, this one does
        self._signals.append(number)
        if len(self._signals) > 1:
            return
        while self._signals:
            self._act(self._signals[0])
            del self._signals[0]

    def _act(self, number: int) -> None:
        started = self._now is not None and self._now["state"] == "running"
        if number != signal.SIGINT or self._sent or not started:
            self._cancel(number)
            return
        self._sent = signal.SIGINT
        self._say(f"passed the interrupt on to job {self._whole}; once more cancels it")
        self._ask(lambda: [self._client.signal(id, signal.SIGINT) for id in self._running()])

    def _running(self) -> list[str]:
        if self._array is None:
            return [self._whole]
        return [job["id"] for job in self._client.jobs(array=self._array, states=["running"])]

    def _cancel(self, number: int) -> None:
        self._sent = number
        self._say(f"cancelling job {self._whole}")
        self._ask(lambda: self._client.cancel(self._whole))

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._waiting.clear()
            say(text)

    def _ask(self, call: Callable[[], object]) -> None:
        """Ask within a handler: what fails must not take the job from its client."""
        try:
            call()
        except Exception as error:
            code = getattr(error, "code", None)  # of those the controller tells, and ours
            if code is None:
                raise
            if code != "job_refused":  # it has just ended by itself
                say(str(error))


def _hang_up(number: int, frame: FrameType | None) -> None:
    """The terminal is gone: leave, and tidy up on the way. Attached jobs end with us."""
    raise SystemExit(128 + number)


def write(stream: str, data: bytes) -> None:
    """Pass on what a job wrote, as it is and at once."""
    out = sys.stderr if stream == "stderr" else sys.stdout
    if out is None:  # closed by whoever started us
        return
    out.buffer.write(data)
    out.buffer.flush()


def missed_text(id: str, count: int) -> str:
    return (
        f"job {id}: it wrote faster than could be read here, and {count} bytes are missing;"
        " -o FILE keeps all of it"
    )


def cut_text(id: str, frame: Job) -> str:
    count = frame.get("cut", frame.get("bytes"))
    return f"job {id}: {count} bytes of its {frame['stream']} were not kept"
