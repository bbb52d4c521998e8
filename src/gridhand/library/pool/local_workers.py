"""Local workers: processes for calls that ask for no resources.

Nothing is held for such a call, so its worker needs no job: this process starts it itself, and it
ends with this process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gridhand import worker

if TYPE_CHECKING:
    from gridhand.library.pool.shape import Shape

_PREFIX = "child-"
_PROGRAM = os.path.join(worker.__path__[0], "__main__.py")
_LEAST = 4  # such calls often do nothing but wait
MOST_APART = 1000  # workers that are for certain calls alone


def most_children() -> int:
    return max(_LEAST, len(os.sched_getaffinity(0)))


def program(*words: str) -> list[str]:
    """Return the command of a worker, with the interpreter of this process."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-P", _PROGRAM, *words]


class Children:
    """The local workers of a pool. For one thread at a time."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._count = 0
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, shape: Shape) -> str:
        self._count += 1
        id = f"{_PREFIX}{self._count}"
        self._started[id] = subprocess.Popen(
            program(self._folder, str(shape.number), id),
            env=environment(os.environ, shape.request.node),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return id

    def facts(self, id: str) -> dict[str, Any] | None:
        """Return the state of a local worker in the form of a job's; None for other ids."""
        if not id.startswith(_PREFIX):
            return None
        code = self._started[id].poll() if id in self._started else 0
        if code is None:
            return {"id": id, "state": "running", "attempts": []}
        self._started.pop(id, None)
        attempt = {
            "number": 1,
            "reason": "exit" if code >= 0 else "signal",
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "message": f"it exited with code {code}" if code >= 0 else f"signal {-code} ended it",
            "ended_at": "",
        }
        return {**attempt, "id": id, "state": "failed", "attempts": [attempt], "request": {}}

    def reap(self) -> None:
        for id in list(self._started):
            self.facts(id)

    def end(self, id: str) -> bool:
        """Kill a local worker; return whether it was one."""
        if not id.startswith(_PREFIX):
            return False
        child = self._started.pop(id, None)
        if child is not None:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, 9)
            child.wait()
        return True

    def close(self, patience_s: float) -> None:
        for id, child in list(self._started.items()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience_s)
            self.end(id)


def environment(given: Mapping[str, str], node: str | None) -> dict[str, str]:
    """Return the variables of this process, and the node that the call was sent to."""
    return dict(given) if node is None else {**given, "GRIDHAND_NODE": node}
