"""The durable part of liveness: what the row of a remote node says, and who may change it.

It is kept in labels of the node, so a new controller knows it, and every event has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gridhand.core.liveness.heartbeats import Recorded
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import BOOT_LABEL, CEILING_LABEL, Health, Node

RANK = {Health.UP: 0, Health.SUSPECT: 1, Health.DOWN: 2}  # the higher, the worse
_MARKS = (BOOT_LABEL, CEILING_LABEL)


def recorded_nodes(nodes: Iterable[Node]) -> dict[NodeName, Recorded]:
    """Return what the ledger says of the remote ones among these nodes."""
    return {node.name: recorded(node) for node in nodes if node.remote}


def recorded(node: Node) -> Recorded:
    return Recorded(node.health, node.ceiling, node.labels.get(BOOT_LABEL, ""))


def with_ceiling(node: Node, health: Health) -> Mapping[str, str]:
    """Return the labels of a node after an administrator has set its health by hand."""
    if not node.remote:
        return node.labels
    others = {key: value for key, value in node.labels.items() if key != CEILING_LABEL}
    return others if health is Health.UP else _sorted({**others, CEILING_LABEL: str(health)})


def with_boot_id(node: Node, boot_id: str) -> Mapping[str, str]:
    """Return the labels of a remote node with the boot id of its latest heartbeat."""
    return _sorted({**node.labels, BOOT_LABEL: boot_id}) if boot_id else node.labels


def may_report(node: Node, was: Health, health: Health) -> bool:
    """Return whether heartbeats may give a node this health, after it was judged as it `was`."""
    return node.remote and node.health is was and RANK[health] >= RANK[node.ceiling]


def keep_record(node: Node, known: Node | None) -> Node:
    """Return a remote node that registers, with the health and marks it has in the ledger.

    Registering is no sign that what ran there has stopped, so only heartbeats make it better.
    """
    if known is None or not known.remote:
        return node
    marks = {key: known.labels[key] for key in _MARKS if key in known.labels}
    others = {key: value for key, value in node.labels.items() if key not in _MARKS}
    return replace(node, health=known.health, labels=_sorted({**others, **marks}))


def _sorted(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(labels.items()))
