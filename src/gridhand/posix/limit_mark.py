"""A mark that processes inherit and do not drop: the resource limit on file locks.

Linux has not enforced this limit since 2003, and `env -i`, `setsid`, closing all files and starting
another program all leave it as it is. A process keeps the mark unless it sets this very limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import resource
from collections.abc import Iterable, Iterator

from gridhand.posix.procfs import Process, real_uid

_LOCKS = 10  # RLIMIT_LOCKS, which the module `resource` does not name
_LINE = "Max file locks"
_LEAST = 1 << 56  # above all limits that anybody sets, and far below what stands for infinity


def make_limit_mark(*words: str) -> int:
    """Return the mark of whatever these words name; others have another one."""
    text = "\0".join(words).encode("utf-8", "surrogateescape")
    return _LEAST + int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


@contextlib.contextmanager
def limit_marked(mark: int) -> Iterator[None]:
    """Give the mark to processes that are started meanwhile, where the system permits it."""
    soft, hard = resource.getrlimit(_LOCKS)
    try:
        resource.setrlimit(_LOCKS, (mark, hard))
    except (OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(_LOCKS, (soft, hard))


def read_limit_mark(pid: int) -> int | None:
    """Return the mark of a process; None if it has none or is gone."""
    try:
        with open(f"/proc/{pid}/limits") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    soft = next((line[len(_LINE) :].split()[0] for line in lines if line.startswith(_LINE)), "")
    return int(soft) if soft.isdigit() and int(soft) >= _LEAST else None


def marked_alike(leader: Process, others: Iterable[Process]) -> list[Process]:
    """Return those of the siblings of a process that have its mark: they have left its tree.

    Their parents have ended, and its own parent, a subreaper, has become theirs.
    """
    siblings = [one for one in others if one.parent == leader.parent and one.pid != leader.pid]
    mark = read_limit_mark(leader.pid) if siblings else None
    alike = [one for one in siblings if mark is not None and read_limit_mark(one.pid) == mark]
    if not alike:
        return []
    users = {0, real_uid(leader.pid)}  # another user could only pretend to belong to it
    return [one for one in alike if real_uid(one.pid) in users]
