"""Pickles that name modules and classes as earlier versions did.

A detached call and its result stay on disk for weeks, and a program may still run an earlier
version after the package was upgraded under it. Both name what they refer to by module and class.
The tables hold the names that such pickles can contain: the public classes and functions, what
these consist of, and the functions with which ours are rebuilt.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

_MODULES = {
    "core.assignment": "core.graph.assign",
    "core.changes": "core.explain.suggestions",
    "core.explanation": "core.explain.explanation",
    "core.gpus": "core.model.gpus",
    "core.graph": "core.graph.graph",
    "core.graphs": "core.graph.function",
    "core.nodes": "core.model.nodes",
    "core.refusals": "core.explain.refusal",
    "core.requests": "core.model.requests",
    "core.resources": "core.model.resources",
    "core.views": "core.ledger.status",
    "library.allocation": "library.allocation_handle",
    "library.executor": "library.functions.executor",
    "library.graphresult": "library.graphs.result",
    "library.taskfuture": "library.functions.future",
    "library.tasks": "library.functions.task",
    "worker.finding": "worker.by_name",
    "worker.sharing": "worker.main_globals",
    "worker.stage": "worker.stage_worker",
    "worker.values": "worker.encoded_values",
}
_CLASSES = {
    ("core.changes", "Change"): "Suggestion",
    ("core.gpus", "GpuAsk"): "GpuRequest",
    ("worker.stage", "Work"): "StageWork",
}
_PACKAGE = "gridhand."


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        old = module.removeprefix(_PACKAGE)
        if module.startswith(_PACKAGE) and old in _MODULES:
            module, name = _PACKAGE + _MODULES[old], _CLASSES.get((old, name), name)
        return super().find_class(module, name)


def loads(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """Return the value of a pickle that this version or an earlier one has made."""
    try:
        return pickle.loads(data, buffers=buffers)
    except (AttributeError, ImportError) as error:
        if _PACKAGE not in str(error):  # it lacks something of the user's
            raise
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()
