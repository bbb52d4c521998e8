"""The report of a node: what it has, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gridhand.agent.gpu.health import DeviceHealth
from gridhand.agent.hardware.discovery import Discovery
from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.agent.jobs import limits
from gridhand.agent.jobs.running_attempt import RunningAttempt
from gridhand.agent.messages import ProblemReport
from gridhand.core.model.nodes import Health
from gridhand.core.rows.ledger import node_row

_MAKE_ROOM = "Make room on its disk: until then nothing is started, and no end is reported."


def report_node(found: Discovery, health: DeviceHealth, *, closed: bool) -> dict[str, Any]:
    """Return the row of the node with its GPUs as they are now; it is suspect while `closed`."""
    state = Health.SUSPECT if closed else found.node.health
    return node_row(replace(found.node, gpus=tuple(health.gpus.values()), health=state))


def report_problems(
    found: Discovery,
    health: DeviceHealth,
    enforced: dict[str, str],
    running: Iterable[RunningAttempt],
    unwritten: str,
    other: Iterable[MachineProblem],
) -> list[ProblemReport]:
    """Return all that is wrong with the node; `unwritten` is why the journal is not written."""
    lasting = [problem for problem in found.problems if problem not in found.gpu_problems]
    problems = [
        *lasting,
        *limits.measured_problems(enforced),
        *health.problems,
        *stuck_problems(running),
        *other,
    ]
    if unwritten:
        problems.append(MachineProblem(unwritten, _MAKE_ROOM))
    return [
        {"message": problem.what, "hint": problem.hint, "device": problem.device}
        for problem in dict.fromkeys(problems)
    ]


def stuck_problems(running: Iterable[RunningAttempt]) -> list[MachineProblem]:
    """Return a problem for each job with processes that do not die."""
    return [
        MachineProblem(
            f"processes {', '.join(map(str, run.stuck))} of job {run.job} do not die",
            "The job keeps its resources. They may wait for a disk or a device; reboot if that"
            " does not come back.",
        )
        for run in running
        if run.stuck
    ]
