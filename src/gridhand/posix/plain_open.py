"""Open a path that somebody else wrote, without the magic links of /proc.

A magic link such as /dev/stdout or /proc/self/fd/3 stands for what the process that follows it has
open. So the same path means something else for the user who names it than for us who open it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_OPENAT2 = 437  # the same on all architectures that we run on
_NO_MAGIC_LINKS = 0x02
_CURRENT_FOLDER = -100
_HOW = struct.Struct("=QQQ")  # flags, mode, resolve
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def open_plain(path: bytes | str, flags: int, mode: int = 0) -> int:
    """Do as `os.open` does, but raise OSError (ELOOP) if the path leads through a magic link.

    Raise OSError (ENOSYS) if the kernel is older than version 5.6 and cannot tell.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    how = _HOW.pack(flags, mode if flags & os.O_CREAT else 0, _NO_MAGIC_LINKS)
    fd, code = -1, errno.EINTR
    while fd < 0 and code == errno.EINTR:
        fd = int(
            _libc.syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_int(_CURRENT_FOLDER),
                ctypes.c_char_p(name),
                ctypes.c_char_p(how),
                ctypes.c_size_t(len(how)),
            )
        )
        code = ctypes.get_errno()
    if fd < 0:
        raise OSError(code, os.strerror(code), os.fsdecode(name))
    return fd


def stat_plain(path: str) -> os.stat_result:
    """Do as `os.stat` does, under the same conditions."""
    fd = open_plain(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)
