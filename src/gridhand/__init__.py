"""Gridhand gives every piece of work the machine it needs.

The names in `__all__` are the interface; anything else may move. Each is imported when it is
first used: a program that wants `Resources`, and every `grid` command, is spared numpy and
SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridhand.core.assignment import assign
    from gridhand.core.errors import (
        AllocationBusy,
        CallFailed,
        CallTimeout,
        CircularCollocation,
        CircularDependency,
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
        NodeInUse,
        NoRoom,
        NotAssigned,
        NotYours,
        OperationReused,
        OutcomeUnknown,
        OutOfMemory,
        ReservationExpired,
        StoreDamaged,
        StoreError,
        StoreFenced,
        StoreFull,
        StoreInvalid,
        StoreOwned,
        StoreUnavailable,
        UnknownAllocation,
        UnknownCall,
        UnknownFunction,
        UnknownJob,
        UnknownNode,
        UnknownResource,
        VersionMismatch,
        WorkerLost,
    )
    from gridhand.core.explanation import Explanation
    from gridhand.core.gpus import Gpu
    from gridhand.core.graph import Graph
    from gridhand.core.graphs import Collocated, Function
    from gridhand.core.nodes import Node
    from gridhand.core.requests import Request
    from gridhand.core.resources import Resources
    from gridhand.library.allocation import Allocation
    from gridhand.library.async_grid import AsyncGrid
    from gridhand.library.executor import GridExecutor
    from gridhand.library.graphresult import GraphResult
    from gridhand.library.grid import Grid
    from gridhand.library.taskfuture import TaskFuture
    from gridhand.library.tasks import Task, task

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "AllocationBusy",
    "AsyncGrid",
    "CallFailed",
    "CallTimeout",
    "CircularCollocation",
    "CircularDependency",
    "Collocated",
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
    "NodeInUse",
    "NotAssigned",
    "NotYours",
    "OperationReused",
    "OutOfMemory",
    "OutcomeUnknown",
    "Request",
    "ReservationExpired",
    "Resources",
    "StoreDamaged",
    "StoreError",
    "StoreFenced",
    "StoreFull",
    "StoreInvalid",
    "StoreOwned",
    "StoreUnavailable",
    "Task",
    "TaskFuture",
    "UnknownAllocation",
    "UnknownCall",
    "UnknownFunction",
    "UnknownJob",
    "UnknownNode",
    "UnknownResource",
    "VersionMismatch",
    "WorkerLost",
    "assign",
    "task",
]

_MODULES = {
    "Allocation": "gridhand.library.allocation",
    "AllocationBusy": "gridhand.core.errors",
    "AsyncGrid": "gridhand.library.async_grid",
    "CallFailed": "gridhand.core.errors",
    "CallTimeout": "gridhand.core.errors",
    "CircularCollocation": "gridhand.core.errors",
    "CircularDependency": "gridhand.core.errors",
    "Collocated": "gridhand.core.graphs",
    "ControllerUnavailable": "gridhand.core.errors",
    "DuplicateFunction": "gridhand.core.errors",
    "Explanation": "gridhand.core.explanation",
    "Function": "gridhand.core.graphs",
    "FunctionFailed": "gridhand.core.errors",
    "Gpu": "gridhand.core.gpus",
    "Graph": "gridhand.core.graph",
    "GraphError": "gridhand.core.errors",
    "GraphResult": "gridhand.library.graphresult",
    "GraphTimeout": "gridhand.core.errors",
    "Grid": "gridhand.library.grid",
    "GridClosed": "gridhand.core.errors",
    "GridError": "gridhand.core.errors",
    "GridExecutor": "gridhand.library.executor",
    "HolderBusy": "gridhand.core.errors",
    "ImpossibleCollocation": "gridhand.core.errors",
    "InvalidAmount": "gridhand.core.errors",
    "InvalidDependency": "gridhand.core.errors",
    "InvalidInput": "gridhand.core.errors",
    "InvalidName": "gridhand.core.errors",
    "InvalidRequest": "gridhand.core.errors",
    "JobRefused": "gridhand.core.errors",
    "JobsFull": "gridhand.core.errors",
    "JobsRunning": "gridhand.core.errors",
    "LeaseExpired": "gridhand.core.errors",
    "MoveRefused": "gridhand.core.errors",
    "NeverFits": "gridhand.core.errors",
    "NoRoom": "gridhand.core.errors",
    "Node": "gridhand.core.nodes",
    "NodeInUse": "gridhand.core.errors",
    "NotAssigned": "gridhand.core.errors",
    "NotYours": "gridhand.core.errors",
    "OperationReused": "gridhand.core.errors",
    "OutcomeUnknown": "gridhand.core.errors",
    "OutOfMemory": "gridhand.core.errors",
    "Request": "gridhand.core.requests",
    "ReservationExpired": "gridhand.core.errors",
    "Resources": "gridhand.core.resources",
    "StoreDamaged": "gridhand.core.errors",
    "StoreError": "gridhand.core.errors",
    "StoreFenced": "gridhand.core.errors",
    "StoreFull": "gridhand.core.errors",
    "StoreInvalid": "gridhand.core.errors",
    "StoreOwned": "gridhand.core.errors",
    "StoreUnavailable": "gridhand.core.errors",
    "Task": "gridhand.library.tasks",
    "TaskFuture": "gridhand.library.taskfuture",
    "UnknownAllocation": "gridhand.core.errors",
    "UnknownCall": "gridhand.core.errors",
    "UnknownFunction": "gridhand.core.errors",
    "UnknownJob": "gridhand.core.errors",
    "UnknownNode": "gridhand.core.errors",
    "UnknownResource": "gridhand.core.errors",
    "VersionMismatch": "gridhand.core.errors",
    "WorkerLost": "gridhand.core.errors",
    "assign": "gridhand.core.assignment",
    "task": "gridhand.library.tasks",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported here, and kept in the module, so that this function is asked once for each name.
    from importlib import import_module

    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
