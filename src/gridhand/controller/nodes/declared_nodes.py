"""Declarations by administrators about the machines that report to this controller.

A machine reports itself again at every start. Its declaration is kept in a file of the home, so
that it counts for every later report: caps, extra resources, labels and price, or that the node
was removed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from gridhand.controller.jobs.job_runner import OWNER
from gridhand.core.errors import GridError, InvalidInput, OutcomeUnknown, StoreUnavailable
from gridhand.core.model.declared_node import merge_declared
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import ENGINE_LABEL, Node
from gridhand.core.operations import NodeCommand, Operation, Register, Unregister
from gridhand.core.rows.ledger import node_from_row, node_row
from gridhand.posix.private_files import replace_file, sync_folder


class DeclaredNodes:
    """The declarations about reporting nodes, by name; None for a node that was removed."""

    def __init__(
        self,
        path: str,
        ask: Callable[[Operation[Any]], Awaitable[Any]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called after somebody has registered or removed nodes."""
        self._path = path
        self._ask = ask
        self._changed = changed
        self._declared = _read(path)
        self._found: dict[NodeName, Node] = {}
        self._lock = asyncio.Lock()  # one change or report at a time: refused ones are undone

    async def report(self, found: Node) -> None:
        """Register a node that reports itself as it was declared, unless it was removed."""
        self._found[found.name] = found
        async with self._lock:
            node = self._declared.get(found.name, found)
            if node is not None:
                await self._ask(Register(OWNER, nodes=(merge_declared(node, found),)))

    async def run(self, command: NodeCommand) -> list[Node]:
        """Run a change of nodes, and keep what it declares about those that report."""
        if isinstance(command, Register):
            command = replace(command, found=tuple(self._found.values()))
            declared: dict[NodeName, Node | None] = {node.name: node for node in command.nodes}
            self._refuse_remote(command.nodes)
            return await self._declare(declared, command)
        if isinstance(command, Unregister):
            return await self._declare({command.name: None}, command)
        return list(await self._ask(command))

    def _refuse_remote(self, nodes: Iterable[Node]) -> None:
        """Raise InvalidInput if one of our own machines is declared to be served elsewhere."""
        for node in nodes:
            found = self._found.get(node.name)
            if node.remote and found is not None and not found.remote:
                allowed = f"no such label: {node.name} is served by this controller"
                raise InvalidInput(f"label {ENGINE_LABEL}", node.labels[ENGINE_LABEL], allowed)

    async def _declare(
        self, declared: dict[NodeName, Node | None], command: NodeCommand
    ) -> list[Node]:
        own = {name: node for name, node in declared.items() if name in self._found}
        async with self._lock:
            before = dict(self._declared)
            if own:
                await self._write(before | own)
            try:
                nodes = list(await self._ask(command))
                self._changed()
                return nodes
            except OutcomeUnknown:
                raise  # it may have been written; who repeats it declares the same
            except GridError:
                if own:
                    await self._write(before)
                raise

    async def _write(self, declared: dict[NodeName, Node | None]) -> None:
        self._declared = declared
        rows = {name: node and node_row(node) for name, node in declared.items()}
        try:
            await asyncio.to_thread(_replace, self._path, json.dumps(rows).encode())
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error.strerror or error}") from error


def _replace(path: str, content: bytes) -> None:
    replace_file(path, content)
    sync_folder(os.path.dirname(path))


def _read(path: str) -> dict[NodeName, Node | None]:
    try:
        with open(path, "rb") as file:
            rows = json.load(file)
        return {NodeName(name): row and node_from_row(row) for name, row in rows.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        hint = "a readable file of declared nodes; delete it to declare them again"
        raise InvalidInput("declared nodes", path, hint) from error
