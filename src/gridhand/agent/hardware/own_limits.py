"""Read the limits that the control groups around this process set.

A container or a service is often smaller than its machine, and promising the rest would end with
a killed job. A group is bound by all groups above it, so each limit is the least along the way up.
Both versions of control groups are read, because a machine may have some controllers in the one
and some in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.core.model.resources import UNIT
from gridhand.posix import cgroups
from gridhand.posix.cgroups import UNIFIED

_UNLIMITED = 2**60  # version 1 writes "no limit" as a number beyond this


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits on this process; None for no limit.

    `cpu` is in ten-thousandths of a core. `memory_folder` is the group whose memory is bound.
    """

    cpu: int | None = None
    cpus: frozenset[int] | None = None
    memory_bytes: int | None = None
    memory_folder: Path | None = None
    problems: tuple[MachineProblem, ...] = ()


def read_bounds(root: Path = Path("/")) -> Bounds:
    """Return the limits on this process; `problems` has what could not be read."""
    reader = _Reader()
    own = cgroups.own_groups(root, lambda path: reader.text(Path(path)))
    groups = {controller: list(map(Path, folders)) for controller, folders in own.items()}
    quotas = [
        *(reader.quota(folder) for folder in groups.get(UNIFIED, ())),
        *(reader.older_quota(folder) for folder in groups.get("cpu", ())),
    ]
    limits = [
        *((reader.memory(folder), folder) for folder in groups.get(UNIFIED, ())),
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


class _Reader:
    """Reads limit files of the kernel, and collects problems with them.

    A file that does not exist is no problem: that controller is not in use.
    """

    def __init__(self) -> None:
        self.problems: list[MachineProblem] = []

    def text(self, path: Path) -> str | None:
        try:
            return path.read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            self._complain(path, str(error))
            return None

    def quota(self, folder: Path) -> int | None:
        """Return the cores, in parts, of `cpu.max`: a quota (or `max`) and a period."""
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
        """Return the lesser of `memory.max` (jobs are killed) and `memory.high` (jobs crawl)."""
        limits = [self._bytes(folder / name) for name in ("memory.max", "memory.high")]
        return min((limit for limit in limits if limit is not None), default=None)

    def older_memory(self, folders: list[Path]) -> Iterator[tuple[int | None, Path]]:
        """Yield the limits of version 1; the kernel adds those of groups that a container hides."""
        for folder in folders:
            yield self._bytes(folder / "memory.limit_in_bytes"), folder
        for folder in folders[:1]:
            stat = dict(_pairs(self.text(folder / "memory.stat") or ""))
            limit = stat.get("hierarchical_memory_limit", _UNLIMITED)
            yield limit if limit < _UNLIMITED else None, folder

    def cpus(self, groups: dict[str, list[Path]]) -> frozenset[int] | None:
        """Return the CPUs of the innermost group with a list; it includes the limits above it."""
        for controller, name in (
            (UNIFIED, "cpuset.cpus.effective"),
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
            MachineProblem(
                f"the limit in {path} cannot be read: {why}",
                "It is not taken into account: give the node's size by hand if it is smaller.",
            )
        )


def read_cpu_list(text: str) -> frozenset[int]:
    """Return the CPU numbers of a list as the kernel writes it.

    >>> sorted(read_cpu_list("0-2,7"))
    [0, 1, 2, 7]
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def memory_used(folder: Path) -> int | None:
    """Return the memory that a group uses, without cached files; None if it is unknown."""
    reader = _Reader()
    for current, above in (("memory.current", ""), ("memory.usage_in_bytes", "total_")):
        text = reader.text(folder / current)
        if text is not None and text.isdecimal():
            stat = dict(_pairs(reader.text(folder / "memory.stat") or ""))
            cached = (stat.get(f"{above}{kind}_file", 0) for kind in ("inactive", "active"))
            return max(0, int(text) - sum(cached))
    return None


def _pairs(text: str) -> Iterable[tuple[str, int]]:
    """Yield the `name number` lines of a kernel file."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.isdecimal():
            yield name, int(number)
