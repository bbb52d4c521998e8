"""The bodies and replies of `/resources`: the original calls, their fields and their units."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gridhand.api.schemas.ledger import Name, Names, Seconds, Strict, Written, read_request
from gridhand.core.command_list import MOST_COMMANDS
from gridhand.core.errors import InvalidInput
from gridhand.core.ledger.allocations import AllocationMove, AllocationState, Lifetime, Terms
from gridhand.core.model.names import check_label
from gridhand.core.model.quality import AUTO, LEVELS, scaled_duration
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, MoveAllocation

DEFAULT_TTL_S = 3600.0
SHORTEST_ESTIMATE_S = 60.0
RESERVATION_S = 60.0
_LONGEST_AT = next(iter(LEVELS))  # the level that takes the most time

Item = TypeVar("Item", bound=BaseModel)


class ResourceRequest(Strict):
    """Resources for a task, with the fields of the original `ResourceAllocationRequest`."""

    requirements: Written = Field(
        description="A ResourceSpec such as {'cpu_cores': 2, 'memory_gb': 4}, or our own names.",
        examples=[{"cpu_cores": 2, "memory_gb": 4}],
    )
    task_id: Name | None = Field(
        None, description="The holder: the same task that asks again gets the same allocation."
    )
    quality: Name | None = Field(None, description="draft, standard, high, ultra or auto.")
    preferred_worker: Name | None = Field(None, description="A node to use if there is room.")
    exclude_workers: Names | None = Field(None, description="Nodes that are never used.")
    gpu_type: Name | None = Field(None, description="The model of the GPUs.")
    duration_estimate: Seconds | None = Field(None, description="Expected seconds at standard.")
    ttl: Seconds | None = Field(None, description="Seconds until the lease ends.")

    def asked(self) -> Request:
        wanted: dict[str, Any] = {
            "quality": self.quality,
            "prefer": [self.preferred_worker] if self.preferred_worker else (),
            "exclude": self.exclude_workers or (),
            "gpu_model": self.gpu_type,
        }
        given = {name: value for name, value in wanted.items() if value}
        amounts = {name: value for name, value in self.requirements.items() if value is not None}
        return read_request({"resources": amounts, **given})

    def ttl_s(self) -> float:
        """Return the time of the lease: as given, else from the estimate, else an hour."""
        if self.ttl is not None:
            return self.ttl
        if self.duration_estimate is None:
            return DEFAULT_TTL_S
        level = _LONGEST_AT if self.quality == AUTO else self.quality or "standard"
        return max(SHORTEST_ESTIMATE_S, 2 * scaled_duration(self.duration_estimate, level))

    def allocation(self, owner: str, op_id: str | None = None) -> Allocate:
        """Return the command that grants a lease."""
        asked = self.asked()  # first: it says which quality there is
        terms = Terms(owner, self._holder(), lifetime=Lifetime.LEASE, ttl_ms=_ms(self.ttl_s()))
        return Allocate(owner, op_id, (asked,), terms)

    def reservation(self, owner: str, op_id: str | None = None) -> Allocate:
        """Return the command that reserves, until it is confirmed or its time is over."""
        ttl_ms = _ms(RESERVATION_S if self.ttl is None else self.ttl)
        terms = Terms(owner, self._holder(), AllocationState.RESERVED, ttl_ms=ttl_ms)
        return Allocate(owner, op_id, (self.asked(),), terms)

    def _holder(self) -> str | None:
        return None if self.task_id is None else check_label(self.task_id, "task_id")


class LeaseMove(Strict):
    """An allocation to release, by its id or by its task."""

    allocation_id: Name | None = None
    task_id: Name | None = None

    def command(self, owner: str, move: AllocationMove, op_id: str | None = None) -> MoveAllocation:
        if (self.allocation_id is None) == (self.task_id is None):
            raise InvalidInput("allocation_id", self.allocation_id, "either it or task_id")
        id = self.allocation_id or self.task_id or ""
        return MoveAllocation(owner, op_id, id, move, self._ttl_ms(move))

    def _ttl_ms(self, move: AllocationMove) -> int | None:
        return None


class TimedMove(LeaseMove):
    """An allocation to confirm or renew; `ttl` are the seconds until the lease ends then."""

    ttl: Seconds | None = None

    def _ttl_ms(self, move: AllocationMove) -> int | None:
        if self.ttl is None:  # renewed, it lasts as long as before
            return _ms(DEFAULT_TTL_S) if move is AllocationMove.CONFIRM else None
        return _ms(self.ttl)


class Several(Strict, Generic[Item]):
    """Up to 1,000 items, decided in order and committed together."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MOST_COMMANDS)]


# ---- replies, for the description of the API


class Spec(BaseModel):
    """A `ResourceSpec`. Other resources stand beside these by name."""

    model_config = ConfigDict(extra="allow")

    cpu_cores: float
    memory_gb: float
    gpu_count: float
    gpu_memory_gb: float
    disk_gb: float
    network_bandwidth_mbps: float
    gpu_compute_capability: str | None


class RefusalReply(BaseModel):
    """The reasons against each node, and what to change."""

    code: str
    text: str
    hint: str
    reasons: dict[str, list[str]] = {}


class LeaseReply(BaseModel):
    """A granted or moved allocation, or why there is none."""

    success: bool
    error: str | None = None
    explanation: RefusalReply | None = None
    allocation_id: str | None = None
    worker_id: str | None = None
    resources: Spec | None = None
    expires_at: str | None = None
    task_id: str | None = None
    state: str | None = None
    gpus: list[str] = []
    quality: str | None = None
    fresh: bool | None = None


class SeveralReply(BaseModel):
    """The outcome of each item, in order."""

    results: list[LeaseReply]


class Utilization(BaseModel):
    cpu: float
    memory: float
    gpu: float


class WorkerStatus(BaseModel):
    """A node, and how much of it is allocated, in percent as well."""

    worker_id: str
    total: Spec
    allocated: Spec
    available: Spec
    utilization: Utilization
    health: str
    draining: bool


class SummaryStatus(BaseModel):
    total: Spec
    allocated: Spec
    available: Spec
    overall_utilization: Utilization


class ResourceStatus(BaseModel):
    """The nodes and their sums."""

    workers: list[WorkerStatus]
    summary: SummaryStatus


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
