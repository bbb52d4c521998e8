"""The unix users of this machine: the owner that a uid stands for, and the uid behind an owner.

Owners are names, and rights belong to uids, so both ways must agree: an owner whose uid does not
lead back to the same name is refused. A uid without a usable name is the owner `uid-N`, and no user
whose name merely looks like that can be taken for it.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from typing import NamedTuple

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,199}", re.ASCII)
_NO_GROUP = 65534  # of `nobody`
_NUMBERED = re.compile(r"uid-(0|[1-9][0-9]{0,9})", re.ASCII)


class UnknownUser(LookupError):
    """This machine has no user that an owner stands for."""


class UnixUser(NamedTuple):
    """The ids with which the processes of a user run."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def user_name(uid: int) -> str:
    """Return the owner that a uid stands for: the user's name, or `uid-N` if that is not usable."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid-{uid}"
    usable = _NAME.fullmatch(name) and not _NUMBERED.fullmatch(name)
    return name if usable else f"uid-{uid}"


def find_user(owner: str) -> UnixUser:
    """Return the user that an owner stands for; raise UnknownUser if there is none."""
    uid = _uid_of(owner)
    if user_name(uid) != owner:  # a second name of a uid, or a number that has a name
        raise UnknownUser(f"{owner!r} is not the name of the user with uid {uid}")
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return UnixUser(uid, _NO_GROUP, ())  # any other group might have rights of its own
    return UnixUser(uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def _uid_of(owner: str) -> int:
    if numbered := _NUMBERED.fullmatch(owner):
        return int(numbered[1])
    try:
        return pwd.getpwnam(owner).pw_uid
    except (KeyError, ValueError, UnicodeError):
        raise UnknownUser(f"there is no user {owner!r} on this machine") from None


def is_in_group(uid: int, group: str) -> bool:
    """Return whether the user is a member of the group, which need not exist."""
    try:
        gid = grp.getgrnam(group).gr_gid
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return False
    return gid in os.getgrouplist(entry.pw_name, entry.pw_gid)
