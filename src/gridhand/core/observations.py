"""Every observation, as plain data: it changes what the keeper has in memory, and is not stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gridhand.core.jobs.job import Job
from gridhand.core.model.host_use import HostUse
from gridhand.core.model.names import AttemptKey, JobId, NodeName
from gridhand.core.operations import Observation, operation
from gridhand.core.queue.named_queues import NamedQueues


@operation
class UseStrategy(Observation[None]):
    """Rank nodes by another strategy from now on; None stands for the default."""

    strategy: Any


@operation
class UseGranularity(Observation[None]):
    """Round the memory of new requests up to whole steps from now on; 0 leaves them as they are."""

    step_bytes: int


@operation
class UseQueues(Observation[None]):
    """Apply these named queues and quotas from now on. Jobs that wait or run stay as they are."""

    queues: NamedQueues


@operation
class AwaitExit(Observation[None]):
    """Give these nodes nothing new while attempts that were given up may have processes there."""

    names: tuple[NodeName, ...]
    attempts: tuple[AttemptKey, ...]


@operation
class NoteExit(Observation[None]):
    """Take note that no process is left of attempts that were given up: their nodes may open."""

    attempts: tuple[AttemptKey, ...]


@operation
class SetForeignUse(Observation[None]):
    """Take note of the memory that processes of others use on each device of a node."""

    node: NodeName
    used: Mapping[str, int]


@operation
class SetHostUse(Observation[None]):
    """Plan around the CPU and memory that processes of others use on a machine.

    `machine` is what the machine has: others first use what is no part of the node.
    """

    node: NodeName
    used: HostUse
    machine: Mapping[str, int]


class Spawned(NamedTuple):
    """An attempt whose process exists, and for how long it has run."""

    job: JobId
    attempt: int
    ran_ms: int


@operation
class NoteSpawned(Observation[list[Job]]):
    """Take note that the processes of attempts exist; the reply has the jobs it was new of.

    This is not stored: a new controller is told of them again.
    """

    spawned: tuple[Spawned, ...]


@operation
class SkipJobNumbers(Observation[None]):
    """Give no new job a number up to this one: a node still knows jobs by these numbers."""

    up_to: int
