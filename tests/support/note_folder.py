"""Notes that functions leave in a folder: they may run in other threads or other processes."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import NamedTuple


class Notes(NamedTuple):
    folder: str

    def add(self, name: str) -> int:
        """Leave a note; tells how many of that name there are now."""
        Path(self.folder, f"{name}.{time.monotonic_ns()}.{uuid.uuid4().hex}").touch()
        return self.count(name)

    def count(self, name: str) -> int:
        return sum(found.split(".")[0] == name for found in os.listdir(self.folder))

    def order(self) -> list[str]:
        """The names in the order in which they were left."""
        found = [one.split(".") for one in os.listdir(self.folder)]
        return [name for name, _, _ in sorted(found, key=lambda parts: int(parts[1]))]

    def wait(self, name: str, times: int = 1, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while self.count(name) < times:
            if time.monotonic() > deadline:
                raise TimeoutError(f"there was no note {name!r} in time")
            time.sleep(0.005)
