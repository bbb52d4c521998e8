"""The umask, nice value and resource limits of a caller, to be passed on to its job.

They travel as one variable in the job's environment, `umask=022 nice=0 nofile=1024:4096 …`, which
is removed before the command starts. A limit is never raised: the node's own hard limits hold.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import NamedTuple

VARIABLE = "GRIDHAND_CALLER"

Pair = tuple[int, int]  # the soft and the hard limit

_LIMITS = {
    name[len("RLIMIT_") :].lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name of NOFILE
}
# Limits that this process may exceed already: it would be killed, or could spawn nothing.
_AFTERWARDS = frozenset({"cpu", "as", "data", "rss", "vmem", "nproc"})


class CallerSettings(NamedTuple):
    """The settings that a command inherits from its caller, beside variables and the folder."""

    umask: int | None = None
    nice: int | None = None
    limits: dict[str, Pair] = {}  # noqa: RUF012 - a default that nobody changes

    @classmethod
    def read(cls, text: str) -> CallerSettings:
        """Read what `own_settings` wrote; words that make no sense are left out."""
        umask = nice = None
        limits: dict[str, Pair] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            with contextlib.suppress(ValueError):
                if name == "umask":
                    umask = int(value, 8) & 0o777
                elif name == "nice":
                    nice = int(value)
                elif name in _LIMITS:
                    soft, _, hard = value.partition(":")
                    limits[name] = int(soft), int(hard)
        return cls(umask, nice, limits)

    @contextlib.contextmanager
    def inherited(self) -> Iterator[None]:
        """Have children that are started meanwhile inherit what this process can take back."""
        before = None if self.umask is None else os.umask(self.umask)
        softs: list[tuple[int, Pair]] = []
        try:
            for name, wanted in self.limits.items():
                own = resource.getrlimit(_LIMITS[name])
                soft, _ = _lower(wanted, own)
                if name not in _AFTERWARDS and soft != own[0] and _set(0, name, (soft, own[1])):
                    softs.append((_LIMITS[name], own))
            yield
        finally:
            for limit, own in softs:
                resource.setrlimit(limit, own)
            if before is not None:
                os.umask(before)

    def apply(self) -> None:
        """Give this process all of them, for good."""
        if self.umask is not None:
            os.umask(self.umask)
        self.complete(0)

    def complete(self, pid: int) -> None:
        """Give a child that was just started the rest."""
        if self.nice is not None and self.nice > os.getpriority(os.PRIO_PROCESS, 0):
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PGRP, pid, self.nice)
        for name, wanted in self.limits.items():
            own = resource.getrlimit(_LIMITS[name])
            if (lowered := _lower(wanted, own)) != own:
                _set(pid, name, lowered)


def own_settings() -> str:
    """Return the settings of this process, as text for the variable."""
    limits = [
        f"{name}={soft}:{hard}"
        for name, limit in sorted(_LIMITS.items())
        for soft, hard in [resource.getrlimit(limit)]
    ]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return " ".join([f"umask={_own_umask():03o}", f"nice={nice}", *limits])


def _own_umask() -> int:
    """Read the umask where that does not change it: other threads may be creating files."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _lower(wanted: Pair, own: Pair) -> Pair:
    """Return the wanted limits as far as they raise no hard limit of our own."""
    hard = _least(wanted[1], own[1])
    return _least(wanted[0], hard), hard


def _least(first: int, second: int) -> int:
    if resource.RLIM_INFINITY in (first, second):
        return second if first == resource.RLIM_INFINITY else first
    return min(first, second)


def _set(pid: int, name: str, limits: Pair) -> bool:
    try:
        resource.prlimit(pid, _LIMITS[name], limits)
    except (OSError, ValueError):  # it has ended, or the kernel has a bound of its own
        return False
    return True
