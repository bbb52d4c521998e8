"""One owner of a store at a time: how to become it, and how long to try."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from gridhand.core.errors import InvalidInput, StoreInvalid, StoreOwned, StoreUnavailable

_PAUSE_S = 0.1


class Identity(NamedTuple):
    """Which ledger it is, and how often it has changed hands: a restored backup is behind."""

    cluster_id: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.cluster_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        cluster_id, _, epoch = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not cluster_id.isalnum() or not epoch.isdecimal() or len(epoch) > 18:
            raise InvalidInput("expect", text, "what `identity` of a grid says")
        return cls(cluster_id, int(epoch))


@dataclass(frozen=True, slots=True)
class Taking:
    """How ownership is taken: waiting for the owner to end, or over its head.

    `take_over` is for an owner that hangs: it loses the store, and the epoch sees to it that it can
    write nothing if it ever goes on.
    """

    wait_s: float = 0.0
    take_over: bool = False
    must_exist: bool = False
    expect: Identity | None = None

    def tries(self) -> Iterator[bool]:
        """Yields whether this is the last try, until the time is over."""
        deadline = time.monotonic() + self.wait_s
        while time.monotonic() < deadline:
            yield False
            time.sleep(_PAUSE_S)
        yield True

    def check(self, url: str, found: Identity) -> None:
        """Refuse a store that is another than expected, or older than it has been."""
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
            hint="Check the address; a new, empty store was not wanted here.",
        )


class OwnerLock:
    """Ownership of a file, by a lock that the kernel drops when the process ends.

    A POSIX lock does not keep out the process that has it, so this process's own are listed, too.
    """

    _mine: ClassVar[dict[tuple[int, int] | None, int]] = {}  # and the process, in case of a fork

    def __init__(self, path: str, url: str, taking: Taking) -> None:
        self._path = Path(f"{os.path.realpath(path)}.owner")
        self._pending: Path | None = None
        for last in taking.tries():
            owner = self._try(self._path)
            if owner is None:
                return
            if last and not taking.take_over:
                raise StoreOwned(url, owner or None)
        # Over the owner's head: its own lock file is put aside only when it has lost the store.
        self._pending = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        if self._try(self._pending) is not None:
            raise StoreOwned(url, None)

    def confirm(self) -> None:
        """The store is ours: whoever had it keeps a lock on a file that is no longer there."""
        if self._pending is not None:
            os.replace(self._pending, self._path)
            self._pending = None

    def _try(self, path: Path) -> int | None:
        """Take the lock, or say whose it is (0: not known)."""
        # Opening and closing it once more would drop the lock this process has.
        if self._mine.get(_identity(path)) == os.getpid():
            return os.getpid()
        self._fd = open_private(path)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = _read_pid(self._fd)
            os.close(self._fd)
            return pid
        key = _identity(self._fd)
        if key is None or _identity(path) != key:
            os.close(self._fd)  # it was taken over between opening and locking
            return 0
        self._key = key
        self._mine[key] = os.getpid()
        with contextlib.suppress(OSError):  # on a full disk it is owned all the same
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return None

    def release(self) -> None:
        if self._pending is not None:
            self._pending.unlink(missing_ok=True)
        self._mine.pop(self._key, None)
        os.close(self._fd)


def open_private(path: Path) -> int:
    """Open a file that only its owner may read; SQLite gives its companions the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error


def fill_reserve(path: Path, size: int) -> bool:
    """Keep space back on the disk; say whether there was enough of it."""
    if path.exists():
        return True
    fd = open_private(path)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:  # full already: rather no reserve than half of one
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
