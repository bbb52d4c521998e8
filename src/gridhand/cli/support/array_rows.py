"""The tasks of an array on one line of a list, as far as there is the same to say of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gridhand.cli import render
from gridhand.cli.jobs import Job, ran_s, remark, row, title
from gridhand.core.arrays import tasks_text


def folded(jobs: Iterable[Job]) -> list[tuple[object, ...]]:
    """Rows as those of `jobs.row`, in the order in which the first of each line came."""
    return [_row(several) for several in together(jobs)]


def together(jobs: Iterable[Job]) -> list[list[Job]]:
    """Tasks of one array in the same state, for the same reason; any other job for itself."""
    lines: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        key = (job["array"], job["state"], remark(job)) if job["array"] else (job["id"],)
        lines.setdefault(key, []).append(job)
    return list(lines.values())


def name_of(several: list[Job]) -> str:
    """`17_4`, or `17_[4-10]` for several tasks."""
    if len(several) == 1:
        return str(several[0]["id"])
    return tasks_text(several[0]["array"], (job["array_index"] for job in several))


def _row(several: list[Job]) -> tuple[object, ...]:
    first = several[0]
    if len(several) == 1:
        return row(first)
    nodes = {job["node"] for job in several if job["node"]}
    return (
        name_of(several),
        title(first),
        first["owner"],
        first["state"],
        render.clock(max(map(ran_s, several))),
        f"{len(nodes)} nodes" if len(nodes) > 1 else next(iter(nodes), "-"),
        remark(first),
    )
