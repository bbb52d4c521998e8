"""Ownership of a store: one process at a time has it, and how to get it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from gridhand.core.errors import InvalidInput, StoreInvalid, StoreOwned, StoreUnavailable
from gridhand.posix.locks import try_record_lock
from gridhand.posix.private_files import open_private_file

_PAUSE_S = 0.1


class StoreIdentity(NamedTuple):
    """The id of a ledger and its epoch, which grows with every owner: a backup has an older one."""

    cluster_id: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.cluster_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> StoreIdentity:
        cluster_id, _, epoch = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not cluster_id.isalnum() or not epoch.isdecimal() or len(epoch) > 18:
            raise InvalidInput("expect", text, "what `identity` of a grid says")
        return cls(cluster_id, int(epoch))


class StoreState(NamedTuple):
    """The state of a store that a new owner finds, before it writes anything."""

    cluster_id: str
    epoch: int
    next_job: int


# Returns the epoch that the new owner begins, or raises an error: then nothing is written.
NextEpoch = Callable[[StoreState], int]


def following_epoch(found: StoreState) -> int:
    return found.epoch + 1


@dataclass(frozen=True, slots=True)
class Taking:
    """How to take ownership: wait for the owner to end, or take the store from it.

    `take_over` is for an owner that hangs: it loses the store, and the epoch keeps it from writing
    if it ever continues.
    """

    wait_s: float = 0.0
    take_over: bool = False
    must_exist: bool = False
    expect: StoreIdentity | None = None
    why_exist: str = "no new store is created here"

    def tries(self) -> Iterator[bool]:
        """Yield for each try whether it is the last, until the time is over."""
        deadline = time.monotonic() + self.wait_s
        while time.monotonic() < deadline:
            yield False
            time.sleep(_PAUSE_S)
        yield True

    def check(self, url: str, found: StoreIdentity) -> None:
        """Raise `StoreInvalid` if the store is not the expected one, or older than expected."""
        wanted = self.expect
        if wanted is None:
            return
        if found.cluster_id != wanted.cluster_id:
            raise StoreInvalid(
                f"{url} is another ledger: {found.cluster_id}, not {wanted.cluster_id}",
                hint="Check the address of the store.",
            )
        if found.epoch < wanted.epoch:
            raise StoreInvalid(
                f"{url} is older than expected: epoch {found.epoch}, and {wanted.epoch} was seen",
                hint="It looks like a restored backup. Stop what ran since, then open it without"
                " expecting more.",
            )

    def missing(self, url: str) -> StoreInvalid:
        return StoreInvalid(
            f"there is no store at {url}",
            hint=f"Check the address: {self.why_exist}.",
        )


class OwnerLock:
    """Ownership of a file by a lock that the kernel drops when the process ends.

    A POSIX lock does not exclude the process that holds it, so this process lists its own locks.
    """

    _mine: ClassVar[dict[tuple[int, int] | None, int]] = {}  # with the pid, in case of a fork

    def __init__(self, path: str, url: str, taking: Taking) -> None:
        self._path = Path(f"{os.path.realpath(path)}.owner")
        self._pending: Path | None = None
        for last in taking.tries():
            owner = self._try(self._path)
            if owner is None:
                return
            if last and not taking.take_over:
                raise StoreOwned(url, owner or None)
        # Taking over: the owner's lock file is replaced only when it has lost the store.
        self._pending = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        if self._try(self._pending) is not None:
            raise StoreOwned(url, None)

    def confirm(self) -> None:
        """Replace the lock file of the former owner, whose lock is then on a deleted file."""
        if self._pending is not None:
            os.replace(self._pending, self._path)
            self._pending = None

    def _try(self, path: Path) -> int | None:
        """Take the lock and return None, or return the pid of its owner (0 if unknown)."""
        # Opening and closing the file again would drop the lock that this process holds.
        if self._mine.get(_identity(path)) == os.getpid():
            return os.getpid()
        self._fd = open_private(path)
        if not try_record_lock(self._fd):
            pid = _read_pid(self._fd)
            os.close(self._fd)
            return pid
        key = _identity(self._fd)
        if key is None or _identity(path) != key:
            os.close(self._fd)  # it was taken over between opening and locking
            return 0
        self._key = key
        self._mine[key] = os.getpid()
        with contextlib.suppress(OSError):  # the lock holds even if the disk is full
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return None

    def release(self) -> None:
        if self._pending is not None:
            self._pending.unlink(missing_ok=True)
        self._mine.pop(self._key, None)
        os.close(self._fd)


def open_private(path: Path) -> int:
    """Open a file for its owner only; SQLite gives the WAL and shm files the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open_private_file(str(path))
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error


def fill_reserve(path: Path, size: int) -> bool:
    """Reserve disk space; return whether there was enough."""
    if path.exists():
        return True
    fd = open_private(path)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:  # the disk is full: no reserve is better than half of one
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(fd)
    return True


def _identity(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(f"{file}: {error.strerror}") from error
    return found.st_dev, found.st_ino


def _read_pid(fd: int) -> int:
    text = os.pread(fd, 20, 0).strip()
    return int(text) if text.isdigit() else 0
