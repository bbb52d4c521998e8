"""StartMarkers: an empty file for each attempt that was started and is not forgotten.

The journal says the same and more. But it may be deleted or cut off while a job runs, and a
starter that knows nothing of an attempt would start it a second time.
"""

from __future__ import annotations

import contextlib
import os

from gridhand.agent.starter.message_fields import Key

_FOLDER = "begun"


class StartMarkers:
    """The files, in a folder beside the journal."""

    def __init__(self, folder_fd: int) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(_FOLDER, 0o700, dir_fd=folder_fd)
        self._fd = os.open(_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)

    def add(self, key: Key) -> bool:
        """Mark an attempt; return False if it was marked before. Raise OSError without space."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            os.close(os.open(_name(key), flags, 0o600, dir_fd=self._fd))
        except FileExistsError:
            return False
        return True

    def has(self, key: Key) -> bool:
        return os.access(_name(key), os.F_OK, dir_fd=self._fd)

    def remove(self, key: Key) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_name(key), dir_fd=self._fd)


def _name(key: Key) -> str:
    job, number = key
    return f"{job.encode('utf-8', 'surrogateescape').hex()}.{number}"
