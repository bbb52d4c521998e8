"""Turn a controller's StartOrder into a StarterOrder: cores, control groups, variables, a note."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gridhand.agent.jobs.cpu_affinity import CpuAffinity
from gridhand.agent.jobs.job_environment import granted_gpus, job_environment
from gridhand.agent.jobs.limits import Groups, Limits
from gridhand.agent.jobs.running_attempt import AttemptNote, RunningAttempt
from gridhand.agent.jobs.start_order import StartOrder
from gridhand.agent.starter.message_fields import OrderUser, StarterOrder
from gridhand.core.model.gpus import Gpu
from gridhand.posix.caller_settings import VARIABLE, CallerSettings

MOST_BYTES = 12 << 20  # of one order, and of several in one message: a starter takes 16 MiB


def prepare(
    order: StartOrder, affinity: CpuAffinity, limits: Limits, gpus: Mapping[str, Gpu], mark: str
) -> tuple[RunningAttempt, str]:
    """Set aside what the order grants; return the attempt and its encoded order for the starter."""
    if order.user is None:  # else the process of that user empties them, with its own rights
        _empty_own_files(order)
    cores, shares = affinity.take(order.key, order.fence, order.cores, pin=order.pin)
    groups = limits.make(order.job, order.attempt, order.memory_bytes, order.processes)
    note = _note(order, None if shares else cores, shares, groups)
    starter_order = StarterOrder(
        order.job,
        order.attempt,
        order.fence,
        order.argv,
        order.cwd,
        _environment(order, gpus, mark),
        cores,
        order.stdin,
        order.stdout,
        order.stderr,
        groups.folders,
        note.encode(),
        _order_user(order),
    )
    return RunningAttempt(order.job, order.attempt, order.fence, note), starter_order.encode()


def _note(order: StartOrder, cores: list[int] | None, shares: bool, groups: Groups) -> AttemptNote:
    note = AttemptNote(
        memory_bytes=order.memory_bytes,
        processes=order.processes,
        cores=cores,
        shares=shares,
        time_limit_ms=order.time_limit_ms,
        warn_signal=order.warn_signal,
        warn_ms=order.warn_ms,
        grace_ms=order.grace_ms,
        log_bytes=order.log_bytes,
        stdout=order.stdout,
        stderr=order.stderr,
        devices=order.devices,
        groups=[groups.memory, groups.pids],
        kept=sorted(order.own_files),
        of_user=order.user is not None,
    )
    sizes = [log.size() for log in note.logs()]
    return replace(note, bases=[sizes[0], sizes[-1]]) if any(sizes) else note


def _order_user(order: StartOrder) -> OrderUser | None:
    if order.user is None:
        return None
    uid, gid, groups = order.user
    return {"uid": uid, "gid": gid, "groups": list(groups), "own_files": order.own_files}


def _empty_own_files(order: StartOrder) -> None:
    umask = CallerSettings.read(order.env.get(VARIABLE, "")).umask or 0
    for name, mode in order.own_files.items():
        if mode == "empty":
            _empty(getattr(order, name), 0o666 & ~umask)


def _empty(path: str, mode: int) -> None:
    """Create or empty a file, as a shell would; leave alone what is no regular file."""
    with contextlib.suppress(OSError):  # the starter meets the same error, and reports it
        if not os.path.lexists(path) or os.path.isfile(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY | os.O_CLOEXEC
            os.close(os.open(path, flags, mode))


def _environment(order: StartOrder, gpus: Mapping[str, Gpu], mark: str) -> dict[str, str]:
    return job_environment(
        order.env,
        mark=mark,
        job=order.job,
        attempt=order.attempt,
        node=order.node,
        fence=order.fence,
        cores=order.cores,
        memory_bytes=order.memory_bytes,
        devices=granted_gpus(order.devices, gpus),
        gpu_memory=order.gpu_memory,
    )


def batches(prepared: Iterable[tuple[RunningAttempt, str]]) -> Iterator[dict[RunningAttempt, str]]:
    """Group prepared orders so that each group fits into one message to the starter."""
    batch: dict[RunningAttempt, str] = {}
    size = 0
    for run, text in prepared:
        if batch and size + len(text) > MOST_BYTES:
            yield batch
            batch, size = {}, 0
        batch[run] = text
        size += len(text)
    if batch:
        yield batch
