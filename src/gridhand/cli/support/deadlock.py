"""Say so if a job waits for resources that the job in which it was submitted holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridhand.client import Client

Job = dict[str, Any]


def deadlock_message(client: Client, job: Job) -> str:
    """Return why an attached job can never start, or "" if it can.

    It runs inside another job, which waits for it. It cannot start if no node has room for both.
    """
    outer = os.environ.get("GRIDHAND_JOB_ID")
    if not outer or job["state"] != "queued" or job.get("within"):
        return ""
    from gridhand.core.errors import GridError

    try:
        holder = client.job(outer)
        fits = holder["state"] != "running" or any(
            _fits_beside(job["request"], holder, node) for node in client.nodes()
        )
    except GridError:  # it runs in a job of another controller
        return ""
    if fits:
        return ""
    return (
        f"job {job['id']} waits for job {outer}, in which it was submitted, and that waits for it:"
        f" no node has room for both. Submit it with -d, ask for less, or use --within"
    )


def _fits_beside(request: dict[str, Any], holder: Job, node: dict[str, Any]) -> bool:
    held = holder["request"] if holder["node"] == node["name"] else {}
    return all(
        amount <= node["total"].get(name, 0) - _number(held.get(name, 0))
        for name, amount in request.items()
        if isinstance(amount, int | float)
    )


def _number(amount: object) -> float:
    return amount if isinstance(amount, int | float) else 0.0
