"""Lines: waiting jobs in order, of which any may step out at any time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridhand.core.jobs import Job
    from gridhand.core.refusals import Refusal

_FEW = 32


class Entry:
    """A job in the queue, for as long as it is there: made anew when it comes back.

    `home` is the line it stands in, if any; `kind` the class in whose lines it counts.
    """

    __slots__ = ("home", "job", "kind", "order")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.order = job.number
        self.home: Line | None = None
        self.kind: Kind | None = None

    def __lt__(self, other: Entry) -> bool:
        return self.order < other.order


class Line:
    """Entries, the lowest `order` first. One that steps out is dropped when it comes to the front.

    When most have stepped out the line closes up, so that it is never longer than twice those
    that are there.
    """

    __slots__ = ("_entries", "_gone")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self._entries) - self._gone

    def push(self, entry: Entry) -> None:
        entry.home = self
        heapq.heappush(self._entries, entry)

    def first(self) -> Entry | None:
        while self._entries and self._entries[0].home is not self:
            heapq.heappop(self._entries)
            self._gone -= 1
        return self._entries[0] if self._entries else None

    def pop(self) -> Entry | None:
        """The first, which is then in no line."""
        entry = self.first()
        if entry is not None:
            heapq.heappop(self._entries)
            entry.home = None
        return entry

    def step_out(self, entry: Entry) -> None:
        """The entry may not come back: another one is made for its job."""
        entry.home = None
        self._gone += 1
        if self._gone > _FEW and self._gone * 2 > len(self._entries):
            self._entries = [one for one in self._entries if one.home is self]
            heapq.heapify(self._entries)
            self._gone = 0


class OwnersLine(Line):
    """Jobs of one owner and priority that ask for the same, and of one array if it has a limit.

    The queue offers its first.
    """

    __slots__ = ("kind", "limit", "offered", "rank", "serial", "where")

    def __init__(self, kind: Kind, limit: Limit | None, where: Where, serial: int) -> None:
        super().__init__()
        self.kind, self.limit, self.where, self.serial = kind, limit, where, serial
        self.rank = where[0]
        self.offered: int | None = None  # the number of the job it stands for among the lines

    def parking(self) -> dict[int, OwnersLine] | None:
        """Where it is left alone for now, if its jobs are not to be tried."""
        if self.kind.refused:
            return self.kind.parked
        if self.limit is not None and len(self.limit.running) >= self.limit.at_once:
            return self.limit.parked
        return None


Where = tuple[int, str, str | None]  # rank, owner, and an array with a limit


class Kind:
    """A class of jobs that ask for the same, so that one answer is good for all of them."""

    __slots__ = ("key", "lines", "parked", "refused", "size", "why")

    def __init__(self, key: object) -> None:
        self.key = key
        self.lines: dict[Where, OwnersLine] = {}
        self.parked: dict[int, OwnersLine] = {}  # by serial, until something is freed
        self.size = 0
        self.refused = False
        self.why: str | Refusal | None = None


class Limit:
    """An array of which only so many may run at once."""

    __slots__ = ("at_once", "parked", "running", "size")

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.running: set[str] = set()
        self.parked: dict[int, OwnersLine] = {}  # by serial, until one of them has ended
        self.size = 0  # of those in line
