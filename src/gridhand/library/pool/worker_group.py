"""WorkerGroup: calls that share workers with nobody else, and how these workers are run."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor
from dataclasses import dataclass


class BrokenGridExecutor(BrokenExecutor):
    """The initializer failed, so nothing can be called. `__cause__` is what it raised."""


@dataclass(eq=False)
class WorkerGroup:
    """The workers of one executor. Groups are different even if all their fields are equal."""

    setup: bytes | None = None  # what each worker calls first
    most_workers: int | None = None
    most_calls: int | None = None  # of each worker; then another one takes its place
    keeps_idle: bool = False  # its workers stay unless other calls or allocations need the room
    broken: BrokenGridExecutor | None = None  # why no call of it can run


ANY = WorkerGroup()  # shared by all calls that belong to no executor
