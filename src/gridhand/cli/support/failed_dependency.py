"""The message for a job that was cancelled because a dependency failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridhand.cli.commands.jobs import Job, remark, tasks
from gridhand.core.errors import GridError

if TYPE_CHECKING:
    from gridhand.client import Client


def dependency_message(client: Client, job: Job) -> str:
    """Return which dependency failed and how, as far as the controller still knows."""
    for wanted in job["after"] or ():
        try:
            ended = tasks(client, wanted["id"])
        except GridError:  # so old that its record was deleted
            continue
        for other in ended:
            succeeded = other["state"] == "succeeded"
            if wanted["condition"] == "afternotok" and succeeded:
                return f"dependency failed: job {other['id']} succeeded"
            if wanted["condition"] == "afterok" and other["ended_at"] and not succeeded:
                return f"dependency failed: job {other['id']} ({remark(other)})"
    return "dependency failed"
