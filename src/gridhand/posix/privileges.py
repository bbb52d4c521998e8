"""Give up the rights of root: for good in a new process, or for the files that one thread opens.

Python's own functions change all threads of a process, so rights for files are changed with
`setfsuid` and `setfsgid`, which the kernel keeps for each thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator

from gridhand.posix.unix_users import UnixUser

_CAPABILITY_VERSION = 0x20080522
_SET_DUMPABLE = 4
_NOBODY = 0xFFFFFFFF  # asks for the current id, and changes nothing
_libc = ctypes.CDLL(None, use_errno=True)


def become_user(user: UnixUser) -> None:
    """Have this process be the user's from now on, without any way back.

    Raise OSError if anything of the rights of before would be left. Only for a process with one
    thread that is about to start a program.
    """
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    if user.uid != 0:
        _drop_capabilities()
        _hide_memory()
    ids = os.getresuid() + os.getresgid()
    if ids != (user.uid,) * 3 + (user.gid,) * 3 or set(os.getgroups()) != set(user.groups):
        raise PermissionError("the rights of root could not be given up")


def _drop_capabilities() -> None:
    """Empty all sets of capabilities; the kernel has done so for most of them already."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, nothing) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot drop capabilities: {os.strerror(code)}")


def _hide_memory() -> None:
    """Keep the memory of this process from the user, until it starts another program.

    It is a copy of what root had. Without this, /proc/self/mem might be opened as an input. The
    kernel does the same by default, but a setting of the machine (fs.suid_dumpable) turns it off.
    """
    if _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot hide the memory of the process")


@contextlib.contextmanager
def file_rights_of(user: UnixUser) -> Iterator[None]:
    """Open files with the rights of a user in this thread; other threads keep theirs.

    Supplementary groups are not changed: a process that does this has given up its own
    (`drop_groups`), so a file is reached as its owner, by the user's first group, or by anyone.
    """
    if os.getgroups():
        raise PermissionError("supplementary groups would give rights that the user has not")
    try:
        _set_file_ids(user.uid, user.gid)
        yield
    finally:
        _set_file_ids(os.geteuid(), os.getegid())


def drop_groups() -> None:
    """Give up the supplementary groups of this process, which `file_rights_of` asks for."""
    os.setgroups([])


def _set_file_ids(uid: int, gid: int) -> None:
    """Set both ids, the group first: while the user is set, the group cannot be changed."""
    if uid != 0:
        _set_file_id(_libc.setfsgid, gid)
        _set_file_id(_libc.setfsuid, uid)
    else:
        _set_file_id(_libc.setfsuid, uid)
        _set_file_id(_libc.setfsgid, gid)


def _set_file_id(function: Callable[[ctypes.c_uint32], int], id: int) -> None:
    function(ctypes.c_uint32(id))
    now = function(ctypes.c_uint32(_NOBODY)) & 0xFFFFFFFF  # they return the id of before, no error
    if now != id:
        raise PermissionError(f"the rights of id {id} could not be taken on")
