"""What `grid doctor` looks at on the machine: its disk, its limits, its hardware, its libraries."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from gridhand.cli import render
from gridhand.home import Home

_LOW_BYTES = 1 * render.GB
_NO_SPACE_BYTES = 50 * 10**6
_WHOLE_SQLITE = (3, 51, 3)
_OLDEST_PYTHON = (3, 11)


class Finding(NamedTuple):
    """`level` is ok, warn or fail; `hint` says what to do, unless all is well."""

    what: str
    level: str
    text: str
    hint: str = ""


def look_at_python(home: Home) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        yield Finding("python", "fail", version, f"Install Gridhand with Python {oldest} or newer.")
    else:
        yield Finding("python", "ok", version)


def look_at_disk(home: Home) -> Iterator[Finding]:
    folder = home.folder
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    text = f"{render.size(free)} free on the disk of {folder}"
    level = "fail" if free < _NO_SPACE_BYTES else "warn" if free < _LOW_BYTES else "ok"
    yield Finding("disk", level, text, "Make room: jobs cannot be stored on a full disk.")
    if room.f_files and not room.f_favail:
        yield Finding("disk", "fail", f"no inodes free on the disk of {folder}", "Delete files.")


def look_at_sqlite(home: Home) -> Iterator[Finding]:
    import sqlite3

    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _WHOLE_SQLITE:
        # Nothing to mend: a store has one writer, and who else opens it is refused.
        version += "; its rare fault with several writers does not concern us: there is one"
    yield Finding("sqlite", "ok", version)


def look_at_limits(home: Home) -> Iterator[Finding]:
    """Whether jobs can be held to their memory by the kernel, or only be watched."""
    kind, folder = _own_cgroup()
    if not kind:
        yield Finding("limits", "warn", "there are no cgroups: memory is measured", WATCHED)
    elif not os.access(folder, os.W_OK):
        text = f"cgroup {kind} may not be used ({folder}): memory is measured"
        yield Finding("limits", "warn", text, WATCHED)
    elif kind == "v2" and "memory" not in _first_line(f"{folder}/cgroup.controllers").split():
        text = f"cgroup v2 without its memory controller ({folder}): memory is measured"
        yield Finding("limits", "warn", text, WATCHED)
    else:
        yield Finding("limits", "ok", f"cgroup {kind}: the kernel holds jobs to their memory")


WATCHED = "`grid service install` runs the controller where systemd lets it set limits."


def _own_cgroup() -> tuple[str, str]:
    """Which cgroups there are, and the folder of the one this process is in."""
    root = "/sys/fs/cgroup"
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return "", ""
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            folder = f"{root}/memory{path}"
            return "v1", folder if os.path.isdir(folder) else f"{root}/memory"
    if os.path.exists(f"{root}/cgroup.controllers"):
        own = [path for _, controllers, path in lines if not controllers]
        folder = f"{root}{own[0]}" if own else root
        return "v2", folder if os.path.isdir(folder) else root
    return "", ""


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline()
    except OSError:
        return ""


def look_at_hardware(home: Home) -> Iterator[Finding]:
    from pathlib import Path

    from gridhand.agent.hardware import discover
    from gridhand.core.resources import UNIT

    folder = Path(home.folder)
    found = discover(folder if folder.exists() else Path.home())
    node = found.node
    parts = node.capacity.parts().items()
    has = {name: part if name in render.BYTES else part / UNIT for name, part in parts}
    yield Finding("hardware", "ok", f"{node.name}: {render.amounts(has)}")
    sick = [problem for problem in found.problems if problem.device]
    if node.gpus and not sick:
        models = ", ".join(gpu.model or gpu.id for gpu in node.gpus)
        yield Finding("gpus", "ok", f"{len(node.gpus)}: {models}")
    elif not node.gpus:
        yield Finding("gpus", "ok", "none")
    for problem in found.problems:
        yield Finding("gpus" if problem.device else "hardware", "warn", problem.what, problem.hint)


def look_at_clock(home: Home) -> Iterator[Finding]:
    """A clock before the release of what runs is wrong; leases do not mind, but people do."""
    newest = max((_changed(path) for path in (__file__, home.store)), default=0.0)
    if time.time() < newest - 60:
        text = f"it is before the last change of the store, {newest - time.time():.0f} s behind"
        yield Finding("clock", "warn", text, "Set the clock, or let NTP set it.")
    else:
        yield Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
