"""JobSpec: a command and its settings, as submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gridhand.core.errors import InvalidInput
from gridhand.core.jobs.retry_policy import ONLY_LOSSES, RetryPolicy
from gridhand.core.model.names import check_label, check_title
from gridhand.core.model.requests import Request

MOST_WORDS = 100_000
MOST_MS = 10 * 365 * 86_400_000
MOST_NODES = 10_000  # of a gang


class Priority(StrEnum):
    """Highest first."""

    URGENT = "urgent"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @classmethod
    def read(cls, value: object) -> Priority:
        if isinstance(value, str) and value.lower() in set(cls):
            return cls(value.lower())
        raise InvalidInput("priority", value, f"one of {', '.join(cls)}")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A command and its settings, as submitted. It never changes; the jobs of an array share it.

    `at_once` limits how many jobs of the array run together. `environment` names the place where
    the variables are kept: they may be secret, so they are not here. `begin_ms` and `deadline_ms`
    count from the submission.
    """

    owner: str
    command: tuple[str, ...]
    folder: str
    request: Request
    name: str | None = None
    priority: Priority = Priority.MEDIUM
    task_type: str | None = None
    time_limit_ms: int | None = None
    grace_ms: int = 30_000
    detached: bool = False
    retry: RetryPolicy = ONLY_LOSSES
    at_once: int | None = None
    environment: str = ""
    stdin: str | None = None  # paths; without one, output goes to log files of ours
    stdout: str | None = None
    stderr: str | None = None
    processes: int | None = None  # limit of processes and threads
    within: str | None = None  # an allocation of its owner to run in, instead of one of its own
    queue: str | None = None  # a named queue of the configuration
    expect_ms: int | None = None  # how long it should run, for planning; `time_limit_ms` ends it
    begin_ms: int | None = None  # it starts no earlier
    deadline_ms: int | None = None  # it is cancelled if it waits until it cannot end by then
    fallback_after_ms: int | None = None  # it must have waited so long for its alternatives
    warn_signal: int | None = None  # sent `warn_ms` before the time limit
    warn_ms: int | None = None
    nodes: int | None = None  # it is a gang: one process on each of so many nodes

    def __post_init__(self) -> None:
        check_label(self.owner, "owner")
        if not 0 < len(self.command) <= MOST_WORDS or not self.command[0]:
            raise InvalidInput("command", self.command, "a program, then its arguments")
        for word in (*self.command, self.folder):
            if not isinstance(word, str) or "\0" in word:
                raise InvalidInput("command or folder", word, "text without zero bytes")
        for field in ("stdin", "stdout", "stderr"):
            path = getattr(self, field)
            if path is not None and (not path.startswith("/") or "\0" in path):
                raise InvalidInput(field, path, "a path that begins with /")
        if self.name is not None:
            check_title(self.name, "name")
        if self.task_type is not None:
            check_label(self.task_type, "task_type")
        if self.within is not None:
            check_label(self.within, "within")
        if self.queue is not None:
            check_label(self.queue, "queue")
        for field in _TIMES:
            if (time_ms := getattr(self, field)) is not None:
                _check_number(field, time_ms, 1, MOST_MS)
        _check_number("grace_ms", self.grace_ms, 0, MOST_MS)
        if self.processes is not None:
            _check_number("processes", self.processes, 1, 10**7)
        if self.at_once is not None:
            _check_number("at_once", self.at_once, 1, 10**9)
        if self.nodes is not None:
            self._check_gang()
        self._check_warning()
        self._check_times()

    @property
    def longest_ms(self) -> int:
        """How long it may run, as far as that is known; else 0."""
        return self.time_limit_ms or self.expect_ms or 0

    def _check_gang(self) -> None:
        _check_number("nodes", self.nodes, 1, MOST_NODES)
        if self.within is not None:
            raise InvalidInput("nodes", self.nodes, "nothing beside within: that is on one node")
        if self.at_once is not None:
            raise InvalidInput("nodes", self.nodes, "nothing beside a limit of an array")
        if self.request.node is not None and self.nodes != 1:
            raise InvalidInput("nodes", self.nodes, f"1 with node {self.request.node}")
        if self.request.together_with is not None:
            raise InvalidInput("nodes", self.nodes, "nothing beside together_with")

    def _check_warning(self) -> None:
        if self.warn_signal is None and self.warn_ms is None:
            return
        if self.warn_signal is None or self.warn_ms is None:
            raise InvalidInput("warn_signal", self.warn_signal, "warn_signal and warn_s together")
        _check_number("warn_signal", self.warn_signal, 1, 64)
        if self.time_limit_ms is None or self.warn_ms >= self.time_limit_ms:
            allowed = "less than the time limit, which it needs"
            raise InvalidInput("warn_s", _seconds(self.warn_ms), allowed)

    def _check_times(self) -> None:
        if self.fallback_after_ms is not None and not self.request.alternatives:
            allowed = "a request with alternatives, or a fallback"
            raise InvalidInput("fallback_after", _seconds(self.fallback_after_ms), allowed)
        if self.begin_ms is not None and self.within is not None:
            allowed = "nothing beside within: it runs at once"
            raise InvalidInput("begin", _seconds(self.begin_ms), allowed)
        earliest = (self.begin_ms or 0) + self.longest_ms
        if self.deadline_ms is not None and self.deadline_ms < earliest:
            least = f"{_seconds(earliest)} from its submission, or later"
            allowed = f"{least}: it begins no earlier and may run so long"
            raise InvalidInput("deadline", _seconds(self.deadline_ms), allowed)


_TIMES = (
    "time_limit_ms", "expect_ms", "begin_ms", "deadline_ms", "fallback_after_ms", "warn_ms",
)  # fmt: skip


def _seconds(ms: int) -> str:
    """Return a time as users wrote it."""
    return f"{ms / 1000:g} s"


def _check_number(field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most}")
