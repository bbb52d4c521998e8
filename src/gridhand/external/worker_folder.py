"""WorkerFolder: all that a worker keeps on its machine.

The agent, the starter and the folders of the jobs are here, and what the worker must remember: the
cluster that it belongs to, and how often it was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gridhand.core.errors import GridError
from gridhand.engines.base import Key
from gridhand.home import Home
from gridhand.posix.boot_clock import wall_ms
from gridhand.posix.locks import sign_lock, try_lock
from gridhand.posix.private_files import open_private_file, replace_file

KEPT_S = 7 * 86_400  # for which files that jobs have left are kept


class WorkerMemory(NamedTuple):
    """The memory of a worker: its latest incarnation, and the controller it has last joined."""

    incarnation: int = 0
    cluster: str = ""
    epoch: int = 0


class JobFiles(NamedTuple):
    """The folder of an attempt, and the files of its streams."""

    folder: str

    @property
    def work(self) -> str:
        return os.path.join(self.folder, "work")

    def stream(self, name: str) -> str:
        return os.path.join(self.folder, name)


class WorkerFolder:
    """The folder of one worker. It is made if there is none, and closed to other users."""

    def __init__(self, path: str) -> None:
        self._home = Home(os.path.abspath(path))
        self._home.make()
        self.path = self._home.folder
        self.agent, self.starter = self._home.agent, self._home.starter

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; raise GridError if another worker has it."""
        fd = open_private_file(os.path.join(self.path, "worker.lock"))
        try:
            if not try_lock(fd):
                raise GridError(
                    f"another worker uses {self.path}",
                    hint="End it, or give this one a folder of its own with --folder.",
                )
            sign_lock(fd)
            yield
        finally:
            os.close(fd)

    def remember(self, memory: WorkerMemory) -> None:
        replace_file(self._memory, json.dumps(memory._asdict()).encode())

    def recall(self) -> WorkerMemory:
        """Return what is remembered; raise GridError if it cannot be read."""
        try:
            with open(self._memory) as file:
                return WorkerMemory(**json.load(file))
        except FileNotFoundError:
            return WorkerMemory()
        except (OSError, ValueError, TypeError) as error:
            hint = "Delete it: the worker then counts as a new one."
            raise GridError(f"{self._memory} cannot be read: {error}", hint=hint) from error

    def begin(self) -> WorkerMemory:
        """Return the memory with a higher incarnation, which is remembered.

        It is the time at which the worker starts, so that of two machines the later one serves
        the node.
        """
        known = self.recall()
        memory = known._replace(incarnation=max(known.incarnation + 1, wall_ms()))
        self.remember(memory)
        return memory

    @property
    def _memory(self) -> str:
        return os.path.join(self.path, "worker.json")

    def files(self, key: Key) -> JobFiles:
        job, attempt = key
        return JobFiles(f"{self._home.job(job)}.{attempt}")

    def make(self, key: Key) -> JobFiles:
        """Make the folder of an attempt."""
        files = self.files(key)
        os.makedirs(files.work, mode=0o700, exist_ok=True)
        return files

    def clear(self, key: Key) -> None:
        """Delete the streams of an attempt, and its folder unless the job left files there."""
        files = self.files(key)
        for name in ("stdin", "stdout", "stderr", "fetched"):
            with contextlib.suppress(OSError):
                os.unlink(files.stream(name))
        for folder in (files.work, files.folder):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def sweep(self, known: Collection[Key]) -> None:
        """Delete the folders of attempts that ended long ago."""
        kept = {os.path.basename(self.files(key).folder) for key in known}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._home.jobs):
                if entry.name not in kept and time.time() - entry.stat().st_mtime > KEPT_S:
                    shutil.rmtree(entry.path, ignore_errors=True)
