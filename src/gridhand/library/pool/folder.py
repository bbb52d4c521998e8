"""The folders of a pool: its socket and secret, and the files that hold large values.

Only their owner can open them. What a killed process has left behind is removed by its workers,
or by the next pool that is made on this machine.
"""

from __future__ import annotations

import contextlib
import os

from gridhand.posix.private_files import create_private_file
from gridhand.posix.temporary_folders import (
    SHARED_MEMORY,
    make_temporary_folder,
    remove_temporary_folder,
    temporary_parent,
)


class PoolFolder:
    """`folders` are for large values, the quickest first; `own` has everything else."""

    def __init__(self) -> None:
        self.own, lock = make_temporary_folder(temporary_parent())
        self.folders = [self.own]
        self._locks = [lock]
        with contextlib.suppress(OSError):
            shared, lock = make_temporary_folder(SHARED_MEMORY)
            self.folders.insert(0, shared)
            self._locks.append(lock)
        self.secret = os.urandom(32)
        create_private_file(os.path.join(self.own, "secret"), self.secret)

    @property
    def socket(self) -> str:
        return os.path.join(self.own, "socket")

    def remove(self) -> None:
        for folder in self.folders:
            remove_temporary_folder(folder)
        self.let_go()

    def remove_those_of(self, prefix: str, kept: set[str]) -> None:
        """Remove the files of a worker that is gone, except those that are still referred to."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    path = os.path.join(folder, name)
                    if name.partition(".")[0] == prefix and path not in kept:
                        os.unlink(path)

    def let_go(self) -> None:
        while self._locks:
            os.close(self._locks.pop())
