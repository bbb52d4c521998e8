"""The bodies that the routes of the ledger and of sessions take: strict and bounded.

Amounts come as people write them (`request`, `resources`), or as the exact parts of rows
(`request_row`, `row`), which is how our own library sends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from fastapi import Header
from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from gridhand.core.errors import InvalidInput
from gridhand.core.ledger.allocations import AllocationState, Lifetime, Terms
from gridhand.core.liveness.heartbeats import Heartbeat
from gridhand.core.model.call_record import LONGEST_RUN
from gridhand.core.model.gpus import MOST_DEVICES
from gridhand.core.model.names import AllocationId, JobId, NodeName, check_label
from gridhand.core.model.nodes import MOST_LABELS, Node
from gridhand.core.model.requests import MOST_NODES, GangLayout, Request
from gridhand.core.model.resources import MOST, MOST_NAMES, UNIT, check_name
from gridhand.core.rows.ledger import node_from_row
from gridhand.core.rows.requests import request_from_row

LONGEST_S = 10 * 366 * 86_400
LONGEST_WAIT_S = 45.0  # a client that waits longer asks again, so no connection seems dead
MOST_IN_A_GROUP = 1000
MOST_REGISTERED = 100_000
MOST_HELD = 100_000
_MOST_CHOICES = 100  # alternatives, at each level of quality

Name = Annotated[str, Field(min_length=1, max_length=200)]
Parts = Annotated[int, Field(ge=0, le=MOST)]
Seconds = Annotated[float, Field(ge=0.001, le=LONGEST_S, allow_inf_nan=False)]
Amounts = Annotated[dict[str, Parts], Field(max_length=MOST_NAMES)]
Labels = Annotated[dict[str, str], Field(max_length=MOST_LABELS)]
Names = Annotated[list[Name], Field(max_length=MOST_NODES)]
# Documented by its usual members only: everything else that a request may have is read by the core.
_AMOUNT = {"type": ["number", "string"], "examples": [2, 0.5, "4GB"]}
_WRITTEN = {
    "type": "object",
    "description": "Amounts by name, as people write them, and where they may be.",
    "properties": dict.fromkeys(("cpu", "memory", "gpu", "gpu_memory", "disk"), _AMOUNT),
    "maxProperties": 200,
}
Written = Annotated[dict[str, Any], Field(max_length=200), WithJsonSchema(_WRITTEN)]
SessionId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
JobIdField = Annotated[JobId, Field(pattern="^[0-9]+(_[0-9]+)?$", max_length=40)]
AllocationIdField = Annotated[AllocationId, Field(min_length=1, max_length=200)]
NodeNameField = Annotated[NodeName, Field(min_length=1, max_length=200)]
RunId = Annotated[str, Field(pattern="^[0-9a-z]+$", max_length=LONGEST_RUN)]
OpId = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]


class Strict(BaseModel):
    """A body without conversions and without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


# ---- requests


class GpuAskRow(Strict):
    devices: int = Field(ge=1, le=MOST_DEVICES)
    share: int = Field(ge=0, le=UNIT)
    memory: Parts | None = None
    model: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    capability: (
        Annotated[list[Annotated[int, Field(ge=0, le=9999)]], Field(max_length=2)] | None
    ) = None


class RequestRow(Strict):
    """A request as `core.rows.requests.request_row` writes it."""

    amounts: Amounts
    gpu: GpuAskRow | None = None
    node: Name | None = None
    prefer: Names = []
    exclude: Names = []
    labels: Labels = {}
    quality: Name | None = None
    alternatives: Annotated[list[RequestRow], Field(max_length=_MOST_CHOICES)] = []
    together_with: Name | None = None
    apart_from: Names = []
    strategy: Name | None = None
    tied_to: Literal["folder", "caller"] | None = None

    def request(self) -> Request:
        return Request.of(request_from_row(self.model_dump()))


def read_request(given: Mapping[str, Any]) -> Request:
    """Read a request as people write it."""
    fields = dict(given)
    amounts = fields.pop("resources", None)
    try:
        return Request.of(amounts, **fields)
    except TypeError as error:  # a name that is not for a resource
        raise InvalidInput("request", sorted(fields), "amounts, and where it may go") from error


class RequestBody(Strict):
    """A request, in one of its two forms."""

    request: Written | None = None
    request_row: RequestRow | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.request is None) == (self.request_row is None):
            raise ValueError("give either request or request_row")
        return self

    def asked(self) -> Request:
        if self.request_row is not None:
            return self.request_row.request()
        return read_request(self.request or {})


class ExplainBody(Strict):
    """An exact request, and the same at lower levels of quality."""

    request_row: RequestRow
    lower_rows: Annotated[list[RequestRow], Field(max_length=_MOST_CHOICES)] = []


def read_explain_body(given: Mapping[str, Any]) -> tuple[Request, tuple[Request, ...]]:
    """Read a request as people write it, or an exact one with its lower levels of quality."""
    if "request_row" not in given:
        return read_request(given), ()
    try:
        body = ExplainBody.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    return body.request_row.request(), tuple(row.request() for row in body.lower_rows)


class FitsBody(RequestBody):
    node: Name | None = None


# ---- allocations


class _AllocationTerms(Strict):
    holder: Name | None = None
    ttl_s: Seconds | None = None
    state: Literal["active", "reserved"] = "active"
    lifetime: Literal["until_released", "lease", "session"] | None = None
    session: SessionId | None = None
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 0.0
    priority: Name = "medium"  # while it waits

    def terms(self, owner: str, layout: GangLayout = GangLayout.ANY) -> Terms:
        if self.holder is not None:
            check_label(self.holder, "holder")
        ttl_ms = None if self.ttl_s is None else round(self.ttl_s * 1000)
        return Terms(
            owner, self.holder, AllocationState(self.state), self._lifetime(), ttl_ms, layout
        )

    def _lifetime(self) -> Lifetime:
        lease = self.state == "active" and self.ttl_s is not None
        meant = "lease" if lease else "session" if self.session else "until_released"
        chosen = self.lifetime or meant
        if self.state == "reserved" and (self.ttl_s is None or chosen == "lease"):
            raise InvalidInput("ttl_s", self.ttl_s, "the seconds until it must be confirmed")
        if (chosen == "lease") != lease:
            raise InvalidInput("lifetime", chosen, "lease with ttl_s, and only with it")
        if (chosen == "session") != (self.session is not None) and not lease:
            raise InvalidInput("session", self.session, "one with lifetime session, and only then")
        return Lifetime(chosen)


class AllocateBody(_AllocationTerms, RequestBody):
    """Resources to hold on one node."""


class GroupBody(_AllocationTerms):
    """Several requests, to hold all or none of them."""

    requests: Annotated[list[Written], Field(max_length=MOST_IN_A_GROUP)] = []
    request_rows: Annotated[list[RequestRow], Field(max_length=MOST_IN_A_GROUP)] = []
    layout: Literal["any", "apart", "together"] = "any"

    def asked(self) -> tuple[Request, ...]:
        if bool(self.requests) == bool(self.request_rows):
            raise InvalidInput("requests", [], "either requests or request_rows")
        written = map(read_request, self.requests)
        return (*written, *(row.request() for row in self.request_rows))


class MoveBody(Strict):
    ttl_s: Seconds | None = None

    def ttl_ms(self) -> int | None:
        return None if self.ttl_s is None else round(self.ttl_s * 1000)


# ---- nodes


class GpuRow(Strict):
    id: Name
    index: int = Field(ge=0, le=2**31)
    model: Annotated[str, Field(max_length=100)]
    memory: Parts
    capability: Annotated[list[Annotated[int, Field(ge=0, le=9999)]], Field(max_length=2)] | None
    health: Literal["ok", "sick", "lost"]


class NodeRow(Strict):
    """A node as `core.rows.ledger.node_row` writes it."""

    name: Name
    capacity: Amounts
    devices: Annotated[list[GpuRow], Field(max_length=MOST_DEVICES)]
    labels: Labels
    price: Parts
    address: Annotated[str, Field(max_length=200)]
    health: Literal["up", "suspect", "down"]
    draining: bool

    def node(self) -> Node:
        for name in self.capacity:
            check_name(name)
        return node_from_row(self.model_dump()).checked()


class NodeBody(Strict):
    """A node as people describe it. `capacity` is another word for `resources`."""

    name: Name
    resources: Written | Annotated[str, Field(max_length=4000)] = {}
    capacity: Written | Annotated[str, Field(max_length=4000)] = {}
    gpus: Annotated[list[Written], Field(max_length=MOST_DEVICES)] | None = None
    labels: Labels = {}
    price: float | Annotated[str, Field(max_length=100)] = 0
    address: Annotated[str, Field(max_length=200)] = ""

    def node(self) -> Node:
        if self.resources and self.capacity:
            raise InvalidInput("capacity", self.capacity, "either capacity or resources")
        return Node.of(
            self.name,
            self.resources or self.capacity,
            gpus=self.gpus or None,
            labels=self.labels,
            price=self.price,
            address=self.address,
        )


class ExactNode(Strict):
    row: NodeRow

    def node(self) -> Node:
        return self.row.node()


class NodesBody(Strict):
    """Nodes to register: several as `nodes`, or the fields of one."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "gpu1", "capacity": {"cpu": 8, "memory": "32GB", "gpu": 2}, "labels": {}},
                {"nodes": [{"name": "n1", "resources": {"cpu": 4}}]},
            ]
        }
    )

    nodes: Annotated[list[NodeBody | ExactNode], Field(max_length=MOST_REGISTERED)]

    @model_validator(mode="before")
    @classmethod
    def _read_one(cls, given: Any) -> Any:
        return {"nodes": [given]} if isinstance(given, dict) and "name" in given else given

    def described(self) -> tuple[Node, ...]:
        nodes = tuple(body.node() for body in self.nodes)
        names = [node.name for node in nodes]
        if len(set(names)) < len(names):
            raise InvalidInput("nodes", names, "each node once")
        return nodes


class HealthBody(Strict):
    health: Literal["up", "suspect", "down"]
    why: Annotated[str, Field(max_length=500)] = ""


class HeartbeatBody(Strict):
    """A sign of life of the agent that serves a node, as `core.liveness` describes it."""

    incarnation: int = Field(ge=0, le=2**63 - 1)
    sequence: int = Field(ge=0, le=2**63 - 1)
    boot_id: str = Field(pattern="^[0-9A-Za-z-]{1,64}$")
    running: Annotated[list[AllocationIdField], Field(max_length=MOST_HELD)]
    usage: Written | None = None  # what the node uses, as its agent has measured it

    def heartbeat(self, node: NodeName) -> Heartbeat:
        running = frozenset(self.running)
        return Heartbeat(node, self.incarnation, self.sequence, self.boot_id, running)


class ForeignBody(Strict):
    used: Annotated[dict[str, Parts], Field(max_length=MOST_DEVICES)]


class PruneBody(Strict):
    older_than_s: Seconds
    most: int = Field(default=5000, ge=1, le=1_000_000)


# ---- sessions


class SessionBody(Strict):
    """A session to open. A client that reconnects names its session and what it held."""

    session: SessionId | None = None
    held: Annotated[list[AllocationIdField], Field(max_length=MOST_HELD)] = []
    jobs: Annotated[list[JobIdField], Field(max_length=MOST_HELD)] = []
    runs: Annotated[list[RunId], Field(max_length=MOST_HELD)] = []


class AttachBody(Strict):
    jobs: Annotated[list[JobIdField], Field(min_length=1, max_length=MOST_HELD)]


def op_id_of(given: str | None) -> str | None:
    """Return the op id, or raise `InvalidInput` if it is not a valid one."""
    return None if given is None else check_label(given, "Idempotency-Key")
