"""Bounds: what the control groups around this process leave it of the machine.

A container or a service is often smaller than its machine, and a promise of the rest would end
with a killed job. A group is bound by all groups above it, so each limit is the least along the
way up. Both kinds of control groups are read, since a machine may have some controllers in the
one and some in the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gridhand.agent.problems import Problem
from gridhand.core.resources import UNIT

_UNLIMITED = 2**60  # the kernel writes "no limit" of the older kind as a number beyond this
_ESCAPED = re.compile(r"\\([0-7]{3})")
_UNIFIED = ""  # the controller's place in /proc/self/cgroup for groups of the newer kind


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on this process, where None stands for none.

    `cpu` is in ten-thousandths of a core. `memory_folder` is the group whose memory is bound.
    """

    cpu: int | None = None
    cpus: frozenset[int] | None = None
    memory_bytes: int | None = None
    memory_folder: Path | None = None
    problems: tuple[Problem, ...] = ()


def read_bounds(root: Path = Path("/")) -> Bounds:
    """The limits that hold for this process, with what could not be read among `problems`."""
    reader = _Reader()
    groups = control_groups(root, reader)
    quotas = [
        *(reader.quota(folder) for folder in groups.get(_UNIFIED, ())),
        *(reader.older_quota(folder) for folder in groups.get("cpu", ())),
    ]
    limits = [
        *((reader.memory(folder), folder) for folder in groups.get(_UNIFIED, ())),
        *reader.older_memory(groups.get("memory", [])),
    ]
    bound = min(((limit, folder) for limit, folder in limits if limit is not None), default=None)
    return Bounds(
        cpu=min((quota for quota in quotas if quota is not None), default=None),
        cpus=reader.cpus(groups),
        memory_bytes=bound[0] if bound else None,
        memory_folder=bound[1] if bound else None,
        problems=tuple(reader.problems),
    )


def control_groups(root: Path, reader: _Reader) -> dict[str, list[Path]]:
    """The folders of this process's groups by controller, the innermost first."""
    mounts = list(_mounts(reader.text(root / "proc/self/mountinfo") or ""))
    found: dict[str, list[Path]] = {}
    for line in (reader.text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for controller in names.split(",") if number != "0" else [_UNIFIED]:
            places = [mount for mount in mounts if controller in mount.controllers]
            if places:
                # Of several mounts of one hierarchy, the one that shows our own group is meant.
                places.sort(key=lambda mount: not PurePosixPath(path).is_relative_to(mount.top))
                found[controller] = places[0].way_up(root, path)
    return found


def own_groups(root: Path = Path("/")) -> dict[str, list[Path]]:
    """The folders of this process's own group and those above it, for each controller.

    Those of version 2 are under `""`.
    """
    return control_groups(root, _Reader())


@dataclass(frozen=True, slots=True)
class _Mount:
    top: str  # the group that is seen at `point`
    point: str
    controllers: frozenset[str]

    def way_up(self, root: Path, path: str) -> list[Path]:
        point = root / self.point.lstrip("/")
        inside = PurePosixPath(path)
        if ".." in inside.parts or not inside.is_relative_to(self.top):
            return [point]  # our group lies outside of what is mounted: that is all we see of it
        leaf = point / inside.relative_to(self.top)
        return [leaf, *(folder for folder in leaf.parents if folder.is_relative_to(point))]


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        before, after = place.split(), kind.split()
        if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        top, point = (_ESCAPED.sub(lambda m: chr(int(m[1], 8)), text) for text in before[3:5])
        names = after[2].split(",") if after[0] == "cgroup" else [_UNIFIED]
        yield _Mount(top, point, frozenset(names))


class _Reader:
    """Reads the kernel's small files, and keeps what it could not read or understand.

    A file that is not there is no problem: that controller is not in use.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def text(self, path: Path) -> str | None:
        try:
            return path.read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            self._complain(path, str(error))
            return None

    def quota(self, folder: Path) -> int | None:
        """Cores in parts from `cpu.max`, which has a quota (or `max`) and a period."""
        words = (self.text(folder / "cpu.max") or "max").split()
        if words[0] == "max":
            return None
        period = words[1] if len(words) > 1 else "100000"
        return self._cores(folder / "cpu.max", words[0], period)

    def older_quota(self, folder: Path) -> int | None:
        quota = self.text(folder / "cpu.cfs_quota_us")
        if quota is None or quota == "-1":
            return None
        period = self.text(folder / "cpu.cfs_period_us") or "100000"
        return self._cores(folder / "cpu.cfs_quota_us", quota, period)

    def memory(self, folder: Path) -> int | None:
        """The least of `memory.max`, where jobs are killed, and `memory.high`, where they crawl."""
        limits = [self._bytes(folder / name) for name in ("memory.max", "memory.high")]
        return min((limit for limit in limits if limit is not None), default=None)

    def older_memory(self, folders: list[Path]) -> Iterator[tuple[int | None, Path]]:
        """Limits of the older kind; the kernel adds those of groups that a container hides."""
        for folder in folders:
            yield self._bytes(folder / "memory.limit_in_bytes"), folder
        for folder in folders[:1]:
            stat = dict(_pairs(self.text(folder / "memory.stat") or ""))
            limit = stat.get("hierarchical_memory_limit", _UNLIMITED)
            yield limit if limit < _UNLIMITED else None, folder

    def cpus(self, groups: dict[str, list[Path]]) -> frozenset[int] | None:
        """The CPUs of the innermost group that tells them; those above are already taken in."""
        for controller, name in (
            (_UNIFIED, "cpuset.cpus.effective"),
            ("cpuset", "cpuset.effective_cpus"),
            ("cpuset", "cpuset.cpus"),
        ):
            for folder in groups.get(controller, ()):
                text = self.text(folder / name)
                if text:
                    try:
                        return read_cpu_list(text)
                    except ValueError:
                        self._complain(folder / name, f"it says {text[:60]!r}")
        return None

    def _cores(self, path: Path, quota: str, period: str) -> int | None:
        if quota.isdecimal() and period.isdecimal() and int(period):
            return UNIT * int(quota) // int(period)
        self._complain(path, f"it says {quota[:60]!r} of {period[:60]!r}")
        return None

    def _bytes(self, path: Path) -> int | None:
        text = self.text(path)
        if text is None or text == "max":
            return None
        if not text.isdecimal():
            self._complain(path, f"it says {text[:60]!r}")
            return None
        return int(text) if int(text) < _UNLIMITED else None

    def _complain(self, path: Path, why: str) -> None:
        self.problems.append(
            Problem(
                f"the limit in {path} cannot be read: {why}",
                "It is not taken into account: give the node's size by hand if it is smaller.",
            )
        )


def read_cpu_list(text: str) -> frozenset[int]:
    """CPU numbers as the kernel writes them.

    >>> sorted(read_cpu_list("0-2,7"))
    [0, 1, 2, 7]
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def memory_used(folder: Path) -> int | None:
    """What a group holds now, without the cache it would give back; None if it does not tell."""
    reader = _Reader()
    for current, cache in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        text = reader.text(folder / current)
        if text is not None and text.isdecimal():
            stat = dict(_pairs(reader.text(folder / "memory.stat") or ""))
            return max(0, int(text) - stat.get(cache, 0))
    return None


def _pairs(text: str) -> Iterable[tuple[str, int]]:
    """The `name number` lines of a kernel file."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.isdecimal():
            yield name, int(number)
