"""The checks of `grid doctor` on the machine: disk, limits, hardware, libraries and clock."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from gridhand.cli import render
from gridhand.home import Home
from gridhand.posix import cgroups

_LOW_BYTES = 1 * render.GB
_NO_SPACE_BYTES = 50 * 10**6
_FIXED_SQLITE = (3, 51, 3)
_OLDEST_PYTHON = (3, 11)


class Finding(NamedTuple):
    """The result of a check. `level` is ok, warn or fail; `hint` says what to do."""

    what: str
    level: str
    text: str
    hint: str = ""


def check_python(home: Home) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        yield Finding("python", "fail", version, f"Install Gridhand with Python {oldest} or newer.")
    else:
        yield Finding("python", "ok", version)


def check_disk(home: Home) -> Iterator[Finding]:
    folder = home.folder
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    text = f"{render.size(free)} free on the disk of {folder}"
    level = "fail" if free < _NO_SPACE_BYTES else "warn" if free < _LOW_BYTES else "ok"
    yield Finding("disk", level, text, "Free some space: new jobs cannot be stored on a full disk.")
    if room.f_files and not room.f_favail:
        yield Finding("disk", "fail", f"no inodes free on the disk of {folder}", "Delete files.")


def check_sqlite(home: Home) -> Iterator[Finding]:
    import sqlite3

    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _FIXED_SQLITE:
        # Nothing to fix: a store has one writer, and others that open it are refused.
        version += "; its rare bug with several writers does not apply: a store has one"
    yield Finding("sqlite", "ok", version)


def check_limits(home: Home) -> Iterator[Finding]:
    """Check whether the kernel can enforce memory limits, or jobs can only be measured."""
    kind, folder = _own_cgroup()
    if not kind:
        yield Finding(
            "limits", "warn", "no cgroups: memory limits are enforced by measuring", MEASURED
        )
    elif not os.access(folder, os.W_OK):
        text = f"no access to cgroup {kind} ({folder}): memory limits are enforced by measuring"
        yield Finding("limits", "warn", text, MEASURED)
    elif kind == "v2" and "memory" not in _first_line(f"{folder}/cgroup.controllers").split():
        text = f"cgroup v2 has no memory controller ({folder}): limits are enforced by measuring"
        yield Finding("limits", "warn", text, MEASURED)
    else:
        yield Finding("limits", "ok", f"cgroup {kind}: the kernel enforces memory limits")


MEASURED = "`grid service install` runs the controller under systemd, which lets it set limits."


def _own_cgroup() -> tuple[str, str]:
    """Return the version of the cgroups that limit memory here, and the folder of our own."""
    groups = cgroups.own_groups()
    for version, controller in (("v1", "memory"), ("v2", cgroups.UNIFIED)):
        if controller in groups:
            return version, groups[controller][0]
    return "", ""


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline()
    except OSError:
        return ""


def check_hardware(home: Home) -> Iterator[Finding]:
    from pathlib import Path

    from gridhand.agent.hardware.discovery import discover
    from gridhand.core.model.resources import UNIT

    folder = Path(home.folder)
    discovered = discover(folder if folder.exists() else Path.home())
    node = discovered.node
    parts = node.capacity.parts().items()
    capacity = {name: part if name in render.BYTES else part / UNIT for name, part in parts}
    yield Finding("hardware", "ok", f"{node.name}: {render.amounts(capacity)}")
    sick = [problem for problem in discovered.problems if problem.device]
    if node.gpus and not sick:
        models = ", ".join(gpu.model or gpu.id for gpu in node.gpus)
        yield Finding("gpus", "ok", f"{len(node.gpus)}: {models}")
    elif not node.gpus:
        yield Finding("gpus", "ok", "none")
    for problem in discovered.problems:
        yield Finding("gpus" if problem.device else "hardware", "warn", problem.what, problem.hint)


def check_clock(home: Home) -> Iterator[Finding]:
    """Check that the clock is not behind the last change of our files."""
    newest = max((_changed(path) for path in (__file__, home.store)), default=0.0)
    if time.time() < newest - 60:
        text = f"it is {newest - time.time():.0f} s behind the last change of the store"
        yield Finding("clock", "warn", text, "Set the clock, or enable NTP.")
    else:
        yield Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
