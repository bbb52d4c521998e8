"""Gridhand gives every piece of work the machine it needs.

The names in `__all__` are the public interface; everything else may move. Each name is imported
when it is first used, so that a program that only needs `Resources`, and every `grid` command,
starts without numpy and SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridhand.config.cluster_config import ClusterConfig
    from gridhand.core.errors import (
        AllocationBusy,
        CallFailed,
        CallTimeout,
        CircularCollocation,
        CircularDependency,
        ControllerStopping,
        ControllerUnavailable,
        DuplicateFunction,
        FunctionFailed,
        GraphError,
        GraphTimeout,
        GridClosed,
        GridError,
        HolderBusy,
        ImpossibleCollocation,
        InvalidAmount,
        InvalidDependency,
        InvalidInput,
        InvalidName,
        InvalidRequest,
        JobRefused,
        JobsFull,
        JobsRunning,
        LeaseExpired,
        MoveRefused,
        NeverFits,
        NodeElsewhere,
        NodeInUse,
        NodeSuperseded,
        NodeTaken,
        NoRoom,
        NotAssigned,
        NotYours,
        OperationReused,
        OutcomeUnknown,
        OutOfMemory,
        OverLimit,
        QueueFull,
        QueueNotAllowed,
        QuotaExceeded,
        ReservationExpired,
        ScopeTooNarrow,
        StoreDamaged,
        StoreError,
        StoreFenced,
        StoreFull,
        StoreInvalid,
        StoreOwned,
        StoreRemoved,
        StoreUnavailable,
        StrategyFailed,
        TokenRefused,
        TooManyRequests,
        UnknownAllocation,
        UnknownCall,
        UnknownFile,
        UnknownFunction,
        UnknownJob,
        UnknownNode,
        UnknownQueue,
        UnknownResource,
        UnknownToken,
        VersionMismatch,
        WorkerLost,
        WorkerUnknown,
    )
    from gridhand.core.explain.explanation import Explanation
    from gridhand.core.graph.assign import assign
    from gridhand.core.graph.function import Collocated, Function
    from gridhand.core.graph.graph import Graph
    from gridhand.core.model.gpus import Gpu
    from gridhand.core.model.nodes import Node
    from gridhand.core.model.requests import Request
    from gridhand.core.model.resources import Resources
    from gridhand.library.allocation_handle import Allocation
    from gridhand.library.async_grid import AsyncGrid
    from gridhand.library.functions.executor import GridExecutor
    from gridhand.library.functions.future import TaskFuture
    from gridhand.library.functions.task import Task, task
    from gridhand.library.graphs.result import GraphResult
    from gridhand.library.grid import Grid

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "AllocationBusy",
    "AsyncGrid",
    "CallFailed",
    "CallTimeout",
    "CircularCollocation",
    "CircularDependency",
    "ClusterConfig",
    "Collocated",
    "ControllerStopping",
    "ControllerUnavailable",
    "DuplicateFunction",
    "Explanation",
    "Function",
    "FunctionFailed",
    "Gpu",
    "Graph",
    "GraphError",
    "GraphResult",
    "GraphTimeout",
    "Grid",
    "GridClosed",
    "GridError",
    "GridExecutor",
    "HolderBusy",
    "ImpossibleCollocation",
    "InvalidAmount",
    "InvalidDependency",
    "InvalidInput",
    "InvalidName",
    "InvalidRequest",
    "JobRefused",
    "JobsFull",
    "JobsRunning",
    "LeaseExpired",
    "MoveRefused",
    "NeverFits",
    "NoRoom",
    "Node",
    "NodeElsewhere",
    "NodeInUse",
    "NodeSuperseded",
    "NodeTaken",
    "NotAssigned",
    "NotYours",
    "OperationReused",
    "OutOfMemory",
    "OutcomeUnknown",
    "OverLimit",
    "QueueFull",
    "QueueNotAllowed",
    "QuotaExceeded",
    "Request",
    "ReservationExpired",
    "Resources",
    "ScopeTooNarrow",
    "StoreDamaged",
    "StoreError",
    "StoreFenced",
    "StoreFull",
    "StoreInvalid",
    "StoreOwned",
    "StoreRemoved",
    "StoreUnavailable",
    "StrategyFailed",
    "Task",
    "TaskFuture",
    "TokenRefused",
    "TooManyRequests",
    "UnknownAllocation",
    "UnknownCall",
    "UnknownFile",
    "UnknownFunction",
    "UnknownJob",
    "UnknownNode",
    "UnknownQueue",
    "UnknownResource",
    "UnknownToken",
    "VersionMismatch",
    "WorkerLost",
    "WorkerUnknown",
    "assign",
    "task",
]

# The module of each public name; most names are errors.
_MODULES = dict.fromkeys(__all__, "gridhand.core.errors") | {
    "Allocation": "gridhand.library.allocation_handle",
    "AsyncGrid": "gridhand.library.async_grid",
    "ClusterConfig": "gridhand.config.cluster_config",
    "Collocated": "gridhand.core.graph.function",
    "Explanation": "gridhand.core.explain.explanation",
    "Function": "gridhand.core.graph.function",
    "Gpu": "gridhand.core.model.gpus",
    "Graph": "gridhand.core.graph.graph",
    "GraphResult": "gridhand.library.graphs.result",
    "Grid": "gridhand.library.grid",
    "GridExecutor": "gridhand.library.functions.executor",
    "Node": "gridhand.core.model.nodes",
    "Request": "gridhand.core.model.requests",
    "Resources": "gridhand.core.model.resources",
    "Task": "gridhand.library.functions.task",
    "TaskFuture": "gridhand.library.functions.future",
    "assign": "gridhand.core.graph.assign",
    "task": "gridhand.library.functions.task",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The value is kept in the module, so this function runs once for each name.
    from importlib import import_module

    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
