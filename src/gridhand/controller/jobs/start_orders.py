"""Make the StartOrder of a job from the job and its allocation."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gridhand.core.jobs.job import Job, Reason
from gridhand.core.ledger.allocations import Allocation
from gridhand.engines.base import StartOrder
from gridhand.posix.unix_users import UnixUser

LOG_BYTES = 256 * 10**6  # of each of a job's two files
RANK_VARIABLES = (
    "GRIDHAND_RANK", "GRIDHAND_WORLD_SIZE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
PROCESSES = 4096  # of a job at once, threads included, unless it says otherwise


def make_order(
    job: Job,
    held: Allocation,
    *,
    folder: str,
    environment: Mapping[str, str],
    pin: bool,
    user: UnixUser | None = None,
) -> StartOrder:
    """Return the order to start the job's current attempt; `folder` is the job's own."""
    attempt, work = job.attempt, job.work
    assert attempt is not None
    amounts = held.amounts.parts()
    return StartOrder(
        job=job.id,
        attempt=attempt.number,
        fence=held.id,
        node=held.node,
        argv=list(work.command),
        cwd=work.folder,
        env={**_without_rank(environment), **_variables(job, held), **_rank_variables(job)},
        cores=amounts.get("cpu", 0),
        pin=pin,
        memory_bytes=amounts.get("memory"),
        processes=work.processes or PROCESSES,
        devices=[hold.device for hold in held.devices],
        gpu_memory={hold.device: hold.memory_bytes for hold in held.devices},
        time_limit_ms=work.time_limit_ms,
        grace_ms=work.grace_ms,
        stdin=work.stdin,
        stdout=log_path(job, folder, "stdout"),
        stderr=log_path(job, folder, "stderr"),
        log_bytes=LOG_BYTES,
        own_files=own_files(job),
        user=user,
        warn_signal=work.warn_signal,
        warn_ms=work.warn_ms,
    )


def own_files(job: Job) -> dict[str, str]:
    """Return which streams go to files of the job's own, and whether to empty them first.

    As in Slurm a file is emptied first; but not by a retry, nor by each task of an array that
    shares it with the others.
    """
    shared = {
        name: job.array is not None and not any(mark in path for mark in ("%a", "%j"))
        for name in ("stdout", "stderr")
        if (path := getattr(job.work, name)) is not None
    }
    first = all(one.reason is Reason.RETURNED for one in job.attempts[:-1])
    return {name: "empty" if first and not one else "append" for name, one in shared.items()}


def log_path(job: Job, folder: str, stream: str) -> str:
    """Where the job writes to: a file of ours, or the one it named, with its ids filled in."""
    own: str | None = getattr(job.work, stream)
    if own is None:
        return os.path.join(folder, stream)
    # As in Slurm: the job, the array it is part of, and its place there.
    marks = {"%j": job.id, "%A": job.array or job.id, "%a": str(job.array_index or 0)}
    for mark, text in marks.items():
        own = own.replace(mark, text)
    return own


def _variables(job: Job, held: Allocation) -> dict[str, str]:
    attempt = job.attempt
    assert attempt is not None
    found = {"GRIDHAND_VARIANT": str(attempt.choice)}
    if held.quality is not None:
        found["GRIDHAND_QUALITY"] = held.quality
    if job.array is not None:
        found["GRIDHAND_ARRAY_ID"] = job.array
        found["GRIDHAND_ARRAY_TASK_ID"] = str(job.array_index)
    return found


def _rank_variables(job: Job) -> dict[str, str]:
    """Return which member of a gang this is, and where the members meet."""
    attempt, nodes = job.attempt, job.work.nodes
    assert attempt is not None
    if nodes is None:
        return {}
    rank, (address, _, port) = str(job.array_index), attempt.master.rpartition(":")
    texts = (rank, str(nodes), rank, str(nodes), address, port)
    return dict(zip(RANK_VARIABLES, texts, strict=True))


def _without_rank(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables without those of a gang whose member submitted this job."""
    if RANK_VARIABLES[0] not in environment:
        return environment
    return {name: text for name, text in environment.items() if name not in RANK_VARIABLES}
