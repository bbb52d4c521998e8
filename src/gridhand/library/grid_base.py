"""The state and the two helpers that every method of `Grid` is written with.

A method of `Grid` builds one operation and passes it to `_run` or `_run_then`. `AsyncGrid` has the
same attributes, but its `_run` and `_run_then` return awaitables. So one body serves both classes:
see `gridhand.library.async_wrappers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gridhand.core.operations import Operation, Reply

if TYPE_CHECKING:
    from gridhand.library.backend import Backend
    from gridhand.library.functions.function_runner import FunctionRunner
    from gridhand.library.ledger_methods import LedgerMethods

Result = TypeVar("Result")


class GridBase:
    """A backend, the operations of one owner on it, and the runner of its functions."""

    _backend: Backend
    _operations: LedgerMethods
    _caller: FunctionRunner | None

    def _run(self, operation: Operation[Reply]) -> Reply:
        """Run `operation` and return its reply."""
        return self._backend.run(operation)

    def _run_then(self, operation: Operation[Reply], make: Callable[[Reply], Result]) -> Result:
        """Run `operation` and return what `make` makes of its reply."""
        return make(self._backend.run(operation))
