"""Control groups of both versions: where this process is, and joining those of a job.

The starter enters a job's cgroups before it creates the job's process, so that the process is born
there: one that is moved later might already have children outside. The starter does so only where
it can return to its own cgroup. Version 1 has a hierarchy for each controller, version 2 has one
for all; a machine may use both at once.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

UNIFIED = ""  # stands for the controllers of version 2, which has one hierarchy

_PROCS = "cgroup.procs"
_ESCAPED = re.compile(r"\\([0-7]{3})")


class _Mount(NamedTuple):
    device: str  # MAJOR:MINOR
    top: str  # the group that is visible at `point`
    point: str
    controllers: frozenset[str]  # and mount options, which no controller is called

    def path_below(self, group: str) -> str | None:
        """Return the group's path below `point`; None if what is mounted does not show it."""
        if not group.startswith("/") or ".." in group.split("/"):
            return None
        path = os.path.relpath(group, self.top)
        return None if path.split("/")[0] == ".." else path


def own_groups(
    root: str | os.PathLike[str] = "/", read: Callable[[str], str | None] | None = None
) -> dict[str, list[str]]:
    """Return the folders of this process's group and those above it, for each controller.

    The innermost folder is first. Groups of version 2 are under `UNIFIED`. `read` returns the text
    of a file, or None.
    """
    read = read or _read_text
    mounts = list(_parse_mounts(read(f"{root}/proc/self/mountinfo") or ""))
    groups: dict[str, list[str]] = {}
    for controllers, path in _parse_own_groups(read(f"{root}/proc/self/cgroup") or ""):
        for controller in controllers:
            places = [mount for mount in mounts if controller in mount.controllers]
            if places:
                # Of several mounts of one hierarchy, use one that shows our own group.
                places.sort(key=lambda mount: mount.path_below(path) is None)
                groups[controller] = _folders_up(f"{root}", places[0], path)
    return groups


def _folders_up(root: str, mount: _Mount, group: str) -> list[str]:
    point = os.path.join(root, mount.point.lstrip("/"))
    path = mount.path_below(group)
    if path in (None, "."):
        return [point]  # for a group outside of what is mounted, this is all that we see of it
    parts = path.split("/")
    return [os.path.join(point, *parts[:depth]) for depth in range(len(parts), -1, -1)]


def _own_folder(device: int) -> str | None:
    """Return the folder of our own group in the hierarchy with this device, if we can see it."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in _parse_mounts(_read_text("/proc/self/mountinfo") or ""):
        if mount.device == number:
            for controllers, group in _parse_own_groups(_read_text("/proc/self/cgroup") or ""):
                if mount.controllers.intersection(controllers):
                    path = mount.path_below(group)
                    return None if path is None else os.path.join(mount.point, path)
            return None
    return None


def _parse_own_groups(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the controllers and the group of each line of /proc/self/cgroup."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        yield (names.split(",") if number != "0" else [UNIFIED]), path


def _parse_mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        before, after = place.split(), kind.split()
        if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        top, point = (_ESCAPED.sub(lambda m: chr(int(m[1], 8)), text) for text in before[3:5])
        names = after[2].split(",") if after[0] == "cgroup" else [UNIFIED]
        yield _Mount(before[2], top, point, frozenset(names))


def _read_text(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


class CgroupMembership:
    """The cgroup of this process in each hierarchy, which the device of its files identifies."""

    def __init__(self) -> None:
        self._homes: dict[int, str | None] = {}
        self._away: dict[int, str] = {}

    def enter(self, folders: list[str]) -> list[str]:
        """Enter these cgroups, and return to our own in other hierarchies.

        Returns those that we could not leave again: `put` the child into them instead.
        """
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
        """Move the child into these cgroups; if that fails, kill it and return the reason."""
        for folder in folders:
            try:
                _write_pid(folder, pid)
            except ProcessLookupError:
                return ""  # the child has ended already
            except OSError as error:
                os.killpg(pid, signal.SIGKILL)  # better no process than one without its limits
                return f"cannot join the cgroup {folder!r}: {error.strerror}"
        return ""

    def leave(self) -> None:
        """Return to our own cgroup in every hierarchy."""
        for device in list(self._away):
            self._go_home(device)

    def _go_home(self, device: int) -> None:
        home = self._homes[device]
        assert home is not None
        try:
            _write_pid(home, 0)
        except OSError:
            # This worked when it was tried. From now on children are moved with `put`.
            self._homes[device] = None
        del self._away[device]

    def _home(self, device: int) -> str | None:
        """Return our own cgroup in this hierarchy; None if we could not come back to it."""
        if device not in self._homes:
            home = _own_folder(device)
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
        os.write(fd, b"%d" % pid)  # 0 stands for the writing process
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


def members(folder: str) -> set[int]:
    """Return the pids of the processes in a cgroup; none when it is gone."""
    try:
        with open(os.path.join(folder, _PROCS)) as file:
            return {int(text) for text in file}
    except (OSError, ValueError):
        return set()
