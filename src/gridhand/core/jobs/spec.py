"""Work: what is to be run, as it was submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gridhand.core.errors import InvalidInput
from gridhand.core.names import check_label, check_title
from gridhand.core.requests import MOST_NODES, Layout, Request
from gridhand.core.retries import ONLY_LOSSES, RetryPolicy

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
class Work:
    """What is to be run, as it was submitted. It never changes; the jobs of an array share it.

    Of a gang there are `pieces`, each as requested. Of an array at most `at_once` run together.
    `environment` names where its variables are kept, which may be secret and so are not here.
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
    pieces: int = 1
    layout: Layout = Layout.ANY
    at_once: int | None = None
    environment: str = ""
    stdin: str | None = None  # paths; what it writes goes to files of ours unless told otherwise
    stdout: str | None = None
    stderr: str | None = None
    processes: int | None = None  # at most so many at once, threads included
    within: str | None = None  # the allocation that it runs in, its owner's; it asks for no more

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
        _check_number("pieces", self.pieces, 1, MOST_NODES)
        if self.at_once is not None:
            _check_number("at_once", self.at_once, 1, 10**9)


def _check_number(field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most}")
