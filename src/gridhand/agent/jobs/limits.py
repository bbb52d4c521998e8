"""Limits on all that a job starts: a control group for each attempt, of either kind, or none.

The kernel refuses what would be too many processes, and ends what takes too much memory. Where it
is not ours to make groups, the agent measures instead. A group's name is never given twice, so one
that is left over can harm nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from gridhand.agent import bounds, cgroups
from gridhand.agent.problems import Problem

# The starter stands in a job's groups while it starts it. With less it might be killed there.
_FLOOR_BYTES = 32 << 20
_FEW = 1000
_LONG_AGO_S = 3600
_OURS = re.compile(r"gridhand-[0-9a-f]{16}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)


class Groups(NamedTuple):
    """The groups of one attempt; None for what is measured, or has no limit."""

    memory: str | None = None
    pids: str | None = None

    @property
    def folders(self) -> list[str]:
        return list(dict.fromkeys(one for one in (self.memory, self.pids) if one))

    def members(self) -> set[int] | None:
        """All processes of it; None where that is not known."""
        folder = self.pids or self.memory
        return None if folder is None else cgroups.members(folder)


class Limits:
    """Makes groups in `memory` and `pids`: folders for groups, and the same for version 2."""

    def __init__(self, memory: str | None = None, pids: str | None = None) -> None:
        self.memory, self.pids = memory, pids

    @classmethod
    def find(cls, name: str, helpers: list[int], root: Path = Path("/")) -> Limits:
        """Where groups may be made, below our own. `helpers` are processes that must step aside.

        In version 2 a group has either processes or limits for groups below it, so they move
        into a group of their own. If others are in our group, the topmost one will do, unless
        that would be a way around limits that we have ourselves.
        """
        own = bounds.own_groups(root)
        found: dict[str, str | None] = {"memory": None, "pids": None}
        for controller in found:
            if controller in own:
                found[controller] = _make_below(own[controller][0], name)
        ways = own.get("", [])[:1]
        if bounds.read_bounds(root).memory_bytes is None:
            ways = [*ways, *own.get("", [])[1:][-1:]]
        for way in ways:
            kinds = _read(way / "cgroup.controllers").split()
            missing = [one for one in found if found[one] is None and one in kinds]
            moving = helpers if way == ways[0] else []
            if missing and (made := _delegate(way, name, missing, moving)):
                found |= dict.fromkeys(missing, made)
        return cls(found["memory"], found["pids"])

    @property
    def enforced(self) -> dict[str, str]:
        return {
            "memory": "cgroup" if self.memory else "measured",
            "pids": "cgroup" if self.pids else "measured",
        }

    def make(self, job: str, attempt: int, memory_bytes: int | None, most: int | None) -> Groups:
        """Groups for one attempt; what cannot be made is None, and is to be measured."""
        name = f"{job if _PLAIN.fullmatch(job) else _hash(job)}.{attempt}"
        memory = pids = None
        if self.pids is not None and (most is not None or self.pids == self.memory):
            # One more while the starter stands there, too.
            value = "max" if most is None else str(most + 1)
            pids = _group(self.pids, name, {"pids.max": value})
        if self.memory is not None and memory_bytes is not None:
            limit = str(max(memory_bytes, _FLOOR_BYTES))
            memory = _group(self.memory, name, _memory_files(self.memory, limit))
        return Groups(memory, pids)

    def sweep(self, known: set[str]) -> None:
        """Remove groups that no attempt has any more."""
        for parent in {self.memory, self.pids} - {None}:
            assert parent is not None
            with contextlib.suppress(OSError), os.scandir(parent) as entries:
                for entry in entries:
                    if entry.is_dir() and entry.path not in known:
                        remove(entry.path)

    def leave(self) -> None:
        """Remove our own folders, if nothing is in them."""
        for parent in {self.memory, self.pids} - {None}:
            assert parent is not None
            remove(parent)


def tighten(groups: Groups, memory_bytes: int | None, most: int | None) -> bool:
    """The exact limits, now that the starter has left; False if it has more already."""
    if groups.pids is not None and most is not None and most < _FEW:
        with contextlib.suppress(OSError):
            _write(f"{groups.pids}/pids.max", str(most))
    if groups.memory is not None and memory_bytes is not None and memory_bytes < _FLOOR_BYTES:
        try:
            for file, value in _memory_files(groups.memory, str(memory_bytes)).items():
                _write(f"{groups.memory}/{file}", value)
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return True


def peak_bytes(groups: Groups) -> int | None:
    """The most memory that it ever had."""
    for file in ("memory.max_usage_in_bytes", "memory.peak"):
        text = _read(Path(f"{groups.memory}/{file}")) if groups.memory else ""
        if text.isdecimal():
            return int(text)
    return None


def killed(groups: Groups) -> int:
    """How many of its processes the kernel has killed because its memory ran out."""
    if groups.memory is None:
        return 0
    for file in ("memory.events", "memory.oom_control"):
        for line in _read(Path(f"{groups.memory}/{file}")).splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.isdecimal():
                return int(number)
    return 0


def refused(groups: Groups) -> int:
    """How often it could not have another process because it had as many as it may."""
    text = _read(Path(f"{groups.pids}/pids.events")) if groups.pids else ""
    name, _, number = text.partition(" ")
    return int(number) if name == "max" and number.isdecimal() else 0


def remove(folder: str) -> bool:
    """Whether it is gone; one with processes in it stays."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def measured(enforced: dict[str, str]) -> list[Problem]:
    """What to tell of limits that the kernel does not hold for us."""
    if "measured" not in enforced.values():
        return []
    what = " and ".join(one for one in enforced if enforced[one] == "measured")
    return [
        Problem(
            f"no control groups can be made for {what}, so jobs are measured twice a second",
            "A job may be over its limit for a moment. Run the agent as root, or as a service"
            " with Delegate=yes, to have the kernel hold it.",
        )
    ]


def _memory_files(folder: str, limit: str) -> dict[str, str]:
    """What is written, in this order: swap would only hide that a job has too little."""
    if os.path.exists(f"{folder}/memory.limit_in_bytes"):
        files = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    else:
        files = {"memory.swap.max": "0", "memory.oom.group": "1", "memory.max": limit}
    return {name: text for name, text in files.items() if os.path.exists(f"{folder}/{name}")}


def _group(parent: str, name: str, files: dict[str, str]) -> str | None:
    folder = f"{parent}/{name}"
    try:
        os.makedirs(folder, 0o755, exist_ok=True)  # an agent that tidies up may have taken ours
        for file, value in files.items():
            _write(f"{folder}/{file}", value)
    except OSError:
        remove(folder)
        return None
    return folder


def _make_below(own: Path, name: str) -> str | None:
    folder = own / name
    _tidy(own)
    try:
        folder.mkdir(0o755, exist_ok=True)
    except OSError:
        return None
    return str(folder) if os.access(folder / "cgroup.procs", os.W_OK) else None


def _tidy(own: Path) -> None:
    """Remove what agents have left that were killed long ago, and nobody replaced."""
    with contextlib.suppress(OSError):
        for parent in (one for one in own.iterdir() if _OURS.fullmatch(one.name)):
            for folder in (*(one for one in parent.iterdir() if one.is_dir()), parent):
                if time.time() - folder.stat().st_mtime > _LONG_AGO_S:
                    remove(str(folder))


def _delegate(own: Path, name: str, controllers: list[str], helpers: list[int]) -> str | None:
    """A folder below our own group of version 2 whose groups have these limits."""
    home = own.parent if own.name == "gridhand-agents" else own
    aside, folder = home / "gridhand-agents", home / name
    words = " ".join(f"+{one}" for one in controllers)
    try:
        for pid in helpers if home == own else []:
            aside.mkdir(0o755, exist_ok=True)
            _write(str(aside / "cgroup.procs"), str(pid))
        _write(str(home / "cgroup.subtree_control"), words)
        folder.mkdir(0o755, exist_ok=True)
        _write(str(folder / "cgroup.subtree_control"), words)
    except OSError:
        return None
    return str(folder)


def _hash(job: str) -> str:
    return hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
