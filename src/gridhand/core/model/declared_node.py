"""Merge what an administrator declares about a machine with what was found on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gridhand.core.model.nodes import Node
from gridhand.core.model.resources import Resources


def merge_declared(declared: Node, found: Node) -> Node:
    """Return the node as it counts: declared amounts cap what was found, others are added.

    Labels, price and address are those declared. Devices are those found, at most as many as
    declared; if none were found they are those declared. Health is that of the machine.
    """
    limits = {
        name: min(amount, declared.capacity[name]) if name in declared.capacity else amount
        for name, amount in found.capacity.parts().items()
    }
    gpus = found.gpus[: len(declared.gpus) or None] or declared.gpus
    return replace(
        found,
        capacity=Resources(declared.capacity.parts() | limits),
        gpus=gpus,
        labels={**found.labels, **declared.labels},
        price=declared.price or found.price,
        address=declared.address or found.address,
    )


def merge_all(nodes: Iterable[Node], found: Iterable[Node]) -> list[Node]:
    """Return declared nodes, each merged with what was found on it if it is one of `found`."""
    reports = {node.name: node for node in found}
    return [merge_declared(node, reports.get(node.name, node)) for node in nodes]
