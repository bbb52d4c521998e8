"""Memory and process limits of jobs: a control group (v1 or v2) for each attempt, where possible.

The kernel refuses to start too many processes, and kills what takes too much memory. Where this
process may not make groups, the agent measures instead. The name of a group is never used twice,
so a group that is left over does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import time
from pathlib import Path
from typing import NamedTuple

from gridhand.agent.hardware import own_limits
from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.core.model.names import JobId
from gridhand.posix import cgroups, procfs

# The starter is in a job's groups while it starts it. With less memory it might be killed there.
_FLOOR_BYTES = 32 << 20
_FEW = 1000  # a process limit below this is set exactly once the starter has left the group
_LONG_AGO_S = 3600
_OURS = re.compile(r"gridhand-[0-9a-f]{16}", re.ASCII)
_OF_ATTEMPT = re.compile(r"[A-Za-z0-9_-]+\.\d+", re.ASCII)
_KILLING_S = 2.0
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)


class Groups(NamedTuple):
    """The control groups of one attempt; None for what is measured, or has no limit."""

    memory: str | None = None
    pids: str | None = None

    @property
    def folders(self) -> list[str]:
        return list(dict.fromkeys(one for one in (self.memory, self.pids) if one))

    def members(self) -> set[int] | None:
        """Return the pids of the attempt; None if it has no group."""
        folder = self.pids or self.memory
        return None if folder is None else cgroups.members(folder)


class Limits:
    """Makes control groups below two parent folders, which are the same one in version 2."""

    def __init__(self, memory: str | None = None, pids: str | None = None) -> None:
        self.memory, self.pids = memory, pids

    @classmethod
    def find(cls, name: str, helpers: list[int], root: Path = Path("/")) -> Limits:
        """Find where groups may be made, below our own.

        In version 2 a group has either processes or limits for groups below it, so the `helpers`
        (our own processes) move into a group of their own. If others are in our group, the
        topmost one is taken, unless that would evade memory limits that we have ourselves.
        """
        own = {
            controller: list(map(Path, folders))
            for controller, folders in cgroups.own_groups(root).items()
        }
        found: dict[str, str | None] = {"memory": None, "pids": None}
        for controller in found:
            if controller in own:
                found[controller] = _make_below(own[controller][0], name)
        ways = own.get(cgroups.UNIFIED, [])[:1]
        if own_limits.read_bounds(root).memory_bytes is None:
            ways = [*ways, *own.get(cgroups.UNIFIED, [])[1:][-1:]]
        for way in ways:
            kinds = _read(way / "cgroup.controllers").split()
            missing = [name for name in found if found[name] is None and name in kinds]
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

    def make(self, job: JobId, attempt: int, memory_bytes: int | None, most: int | None) -> Groups:
        """Make the groups of one attempt; one that cannot be made is None, and is measured."""
        name = f"{job if _PLAIN.fullmatch(job) else _hash(job)}.{attempt}"
        memory = pids = None
        if self.pids is not None and (most is not None or self.pids == self.memory):
            # One more, because the starter is in the group while it starts the command.
            value = "max" if most is None else str(most + 1)
            pids = _group(self.pids, name, {"pids.max": value})
        if self.memory is not None and memory_bytes is not None:
            limit = str(max(memory_bytes, _FLOOR_BYTES))
            memory = _group(self.memory, name, _memory_files(self.memory, limit))
        return Groups(memory, pids)

    def sweep(self, known: set[str]) -> None:
        """Remove all groups but the known ones, and kill what is left in those of attempts."""
        for parent in {self.memory, self.pids} - {None}:
            assert parent is not None
            with contextlib.suppress(OSError), os.scandir(parent) as entries:
                for entry in entries:
                    if entry.is_dir() and entry.path not in known:
                        if _OF_ATTEMPT.fullmatch(entry.name):
                            _kill_all(entry.path)
                        remove(entry.path)

    def leave(self) -> None:
        """Remove the parent folders, if nothing is in them."""
        for parent in {self.memory, self.pids} - {None}:
            assert parent is not None
            remove(parent)


def _kill_all(folder: str) -> None:
    """Kill the processes of a group, which belong to an attempt that nobody knows any more."""
    give_up = time.monotonic() + _KILLING_S
    while (pids := cgroups.members(folder)) and time.monotonic() < give_up:
        for process in filter(None, map(procfs.read_process, pids)):
            procfs.send_signal(process.identity, signal.SIGKILL)
        time.sleep(0.01)


def tighten(groups: Groups, memory_bytes: int | None, most: int | None) -> bool:
    """Set the exact limits, now that the starter has left; return False if memory is over it."""
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
    """Return the most memory that the attempt ever had; None if no group has measured it."""
    for file in ("memory.max_usage_in_bytes", "memory.peak"):
        text = _read(Path(f"{groups.memory}/{file}")) if groups.memory else ""
        if text.isdecimal():
            return int(text)
    return None


def oom_kills(groups: Groups) -> int:
    """Return how many of its processes the kernel has killed for lack of memory."""
    if groups.memory is None:
        return 0
    for file in ("memory.events", "memory.oom_control"):
        for line in _read(Path(f"{groups.memory}/{file}")).splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.isdecimal():
                return int(number)
    return 0


def refused_forks(groups: Groups) -> int:
    """Return how often it could not start a process because of its process limit."""
    text = _read(Path(f"{groups.pids}/pids.events")) if groups.pids else ""
    name, _, number = text.partition(" ")
    return int(number) if name == "max" and number.isdecimal() else 0


def remove(folder: str) -> bool:
    """Remove a group; return whether it is gone (one with processes in it stays)."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def measured_problems(enforced: dict[str, str]) -> list[MachineProblem]:
    """Return a problem if there are limits that the kernel does not enforce."""
    if "measured" not in enforced.values():
        return []
    what = " and ".join(name for name, how in enforced.items() if how == "measured")
    return [
        MachineProblem(
            f"no control groups can be made for {what}, so jobs are measured twice a second",
            "A job may be over its limit for a moment. Run the agent as root, or as a service"
            " with Delegate=yes, to have the kernel enforce limits.",
        )
    ]


def _memory_files(folder: str, limit: str) -> dict[str, str]:
    """Return what to write to which files, in order.

    Swap is limited too: it would only hide that a job has too little memory.
    """
    if os.path.exists(f"{folder}/memory.limit_in_bytes"):
        files = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    else:
        files = {"memory.swap.max": "0", "memory.oom.group": "1", "memory.max": limit}
    return {name: text for name, text in files.items() if os.path.exists(f"{folder}/{name}")}


def _group(parent: str, name: str, files: dict[str, str]) -> str | None:
    folder = f"{parent}/{name}"
    try:
        os.makedirs(folder, 0o755, exist_ok=True)  # another agent may have tidied the parent away
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
    """Remove the groups of agents that were killed long ago and never replaced."""
    with contextlib.suppress(OSError):
        for parent in (one for one in own.iterdir() if _OURS.fullmatch(one.name)):
            for folder in (*(one for one in parent.iterdir() if one.is_dir()), parent):
                if time.time() - folder.stat().st_mtime > _LONG_AGO_S:
                    remove(str(folder))


def _delegate(own: Path, name: str, controllers: list[str], helpers: list[int]) -> str | None:
    """Make a folder below our own group of version 2 whose groups have these limits."""
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


def _hash(job: JobId) -> str:
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
