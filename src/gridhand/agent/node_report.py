"""What is told of a node: what it has, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gridhand.agent import limits
from gridhand.agent.devices import DeviceWatch
from gridhand.agent.hardware import Discovery
from gridhand.agent.link import Facts
from gridhand.agent.problems import Problem
from gridhand.agent.runs import Run
from gridhand.core.views import node_row

_MAKE_ROOM = "Make room on its disk: until then nothing is started, and no end is told."


def node_facts(found: Discovery, watch: DeviceWatch) -> Facts:
    return node_row(replace(found.node, gpus=tuple(watch.gpus.values())))


def problem_facts(
    found: Discovery,
    watch: DeviceWatch,
    enforced: dict[str, str],
    running: Iterable[Run],
    unwritten: str,
) -> list[Facts]:
    lasting = [one for one in found.problems if one not in found.gpu_problems]
    every = [*lasting, *limits.measured(enforced), *watch.problems, *stuck(running)]
    if unwritten:
        every.append(Problem(unwritten, _MAKE_ROOM))
    return [
        {"message": one.what, "hint": one.hint, "device": one.device}
        for one in dict.fromkeys(every)
    ]


def stuck(running: Iterable[Run]) -> list[Problem]:
    """Jobs that cannot be ended."""
    return [
        Problem(
            f"processes {', '.join(map(str, run.stuck))} of job {run.job} will not die",
            "What it was given stays with it. They may wait for a disk or a device; reboot if that"
            " does not come back.",
        )
        for run in running
        if run.stuck
    ]
