"""Readiness: whether a controller can do its work now, and why not if it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gridhand.controller.controller import Controller
from gridhand.core.errors import GridError
from gridhand.core.model.nodes import Health
from gridhand.posix.boot_clock import wall_ms

STORE_S = 5.0  # for the keeper and its store to answer
SILENT_MS = 60_000  # a node of ours is measured every ten seconds


async def unready_reasons(controller: Controller) -> list[str]:
    """Return why no work can be done: one sentence for each reason, none if it can.

    One node among others that is away is no reason: the others go on.
    """
    reasons = [str(fault) for fault in controller.store_faults()]
    if controller.stopping.is_set():
        reasons.append("the controller is stopping")
    elif (fault := await _store_fault(controller)) is not None:
        reasons.append(fault)
    return [*reasons, *_node_faults(controller)]


async def _store_fault(controller: Controller) -> str | None:
    try:
        async with asyncio.timeout(STORE_S):
            await controller.touch_store()
    except TimeoutError:
        return f"the store has not answered within {STORE_S:g} s"
    except GridError as error:
        return str(error)
    return None


def _node_faults(controller: Controller) -> Iterator[str]:
    nodes, seen = controller.status().nodes, controller.samples.seen
    silent = [name for name, at in seen.items() if wall_ms() - at > SILENT_MS]
    up = [one.name for one in nodes if one.health is Health.UP and one.name not in silent]
    if nodes and not up:
        yield f"no node is up: {', '.join(sorted(one.name for one in nodes)[:10])}"
