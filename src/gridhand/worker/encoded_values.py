"""Values as bytes: small ones in the message, large ones in a file that the receiver maps.

Large arrays are written once, into shared memory (`/dev/shm`), and are not copied when they are
read: a reader maps the file, and gets pages of its own where it writes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import marshal
import mmap
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

from gridhand.worker.old_names import loads
from gridhand.worker.wire import FILE, INLINE, PARTS

LARGE = 1 << 18
_PART_OF_LIMIT = 4
_ALIGNED = 64
_HEAD = struct.Struct("<I")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.ENOMEM})

Packed = tuple[int, bytes]  # a kind, and its bytes
Buffers = list[pickle.PickleBuffer]
Dumps = Callable[[Any, Buffers | None], bytes | memoryview]


def dumps(value: Any, buffers: Buffers | None = None) -> bytes | memoryview:
    """Return a pickle that includes what cannot be imported elsewhere: from `__main__`, or local.

    Large pieces are appended to `buffers`, if it is given, and are then not in the pickle.
    """
    from gridhand.worker.main_globals import (
        Pickler,  # imports cloudpickle, which not every worker needs
    )

    file = io.BytesIO()
    keep = None if buffers is None else buffers.append
    Pickler(file, protocol=5, buffer_callback=keep).dump(value)
    return file.getbuffer()


def dumps_known(value: Any, buffers: Buffers | None = None) -> bytes | memoryview:
    """Return a pickle, quicker: `__main__` of a worker has nothing that its client could lack."""
    try:
        return pickle.dumps(value, 5, buffer_callback=None if buffers is None else buffers.append)
    except Exception:
        if buffers is not None:
            buffers.clear()
        return dumps(value, buffers)


class Folders:
    """The folders for large values; the first that has room for a value is used.

    Shared memory counts as memory of the process that wrote to it, for as long as the value is
    kept. A process with a memory `limit` puts only a part of that there, and the rest on the disk.
    """

    def __init__(self, paths: Sequence[str], prefix: str, limit: int | None = None) -> None:
        self._paths = paths
        self._prefix = prefix
        self._most = None if limit is None else limit // _PART_OF_LIMIT
        self._numbers = itertools.count(1)

    def pack(self, value: Any, dumps: Dumps) -> Packed:
        buffers: Buffers = []
        data = dumps(value, buffers)
        if not buffers and len(data) <= LARGE:
            return INLINE, bytes(data)
        raws = [one.raw() for one in buffers]
        if len(data) + sum(raw.nbytes for raw in raws) <= LARGE:
            return PARTS, marshal.dumps((bytes(data), [bytes(raw) for raw in raws]))
        return FILE, os.fsencode(self._write(data, raws))

    def _write(self, data: bytes | memoryview, raws: list[memoryview]) -> str:
        head = marshal.dumps((len(data), [raw.nbytes for raw in raws]))
        parts: list[bytes | memoryview] = [_HEAD.pack(len(head)) + head + bytes(data), *raws]
        size = sum(len(part) + _ALIGNED for part in parts)
        for folder in self._paths[:-1]:
            try:
                if _free(folder) > size + size // 8 and self._may_have(folder, size):
                    return self._write_in(folder, parts)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
        return self._write_in(self._paths[-1], parts)

    def _may_have(self, folder: str, size: int) -> bool:
        if self._most is None:
            return True
        mine = (one for one in os.scandir(folder) if one.name.startswith(f"{self._prefix}."))
        for one in mine:
            with contextlib.suppress(OSError):  # removed just now
                size += one.stat().st_size
        return size <= self._most

    def _write_in(self, folder: str, parts: Sequence[bytes | memoryview]) -> str:
        path = os.path.join(folder, f"{self._prefix}.{next(self._numbers)}")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            offset = 0
            for part in parts:
                _write_all(fd, memoryview(part), offset)
                offset = _aligned(offset + len(part))
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        return path


def load(kind: int, data: bytes) -> Any:
    """Return the value. One from a file is a private copy: changes are seen by nobody else."""
    if kind == INLINE:
        try:
            return pickle.loads(data)
        except (AttributeError, ImportError):
            return loads(data)
    if kind == PARTS:
        text, buffers = marshal.loads(data)
        return loads(text, buffers=[bytearray(one) for one in buffers])
    return read(mapped(os.fsdecode(data)))


def mapped(path: str) -> mmap.mmap:
    """Map a file, which may be removed from then on."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)


def read(contents: mmap.mmap) -> Any:
    view = memoryview(contents)
    (length,) = _HEAD.unpack_from(view)
    size, sizes = marshal.loads(view[_HEAD.size : _HEAD.size + length])
    text = view[_HEAD.size + length : _HEAD.size + length + size]
    offset = _aligned(_HEAD.size + length + size)
    buffers = []
    for one in sizes:
        buffers.append(view[offset : offset + one])
        offset = _aligned(offset + one)
    return loads(text, buffers=buffers)


def _aligned(offset: int) -> int:
    return (offset + _ALIGNED - 1) // _ALIGNED * _ALIGNED


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


def _free(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
