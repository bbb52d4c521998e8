"""From what a controller asks to what the starter is told: cores, groups, variables and a note."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gridhand.agent.asked import Asked
from gridhand.agent.environment import granted, job_environment
from gridhand.agent.limits import Groups, Limits
from gridhand.agent.pinning import Pinning
from gridhand.agent.runs import Note, Run
from gridhand.agent.starting import order
from gridhand.core.gpus import Gpu

MOST_BYTES = 12 << 20  # of one order, and of several in one message: a starter takes 16 MiB


def prepare(
    asked: Asked, pinning: Pinning, limits: Limits, gpus: Mapping[str, Gpu], mark: str
) -> tuple[Run, str]:
    """Give it what it was granted, and write its order for the starter."""
    for name, mode in asked.own_files.items():
        if mode == "empty":
            _empty(getattr(asked, name))
    cores, shares = pinning.take(asked.key, asked.fence, asked.cores, pin=asked.pin)
    groups = limits.make(asked.job, asked.attempt, asked.memory_bytes, asked.processes)
    note = _note(asked, None if shares else cores, shares, groups)
    told = order(
        asked.job,
        asked.attempt,
        asked.argv,
        cwd=asked.cwd,
        env=_environment(asked, gpus, mark),
        stdout=asked.stdout,
        stderr=asked.stderr,
        fence=asked.fence,
        stdin=asked.stdin,
        cores=cores,
        cgroups=groups.folders,
        note=note.told(),
    )
    return Run.of(asked, note), json.dumps(told, separators=(",", ":"))


def _note(asked: Asked, cores: list[int] | None, shares: bool, groups: Groups) -> Note:
    note = Note(
        memory_bytes=asked.memory_bytes,
        processes=asked.processes,
        cores=cores,
        shares=shares,
        time_limit_ms=asked.time_limit_ms,
        grace_ms=asked.grace_ms,
        log_bytes=asked.log_bytes,
        stdout=asked.stdout,
        stderr=asked.stderr,
        devices=asked.devices,
        groups=[groups.memory, groups.pids],
        kept=sorted(asked.own_files),
    )
    sizes = [log.size() for log in note.logs()]
    return replace(note, bases=[sizes[0], sizes[-1]]) if any(sizes) else note


def _empty(path: str) -> None:
    """Make the file, as a shell would, or empty it. What is none is left to be opened as it is."""
    with contextlib.suppress(OSError):  # the starter meets the same, and says so
        if not os.path.lexists(path) or os.path.isfile(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOCTTY | os.O_CLOEXEC
            os.close(os.open(path, flags, 0o666))


def _environment(asked: Asked, gpus: Mapping[str, Gpu], mark: str) -> dict[str, str]:
    return job_environment(
        asked.env,
        mark=mark,
        job=asked.job,
        attempt=asked.attempt,
        node=asked.node,
        fence=asked.fence,
        cores=asked.cores,
        memory_bytes=asked.memory_bytes,
        devices=granted(asked.devices, gpus),
        gpu_memory=asked.gpu_memory,
    )


def batches(prepared: Iterable[tuple[Run, str]]) -> Iterator[dict[Run, str]]:
    """As many at a time as a message to the starter may hold."""
    batch: dict[Run, str] = {}
    size = 0
    for run, text in prepared:
        if batch and size + len(text) > MOST_BYTES:
            yield batch
            batch, size = {}, 0
        batch[run] = text
        size += len(text)
    if batch:
        yield batch
