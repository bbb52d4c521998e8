"""Requests as plain data and back, amounts in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.requests import Request, Tie
from gridhand.core.model.resources import Resources

Row = Mapping[str, Any]


def request_row(request: Request) -> dict[str, Any]:
    """Return the request as plain data, without fields that are None or empty."""
    row = {
        "gpu": None if request.gpu is None else _gpu_request_row(request.gpu),
        "node": request.node,
        "prefer": list(request.prefer),
        "exclude": sorted(request.exclude),
        "labels": dict(request.labels),
        "quality": request.quality,
        "alternatives": [request_row(choice) for choice in request.alternatives],
        "together_with": request.together_with,
        "apart_from": list(request.apart_from),
        "strategy": request.strategy,
        "tied_to": None if request.tied_to is None else str(request.tied_to),
    }
    given = {name: value for name, value in row.items() if value}
    return {"amounts": request.amounts.parts(), **given}


def _gpu_request_row(gpu: GpuRequest) -> dict[str, Any]:
    row = {
        "devices": gpu.devices,
        "share": gpu.share,
        "memory": gpu.memory_bytes,
        "model": gpu.model,
        "capability": None if gpu.capability is None else list(gpu.capability),
    }
    return {name: value for name, value in row.items() if value is not None}


def request_from_row(row: Row) -> Request:
    gpu = row.get("gpu")
    return Request(
        amounts=Resources(row["amounts"]),
        gpu=None if gpu is None else _gpu_request_from_row(gpu),
        node=row.get("node"),
        prefer=tuple(row.get("prefer", ())),
        exclude=frozenset(row.get("exclude", ())),
        labels=dict(row.get("labels", {})),
        quality=row.get("quality"),
        alternatives=tuple(map(request_from_row, row.get("alternatives", ()))),
        together_with=row.get("together_with"),
        apart_from=tuple(row.get("apart_from", ())),
        strategy=row.get("strategy"),
        tied_to=None if (tie := row.get("tied_to")) is None else Tie(tie),
    )


def _gpu_request_from_row(row: Row) -> GpuRequest:
    capability = row.get("capability")
    return GpuRequest(
        devices=row["devices"],
        share=row["share"],
        memory_bytes=row.get("memory"),
        model=row.get("model"),
        capability=None if capability is None else tuple(capability),
    )
