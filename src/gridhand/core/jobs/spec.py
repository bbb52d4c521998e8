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
    the variables are kept: they may be secret, so they are not here.
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
        if self.time_limit_ms is not None:
            _check_number("time_limit_ms", self.time_limit_ms, 1, MOST_MS)
        _check_number("grace_ms", self.grace_ms, 0, MOST_MS)
        if self.processes is not None:
            _check_number("processes", self.processes, 1, 10**7)
        if self.at_once is not None:
            _check_number("at_once", self.at_once, 1, 10**9)


def _check_number(field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most}")
