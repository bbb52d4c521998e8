"""Heartbeats of nodes that are served from elsewhere, the answers to them, and what follows."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Health


class Heartbeat(NamedTuple):
    """A sign of life from the agent of a node.

    `incarnation` is higher at every start of the agent, `sequence` with every heartbeat it sends,
    repeats included. `boot_id` is another one after every boot of the machine. `running` has the
    allocations for which anything runs there.
    """

    node: NodeName
    incarnation: int
    sequence: int
    boot_id: str
    running: frozenset[str] = frozenset()


class Receipt(StrEnum):
    """Whether a heartbeat counts. Only a `taken` one may put off the agent's self-fencing."""

    TAKEN = "taken"
    OLD = "old"  # it came twice, or after a later one
    SUPERSEDED = "superseded"  # an agent with a higher incarnation serves the node
    UNCONFIRMED = "unconfirmed"  # the store has not answered for too long: we may own it no longer


class BeatAnswer(NamedTuple):
    """The answer to a heartbeat. `stop` is what runs on the node and no longer belongs there."""

    receipt: Receipt
    incarnation: int  # of the agent that serves the node
    stop: tuple[str, ...] = ()


class Recorded(NamedTuple):
    """The record that the ledger has of a node that is served from elsewhere.

    `ceiling` is the best health that an administrator lets it have. `boot_id` is "" until the
    first heartbeat.
    """

    health: Health
    ceiling: Health = Health.UP
    boot_id: str = ""


class HealthChange(NamedTuple):
    """A change to record in the ledger, if the node is still as it `was`."""

    node: NodeName
    was: Health
    health: Health
    why: str
    boot_id: str
