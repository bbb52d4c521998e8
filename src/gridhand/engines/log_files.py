"""LogFiles: reads of the logs that jobs have written on this machine."""

from __future__ import annotations

import os

from gridhand.agent.jobs.capped_log import read_range
from gridhand.engines.file_reads import FileReads
from gridhand.posix.plain_open import open_plain, stat_plain
from gridhand.posix.unix_users import UnixUser


class LogFiles:
    """Reads logs in threads; one that cannot be read is empty."""

    def __init__(self) -> None:
        self._reads = FileReads()

    async def read(
        self, path: str, offset: int, limit: int, user: UnixUser | None = None
    ) -> list[tuple[int, bytes | int]]:
        """Return the log from an offset on: bytes, or how many of them were cut out."""
        try:
            opener = os.open if user is None else open_plain
            pieces = await self._reads.run(user, lambda: read_range(path, offset, limit, opener))
        except (OSError, ValueError):  # a folder, or what we may not read
            return []
        return [(at, piece if isinstance(piece, bytes) else piece.bytes) for at, piece in pieces]

    async def size(self, path: str, user: UnixUser | None = None) -> int:
        """Return the size of a log, including what was cut out."""
        try:
            stat = os.stat if user is None else stat_plain
            return (await self._reads.run(user, lambda: stat(path))).st_size
        except (OSError, ValueError):
            return 0
