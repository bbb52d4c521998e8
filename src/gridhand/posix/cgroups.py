"""How the starter joins the cgroups of a job, so that its child is born there, and goes home.

A child put into its cgroup after it was started might have left children of its own outside.
That is done only where the starter, once gone from its own cgroup, could not come back.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

_PROCS = "cgroup.procs"


class _Mount(NamedTuple):
    root: str
    point: str
    names: frozenset[str]  # the controllers of version 1, or its name; empty for version 2


class Cgroups:
    """Where this process stands in each hierarchy. Each is known by the device of its files."""

    def __init__(self) -> None:
        self._homes: dict[int, str | None] = {}
        self._away: dict[int, str] = {}

    def enter(self, folders: list[str]) -> list[str]:
        """Stand in these and at home elsewhere; returns those to `put` the child into later."""
        if not folders and not self._away:
            return []
        wanted = {os.stat(folder).st_dev: folder for folder in folders}
        for device in [device for device in self._away if device not in wanted]:
            self._go_home(device)
        late = []
        for device, folder in wanted.items():
            if self._home(device) is None:
                os.close(os.open(os.path.join(folder, _PROCS), os.O_WRONLY | os.O_CLOEXEC))
                late.append(folder)
            elif self._away.get(device) != folder:
                _write_pid(folder, 0)
                self._away[device] = folder
        return late

    def put(self, pid: int, folders: list[str]) -> str:
        """Move the child; where that fails it is killed, and the reason is returned."""
        for folder in folders:
            try:
                _write_pid(folder, pid)
            except ProcessLookupError:
                return ""  # it has ended already
            except OSError as error:
                os.killpg(pid, signal.SIGKILL)  # rather not at all than without its limits
                return f"cannot join the cgroup {folder!r}: {error.strerror}"
        return ""

    def leave(self) -> None:
        for device in list(self._away):
            self._go_home(device)

    def _go_home(self, device: int) -> None:
        home = self._homes[device]
        assert home is not None
        try:
            _write_pid(home, 0)
        except OSError:
            # It was possible when it was tried. The next jobs are put where they belong by pid.
            self._homes[device] = None
        del self._away[device]

    def _home(self, device: int) -> str | None:
        """Our own cgroup of this hierarchy; None when we could not come back to it."""
        if device not in self._homes:
            home = _own_cgroup(device)
            try:
                if home is not None:
                    _write_pid(home, 0)
            except OSError:
                home = None
            self._homes[device] = home
        return self._homes[device]


def _write_pid(folder: str, pid: int) -> None:
    path = os.path.join(folder, _PROCS)
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"%d" % pid)  # 0 is whoever writes
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


def _own_cgroup(device: int) -> str | None:
    mount = _mount(device)
    if mount is None:
        return None
    with open("/proc/self/cgroup") as file:
        for text in file:
            _, controllers, path = text.rstrip("\n").split(":", 2)
            if frozenset(filter(None, controllers.split(","))) == mount.names:
                inside = os.path.relpath(path, mount.root)
                return None if inside.startswith("..") else os.path.join(mount.point, inside)
    return None


def _mount(device: int) -> _Mount | None:
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as file:
        for text in file:
            fields = text.split()
            kind, _, options = fields[fields.index("-") + 1 :][:3]
            if fields[2] == number and kind in ("cgroup", "cgroup2"):
                own = _controllers() if kind == "cgroup" else frozenset[str]()
                named = {name for name in options.split(",") if name.startswith("name=")}
                names = (own & frozenset(options.split(","))) | named
                return _Mount(fields[3], fields[4], names)
    return None


def _controllers() -> frozenset[str]:
    """All names that the hierarchies of version 1 have here."""
    with open("/proc/self/cgroup") as file:
        return frozenset(name for text in file for name in text.split(":", 2)[1].split(",") if name)


def members(folder: str) -> set[int]:
    """The processes in a cgroup; none when it is gone."""
    try:
        with open(os.path.join(folder, _PROCS)) as file:
            return {int(text) for text in file}
    except (OSError, ValueError):
        return set()
