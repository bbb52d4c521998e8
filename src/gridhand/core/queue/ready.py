"""Ready: the lines of jobs that may be tried, and which of them comes first."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from gridhand.core.jobs import Job, Priority
from gridhand.core.lines import Entry, Kind, Limit, OwnersLine, Where

if TYPE_CHECKING:
    from gridhand.core.refusals import Refusal

_RANK = {priority: rank for rank, priority in enumerate(Priority)}
_FEW = 64


class Ready:
    """Lines by what is asked for and whose they are; each offers its first job.

    A line that is not to be tried is parked: with its class until something is freed, with its
    array until one of that has ended. What stands for a line in the heap may be out of date, but
    never comes after the line's first job; it is put right when it comes to the front.
    """

    def __init__(self) -> None:
        self._kinds: dict[object, Kind] = {}
        self._refused: dict[object, Kind] = {}
        self._limits: dict[str, Limit] = {}
        self._heap: list[tuple[int, int, int, OwnersLine]] = []
        self._tidy_at = _FEW
        self._serial = 0

    # ---- who is in line

    def add(self, entry: Entry) -> None:
        key = _key(entry.job)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(key)
        entry.kind = kind
        kind.size += 1
        limit = self.limit(entry.job)
        if limit is not None:
            limit.size += 1
        self._join(entry, kind, limit)

    def remove(self, entry: Entry) -> None:
        """Take out one that was added, be it in line or aside."""
        kind, limit = entry.kind, self.limit(entry.job)
        assert kind is not None
        _step_out(entry)
        entry.kind = None
        kind.size -= 1
        if not kind.size:
            del self._kinds[kind.key]
            self._refused.pop(kind.key, None)
        if limit is not None:
            limit.size -= 1
            self._drop_limit(entry.job, limit)

    def put_aside(self, entry: Entry) -> Entry:
        """Take the job out of its line for now, and answer the entry that can go back."""
        _step_out(entry)
        again = Entry(entry.job)
        again.kind, entry.kind = entry.kind, None
        return again

    def put_back(self, entry: Entry) -> None:
        assert entry.kind is not None
        self._join(entry, entry.kind, self.limit(entry.job))

    def _join(self, entry: Entry, kind: Kind, limit: Limit | None) -> None:
        where = _where(entry.job)
        line = kind.lines.get(where)
        if line is None:
            self._serial += 1
            line = kind.lines[where] = OwnersLine(kind, limit, where, self._serial)
        line.push(entry)
        self._offer(line)

    # ---- what keeps lines back

    def refuse(self, kind: Kind, why: str | Refusal) -> None:
        kind.refused, kind.why = True, why
        self._refused[kind.key] = kind

    def freed(self) -> None:
        refused, self._refused = self._refused, {}
        for kind in refused.values():
            kind.refused = False
            parked, kind.parked = kind.parked, {}
            for line in parked.values():
                self._offer(line)

    def limit(self, job: Job) -> Limit | None:
        """The limit of the job's array, if it has one."""
        if job.array is None or job.work.at_once is None:
            return None
        found = self._limits.get(job.array)
        if found is None:
            found = self._limits[job.array] = Limit(job.work.at_once)
        return found

    def begin(self, job: Job) -> None:
        """The job runs, and counts against its array's limit."""
        limit = self.limit(job)
        if limit is not None:
            limit.running.add(job.id)

    def leave(self, job: Job) -> None:
        """The job does not run, or no more: others of its array may."""
        limit = self.limit(job)
        if limit is None:
            return
        limit.running.discard(job.id)
        parked, limit.parked = limit.parked, {}
        for line in parked.values():
            self._offer(line)
        self._drop_limit(job, limit)

    def running_beside(self, job: Job) -> int:
        """How many of its array run, where that has a limit."""
        limit = self._limits.get(job.array) if job.array is not None else None
        return 0 if limit is None else len(limit.running)

    def _drop_limit(self, job: Job, limit: Limit) -> None:
        if job.array is not None and not limit.size and not limit.running:
            del self._limits[job.array]

    # ---- which comes first

    def _place(self, line: OwnersLine, first: Entry) -> tuple[int, int]:
        return line.rank, first.job.number

    def first(self) -> Entry | None:
        """The entry that is to be tried next."""
        while self._heap:
            _, number, _, line = self._heap[0]
            first = line.first()
            if first is not None and first.job.number == number and line.parking() is None:
                return first
            heapq.heappop(self._heap)
            if line.offered == number:
                line.offered = None
                self._offer(line)
        return None

    def _offer(self, line: OwnersLine) -> None:
        """See that the line stands among the others with its first job, or is parked."""
        first = line.first()
        if first is None:
            return
        parking = line.parking()
        if parking is not None:
            parking[line.serial] = line
        elif line.offered != first.job.number:
            line.offered = first.job.number
            heapq.heappush(self._heap, (*self._place(line, first), line.serial, line))
            if len(self._heap) > self._tidy_at:
                self._tidy()

    def _tidy(self) -> None:
        """Offer each line once: what is out of date would pile up where passes end early."""
        lines = {line.serial: line for _, _, _, line in self._heap}
        self._heap, self._tidy_at = [], _FEW + 2 * len(lines)
        for line in lines.values():
            line.offered = None
            self._offer(line)


def _step_out(entry: Entry) -> None:
    line = entry.home
    if isinstance(line, OwnersLine):
        line.step_out(entry)
        if not line:
            del line.kind.lines[line.where]  # where it is offered still, it is passed over


def _where(job: Job) -> Where:
    work = job.work
    return _RANK[work.priority], work.owner, job.array if work.at_once is not None else None


def _key(job: Job) -> object:
    """What jobs have in common that get the same answer."""
    asked = job.request
    near = asked.together_with is not None or asked.apart_from
    owner = job.work.owner if near else None  # these name what its owner holds
    return asked, job.work.pieces, job.work.layout, owner
