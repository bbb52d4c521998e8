"""Reads of files that the event loop does not wait for, some of them with the rights of a user.

A file that a user named may be on a file system of that user's own, which never answers. So such
reads have threads of their own, a few for each user: one user cannot use up those of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from gridhand.posix.privileges import file_rights_of
from gridhand.posix.unix_users import UnixUser

MOST_AT_ONCE = 8  # of one user

T = TypeVar("T")


class FileReads:
    """Runs functions that read files, each in a thread."""

    def __init__(self) -> None:
        self._running: Counter[int] = Counter()

    async def run(self, user: UnixUser | None, read: Callable[[], T]) -> T:
        """Return what `read` returns; with `user`, it has that user's rights.

        Raise OSError if too many reads of the user have not returned.
        """
        if user is None:
            return await asyncio.to_thread(read)
        if self._running[user.uid] >= MOST_AT_ONCE:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._running[user.uid] += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            self._running[user.uid] -= 1
            if answer.done():  # nobody waits any more
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def work() -> None:
            value, failure = None, None
            try:
                with file_rights_of(user):
                    value = read()
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, value, failure)

        threading.Thread(target=work, name="gridhand-read", daemon=True).start()
        return await answer
