"""A quick test whether a request could fit on one of a few nodes, before it is really placed."""

from __future__ import annotations

from collections.abc import Iterable

from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.requests import Request
from gridhand.core.placement.snapshot import Snapshot


def could_fit_on(asked: Request, nodes: Iterable[NodeUsage], snapshot: Snapshot) -> bool:
    """Return False only if `asked` and its alternatives fit on none of these nodes now."""
    return any(_could_fit(choice, use, snapshot) for use in nodes for choice in asked.choices())


def _could_fit(asked: Request, use: NodeUsage, snapshot: Snapshot) -> bool:
    if asked.node not in (None, use.node.name) or not snapshot.amounts_fit(asked, use):
        return False
    return asked.gpu is None or len(use.devices) >= asked.gpu.devices
