"""Sentences about a submission that is accepted, but may not do what its user expects."""

from __future__ import annotations

import pwd
from collections.abc import Collection

from gridhand.core.jobs.spec import JobSpec


def warn_of_users(others: Collection[tuple[int, int]]) -> list[str]:
    """Warn of controllers of other users, given as user ids and pids, on this machine."""
    return [
        f"another controller, of user {_user(uid)} (pid {pid}), promises the cores of this machine,"
        " too: they may be given out twice"
        for uid, pid in others
    ]


def warn_of_nodes(work: JobSpec, known: Collection[str]) -> list[str]:
    """Warn of nodes that are preferred or excluded, and do not exist."""
    return [
        f"{field} {name!r} has no effect: there is no such node"
        for field in ("prefer", "exclude")
        for name in sorted(getattr(work.request, field))
        if name not in known
    ]


def warn_of_retries(work: JobSpec, retry_on: Collection[str]) -> list[str]:
    """Warn of causes to retry on that cannot lead to a retry."""
    if retry_on and work.retry.tries <= 1:
        return ["retry_on has no effect: retries is 0"]
    warnings = []
    if "timeout" in retry_on and work.time_limit_ms is None:
        warnings.append("retry_on 'timeout' has no effect: there is no time limit")
    if "oom" in retry_on and not work.request.resources["memory"]:
        warnings.append("retry_on 'oom' has no effect: there is no memory limit")
    return warnings


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
