"""Open jobs by number, so that a page of a hundred costs the same however many jobs there are.

Jobs are numbered as they are submitted, so each list stays sorted by appending. A job that ends is
only marked; the list is compacted when half of it has ended.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from gridhand.core.jobs.job import Job, JobState

_FEW = 64

Key = tuple[str | None, str | None, bool]  # owner, array, whether it is placed


class NumberList:
    """Numbers in ascending order, read from the highest down."""

    __slots__ = ("_alive", "_numbers")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._alive: set[int] = set()

    def __len__(self) -> int:
        return len(self._alive)

    def add(self, number: int) -> None:
        if number in self._alive:
            return
        self._alive.add(number)
        numbers = self._numbers
        if not numbers or number > numbers[-1]:
            numbers.append(number)
        elif numbers[bisect_left(numbers, number)] != number:  # it may have been marked only
            insort(numbers, number)

    def discard(self, number: int) -> None:
        self._alive.discard(number)
        if len(self._numbers) > _FEW + 2 * len(self._alive):
            self._numbers = sorted(self._alive)

    def newest(self, before: int | None = None) -> Iterator[int]:
        """Yield the numbers below `before`, the highest first."""
        numbers = self._numbers
        end = len(numbers) if before is None else bisect_left(numbers, before)
        for index in range(end - 1, -1, -1):
            if numbers[index] in self._alive:
                yield numbers[index]


class JobPages:
    """The open jobs, in a list for each owner, each array and all; those that are placed apart."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._lists: dict[Key, NumberList] = {}

    def put(self, job: Job) -> None:
        """Add a job, replace it, or remove it if it has ended."""
        before = self._jobs.pop(job.number, None)
        old = set() if before is None else _keys(before)
        new = _keys(job) if job.open else set()
        for key in old - new:
            self._leave(key, job.number)
        for key in new - old:
            self._lists.setdefault(key, NumberList()).add(job.number)
        if job.open:
            self._jobs[job.number] = job

    def _leave(self, key: Key, number: int) -> None:
        listed = self._lists[key]
        listed.discard(number)
        if not listed:
            del self._lists[key]

    def newest(
        self, *, owner: str | None, array: str | None, placed: bool, before: int | None
    ) -> Iterator[Job]:
        """Yield open jobs, newest first; with `placed` only those that have an allocation."""
        # Few jobs are placed and few owners share an array: the rest is looked at one by one.
        key = (None, array, False) if array is not None else (owner, None, placed)
        listed = self._lists.get(key)
        for number in listed.newest(before) if listed is not None else ():
            job = self._jobs[number]
            if owner in (None, job.work.owner) and (not placed or job.attempt is not None):
                yield job

    def count(self, owner: str | None = None) -> int:
        listed = self._lists.get((owner, None, False))
        return 0 if listed is None else len(listed)


def _keys(job: Job) -> set[Key]:
    owner, array = job.work.owner, job.array
    keys: set[Key] = {(None, None, False), (owner, None, False)}
    if array is not None:
        keys.add((None, array, False))
    if job.state is JobState.RUNNING:
        keys |= {(None, None, True), (owner, None, True)}
    return keys
