"""Answers as plain data and back: what is seen of nodes, why nothing fits, and what would.

An answer that has come over a connection is the same value as one of a keeper in this process:
amounts in parts, requests in full, nothing rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gridhand.core.explain.explanation import Explanation, Holding, NearMiss, NodeGroup
from gridhand.core.explain.refusal import Refusal
from gridhand.core.explain.suggestions import Suggestion
from gridhand.core.ledger.status import GpuStatus, NodeStatus, Status
from gridhand.core.model.resources import UNIT, Resources
from gridhand.core.rows.ledger import node_from_row, node_row
from gridhand.core.rows.requests import request_from_row, request_row

Row = Mapping[str, Any]


def node_status_row(status: NodeStatus) -> dict[str, Any]:
    return {
        "node": node_row(status.node),
        "total": status.total.parts(),
        "allocated": status.allocated.parts(),
        "available": status.available.parts(),
        "gpus": [_gpu_status_row(gpu) for gpu in status.gpus],
        "overcommitted": status.overcommitted,
        "allocations": list(status.allocations),
        "foreign": status.foreign.parts(),
    }


def _gpu_status_row(status: GpuStatus) -> dict[str, Any]:
    return {
        "gpu": status.gpu.id,
        "share": round(status.share * UNIT),
        "memory_bytes": status.memory_bytes,
        "exclusive": status.exclusive,
        "foreign_bytes": status.foreign_bytes,
        "free_memory_bytes": status.free_memory_bytes,
    }


def node_status_from_row(row: Row) -> NodeStatus:
    node = node_from_row(row["node"])
    devices = {gpu.id: gpu for gpu in node.gpus}
    return NodeStatus(
        node=node,
        total=Resources(row["total"]),
        allocated=Resources(row["allocated"]),
        available=Resources(row["available"]),
        gpus=tuple(
            GpuStatus(**{**gpu, "gpu": devices[gpu["gpu"]], "share": gpu["share"] / UNIT})
            for gpu in row["gpus"]
        ),
        overcommitted=row["overcommitted"],
        allocations=tuple(row["allocations"]),
        foreign=Resources(row.get("foreign", {})),
    )


def added_up(nodes: Iterable[NodeStatus]) -> Status:
    """The cluster that these nodes are."""
    seen, none = tuple(nodes), Resources()
    return Status(
        nodes=seen,
        total=sum((node.total for node in seen), none),
        allocated=sum((node.allocated for node in seen), none),
        available=sum((node.available for node in seen), none),
    )


# ---- explanations


def explanation_row(found: Explanation) -> dict[str, Any]:
    return {
        "asked": request_row(found.asked),
        "about": request_row(found.about),
        "alternative": found.alternative,
        "node": found.node,
        "gpus": list(found.gpus),
        "nodes": found.nodes,
        "fitting": found.fitting,
        "groups": [group.to_dict() for group in found.groups],
        "nearest": [_miss_row(miss) for miss in found.nearest],
        "changes": [_change_row(change) for change in found.changes],
        "ever": found.ever,
        "never_because": list(found.never_because),
        "holders": [_holding_row(one) for one in found.holders],
        "more_holders": found.more_holders,
        "starts_in_ms": found.starts_in_ms,
        "starts_on": found.starts_on,
    }


def _miss_row(miss: NearMiss) -> dict[str, Any]:
    return {**miss.to_dict(), "shortfall": miss.shortfall}


def _holding_row(one: Holding) -> dict[str, Any]:
    return {**one.to_dict(), "amounts": one.amounts.parts()}


def _change_row(change: Suggestion) -> dict[str, Any]:
    return {
        "field": change.field,
        "before": change.before,
        "after": change.after,
        "node": change.node,
        "size": change.size,
        "text": change.text,
        "request": request_row(change.request),
    }


def explanation_from_row(row: Row) -> Explanation:
    return Explanation(
        asked=request_from_row(row["asked"]),
        about=request_from_row(row["about"]),
        alternative=row["alternative"],
        node=row["node"],
        gpus=tuple(row["gpus"]),
        nodes=row["nodes"],
        fitting=row["fitting"],
        groups=tuple(map(_group, row["groups"])),
        nearest=tuple(map(_miss, row["nearest"])),
        changes=tuple(map(_change, row["changes"])),
        ever=row["ever"],
        never_because=tuple(row["never_because"]),
        holders=tuple(map(_holding, row["holders"])),
        more_holders=row["more_holders"],
        starts_in_ms=row.get("starts_in_ms"),
        starts_on=row.get("starts_on"),
    )


def _group(row: Row) -> NodeGroup:
    lists = {name: tuple(row[name]) for name in ("lacking", "reasons", "nodes")}
    return NodeGroup(**{**row, **lists})


def _miss(row: Row) -> NearMiss:
    return NearMiss(row["node"], tuple(row["reasons"]), row["shortfall"])


def _holding(row: Row) -> Holding:
    return Holding(**{**row, "amounts": Resources(row["amounts"])})


def _change(row: Row) -> Suggestion:
    return Suggestion(**{**row, "request": request_from_row(row["request"])})


# ---- refusals


def refusal_row(refusal: Refusal) -> dict[str, Any]:
    """A refusal with its reasons as of now."""
    return {"asked": request_row(refusal.asked), **refusal.facts()}


def refusal_from_row(row: Row) -> Refusal:
    told = {name: value for name, value in row.items() if name != "asked"}
    return Refusal.told(request_from_row(row["asked"]), told)
