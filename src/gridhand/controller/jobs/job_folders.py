"""JobFolders: the folders that the controller makes for jobs of clients on other machines.

Such a client uploads files into a folder, submits a job that runs there, and downloads what the job
has made. On a machine-wide controller the folder is in the home of the job's user, and every file
is opened with that user's rights.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import shutil
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from gridhand.controller.jobs.job_users import JobUsers
from gridhand.core.errors import InvalidInput, StoreFull, UnknownFile
from gridhand.core.jobs.job import Job
from gridhand.engines.file_reads import FileReads
from gridhand.home import Home
from gridhand.posix.beneath import list_beneath, open_beneath, open_folder, split_name
from gridhand.posix.unix_users import UnixUser, UnknownUser

MOST_FILE_BYTES = 100 * 10**9
MOST_LISTED = 10_000
_IN_HOME = ".gridhand-jobs"
_WRITE = os.O_WRONLY | os.O_CREAT

Value = TypeVar("Value")


class FilePart(NamedTuple):
    """A part of a file, and the size of the whole."""

    data: bytes
    size: int
    executable: bool = False


class JobFolders:
    """Makes folders for jobs, and reads and writes the files in them."""

    def __init__(self, home: Home, users: JobUsers) -> None:
        self._home = home
        self._users = users
        self._reads = FileReads()

    async def make(self, owner: str, id: str) -> str:
        """Return the folder with this id, which is made if there is none."""
        user = self._user(owner)
        path = os.path.join(self._base(owner, user), id)
        await self._run(user, lambda: os.makedirs(path, mode=0o700, exist_ok=True))
        return path

    async def write(
        self, owner: str, id: str, name: str, offset: int, data: bytes, *, executable: bool
    ) -> None:
        """Write a part of a file. The first part empties what is there."""
        _check_name(name)
        if offset + len(data) > MOST_FILE_BYTES:
            raise InvalidInput("offset", offset, f"files of at most {MOST_FILE_BYTES} bytes")
        folder = await self.make(owner, id)
        flags, mode = _WRITE | (os.O_TRUNC if offset == 0 else 0), 0o700 if executable else 0o600

        def write() -> None:
            with _Opened(folder) as at:
                file = open_beneath(at, name, flags, mode, make=True)
                with os.fdopen(file, "wb", closefd=True) as opened:
                    opened.seek(offset)
                    opened.write(data)

        await self._run(self._user(owner), write)

    async def read(self, job: Job, name: str, offset: int, limit: int) -> FilePart:
        """Return a part of a file in the folder of a job."""
        _check_name(name)
        folder, user = self._of(job)

        def read() -> FilePart:
            with (
                _Opened(folder) as at,
                os.fdopen(open_beneath(at, name, os.O_RDONLY), "rb") as file,
            ):
                file.seek(offset)
                facts = os.fstat(file.fileno())
                return FilePart(file.read(limit), facts.st_size, bool(facts.st_mode & 0o100))

        return await self._run(user, read)

    async def list(self, job: Job) -> list[tuple[str, int]]:
        """Return the names and sizes of the files in the folder of a job."""
        folder, user = self._of(job)

        def look() -> list[tuple[str, int]]:
            with _Opened(folder) as at:
                return list(list_beneath(at, MOST_LISTED))

        return await self._run(user, look)

    def remove_old(self, before: float, in_use: Iterable[str]) -> None:
        """Delete our own folders that no open job uses and that were changed before a time."""
        used = set(in_use)
        for owner in _folders(self._home.uploads):
            for folder in _folders(owner):
                if folder not in used and _changed(folder) < min(before, time.time()):
                    shutil.rmtree(folder, ignore_errors=True)

    def has(self, job: Job) -> bool:
        """Return whether a job runs in one of these folders."""
        owner = job.work.owner
        return os.path.dirname(job.work.folder) == self._base(owner, self._user(owner))

    def _of(self, job: Job) -> tuple[str, UnixUser | None]:
        """Return the folder of a job, if it is one of these, and whose rights open it."""
        if not self.has(job):
            raise InvalidInput("job", job.id, "one that runs in a folder made by the controller")
        return job.work.folder, self._user(job.work.owner)

    def _user(self, owner: str) -> UnixUser | None:
        try:
            return self._users.find(owner)
        except UnknownUser as error:
            raise InvalidInput("owner", owner, "a user of this machine") from error

    def _base(self, owner: str, user: UnixUser | None) -> str:
        """Return the folder of the folders of an owner: whoever guesses an id finds none of it."""
        if user is not None:
            return os.path.join(pwd.getpwuid(user.uid).pw_dir, _IN_HOME)
        return os.path.join(self._home.uploads, hashlib.sha256(owner.encode()).hexdigest()[:32])

    async def _run(self, user: UnixUser | None, work: Callable[[], Value]) -> Value:
        try:
            return await self._reads.run(user, work)
        except FileNotFoundError as error:
            raise UnknownFile(str(error.filename or "the folder")) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull("no space is left for files of jobs") from error
            raise InvalidInput(
                "file", error.filename, f"a plain file ({error.strerror})"
            ) from error


class _Opened:
    """A folder that is open within a `with` block."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._fd = open_folder(self._path)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _check_name(name: str) -> None:
    try:
        split_name(name)
    except ValueError as error:
        raise InvalidInput("name", name, "a path within the folder, such as data/in.csv") from error


def _folders(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _changed(folder: str) -> float:
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return time.time()
