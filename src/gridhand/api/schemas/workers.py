"""The bodies that the routes of external workers take: strict and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gridhand.api.schemas.ledger import (
    AllocationIdField,
    JobIdField,
    NodeRow,
    Strict,
)
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Node

MOST_ATTEMPTS = 10_000
MOST_PROBLEMS = 1000
LONGEST_WAIT_S = 30.0
_LONGEST_TEXT = 4000

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Text = Annotated[str, Field(max_length=_LONGEST_TEXT)]
AttemptNumber = Annotated[int, Field(ge=1, le=2**31)]
Numbers = Annotated[list[Count], Field(max_length=MOST_ATTEMPTS)]
SessionText = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
ReasonWord = Annotated[str, Field(max_length=40)]


class EndBody(Strict):
    """How an attempt ended."""

    reason: ReasonWord
    message: Text = ""
    code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=128)] | None = None
    peak_bytes: Count | None = None
    ran_ms: Count | None = None
    stdout_bytes: Count = 0
    stderr_bytes: Count = 0
    stopping: ReasonWord | None = None
    ago_ms: Count = 0


class AttemptBody(Strict):
    """The state of one attempt."""

    job: JobIdField
    attempt: AttemptNumber
    fence: AllocationIdField | None
    state: Literal["running", "ended"]
    pid: Count | None = None
    begun_ms: Count | None = None
    ran_ms: Count | None = None
    stopping: ReasonWord | None = None
    message: Text | None = None
    end: EndBody | None = None

    @model_validator(mode="after")
    def _ends_if_ended(self) -> Self:
        if (self.state == "ended") != (self.end is not None):
            raise ValueError("give end for an attempt that has ended, and only then")
        return self


Attempts = Annotated[list[AttemptBody], Field(max_length=MOST_ATTEMPTS)]


class ProblemBody(Strict):
    message: Text
    hint: Text
    device: Annotated[str, Field(max_length=200)] = ""


Problems = Annotated[list[ProblemBody], Field(max_length=MOST_PROBLEMS)]


class JoinBody(Strict):
    """A worker that joins: its node, and all that it knows."""

    row: NodeRow
    problems: Problems = Field(default_factory=list)
    incarnation: Count
    cluster: Annotated[str, Field(max_length=200)] = ""
    epoch: Count = 0
    attempts: Attempts = Field(default_factory=list)


class OrdersBody(Strict):
    """A request for orders: which are carried out, and which the worker is busy with."""

    session: SessionText
    done: Numbers = Field(default_factory=list)
    busy: Numbers = Field(default_factory=list)
    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 0.0


class LeaveBody(Strict):
    """A worker that ends: it takes no more work, and then it has `stopped` its jobs."""

    session: SessionText
    stopped: bool = False


class NodeFound(Strict):
    """A node as it is found now."""

    row: NodeRow
    problems: Problems = Field(default_factory=list)


class ReportsBody(Strict):
    """Attempts that have begun or ended, answers to signals, and what the node has now."""

    session: SessionText
    attempts: Attempts = Field(default_factory=list)
    sent: dict[Annotated[str, Field(pattern="^[0-9]{1,18}$")], bool] = Field(default_factory=dict)
    node: NodeFound | None = None

    def answers(self) -> dict[int, bool]:
        return {int(number): sent for number, sent in self.sent.items()}


def plain(bodies: Sequence[Strict]) -> list[dict[str, Any]]:
    """Return bodies as plain data."""
    return [body.model_dump(exclude_none=True) for body in bodies]


def node_named(row: NodeRow, name: NodeName) -> Node:
    """Return the node of a worker; its token says what it is called."""
    described: dict[str, Any] = {**row.model_dump(), "name": name}
    return NodeRow.model_validate(described).node()
