"""Folders of ours at fixed names in a parent that other users can write to, such as /tmp.

Another user may have taken the name first, with a link or with a folder of their own. So a folder
is opened without following links and checked once it is open; what is in it is then named relative
to the descriptor.
"""

from __future__ import annotations

import contextlib
import grp
import os
import stat

_MOST_LINKS = 40
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafeFolder(Exception):
    """A folder that another user made, or can change."""


class OpenFolder(UnsafeFolder):
    """A folder of ours that other users may enter or change."""


def open_own_folder(path: str, mode: int = 0o700) -> int:
    """Return our folder at `path`, open; create it if there is none.

    Raise UnsafeFolder if the name is a link or belongs to another user, and OpenFolder if others
    have more permissions than `mode` gives them.
    """
    parent, name = os.path.split(path)
    parent_fd = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_parent(parent, os.fstat(parent_fd))
        created = False
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent_fd)
            created = True
        fd = open_folder_of(os.geteuid(), name, parent_fd, mode, path)
        if created:
            os.fchmod(fd, mode)
        return fd
    finally:
        os.close(parent_fd)


def open_folder_of(uid: int, name: str, parent_fd: int, mode: int, path: str = "") -> int:
    """Return the folder of this user at a name, open, after the same checks."""
    path = path or name
    try:
        fd = os.open(name, _FLAGS, dir_fd=parent_fd)
    except NotADirectoryError as error:
        raise UnsafeFolder(f"{path} is a link or not a folder") from error
    found = os.fstat(fd)
    if found.st_uid == uid and not stat.S_IMODE(found.st_mode) & 0o077 & ~mode:
        return fd
    os.close(fd)
    if found.st_uid != uid:
        raise UnsafeFolder(f"{path} belongs to another user (uid {found.st_uid})")
    raise OpenFolder(f"{path} is open to other users (mode {found.st_mode & 0o777:03o})")


def check_root_only(path: str) -> None:
    """Raise UnsafeFolder unless only root can change what is at `path`, links and parents included.

    A parent with the sticky bit is as good: others cannot replace in it what is root's.
    """
    path = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        above = "/"
        for part in ["", *path.split("/")[1:]]:
            above = os.path.join(above, part)
            found = os.lstat(above)
            if found.st_uid != 0:
                raise UnsafeFolder(f"{above} belongs to another user (uid {found.st_uid})")
            if stat.S_ISLNK(found.st_mode):
                rest = path[len(above) :].lstrip("/")
                target = os.path.join(os.path.dirname(above), os.readlink(above))
                path = os.path.normpath(os.path.join(target, rest) if rest else target)
                break
            if _others_can_write(found) and not found.st_mode & stat.S_ISVTX:
                raise UnsafeFolder(f"other users can change {above}")
        else:
            return
    raise UnsafeFolder(f"{path} has too many links")


def _others_can_write(found: os.stat_result) -> bool:
    """Return whether anybody but root can; a group without members gives no rights to anybody."""
    if not found.st_mode & 0o020 or found.st_gid == 0:
        return bool(found.st_mode & 0o002)
    try:
        members = grp.getgrgid(found.st_gid).gr_mem
    except KeyError:
        members = ["unknown"]
    return bool(found.st_mode & 0o002) or any(name != "root" for name in members)


def _check_parent(path: str, found: os.stat_result) -> None:
    """Raise UnsafeFolder if other users could rename or replace our folders in there."""
    if found.st_uid not in (0, os.geteuid()):
        raise UnsafeFolder(f"{path} belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise UnsafeFolder(f"in {path} other users can replace our folders")
