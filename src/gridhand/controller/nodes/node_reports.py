"""NodeReports: what engines report about nodes, on its way into the ledger.

What a node has is registered, again and again while the store is away. What it uses is kept in
memory, and the use by others is planned around.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from gridhand.controller.nodes.foreign_use import ForeignUse
from gridhand.controller.nodes.node_samples import NodeSamples
from gridhand.core.errors import InvalidInput, NodeElsewhere, StoreError, StoreFenced
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Node
from gridhand.core.rows.ledger import node_from_row
from gridhand.engines.base import ProblemReport, UsageEvent

_RETRY_S = 0.5


class NodeReports:
    """The part of a sink that is about nodes. Used in the event loop only."""

    def __init__(
        self,
        report_node: Callable[[Node], Awaitable[None]],
        samples: NodeSamples,
        foreign: ForeignUse,
    ) -> None:
        """`report_node` is called with nodes that were found or found changed."""
        self._report_node = report_node
        self._samples, self._foreign = samples, foreign
        self._nodes: dict[NodeName, Mapping[str, Any]] = {}  # the latest row of each
        self._unsettled: dict[NodeName, set[asyncio.Task[None]]] = {}
        self.problems: dict[NodeName, Sequence[ProblemReport]] = {}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    def _watch(self, task: asyncio.Task[None]) -> None:
        """Take note of a task that must end before this does."""
        raise NotImplementedError

    def node_changed(self, node: Mapping[str, Any], problems: Sequence[ProblemReport]) -> None:
        self.problems[node["name"]] = problems
        self._samples.note_seen(node["name"])
        self._foreign.forget(node["name"])
        self._nodes[node["name"]] = node
        self._settle_later(node["name"], self._register(node))

    def _settle_later(self, node: NodeName, work: Coroutine[Any, Any, None]) -> None:
        unsettled = self._unsettled.setdefault(node, set())
        task = asyncio.get_running_loop().create_task(work)
        self._watch(task)
        unsettled.add(task)
        task.add_done_callback(unsettled.discard)

    async def settled(self, node: NodeName) -> None:
        while unsettled := self._unsettled.get(node):
            await asyncio.wait(unsettled)

    async def _register(self, node: Mapping[str, Any]) -> None:
        while self._nodes[node["name"]] is node:  # until there is a later row
            try:
                await self._report_node(node_from_row(node))
                return
            except StoreFenced:
                raise
            except StoreError:
                await asyncio.sleep(_RETRY_S)
            except (NodeElsewhere, InvalidInput) as error:  # another machine has the same name, or
                # a device of the same id
                problem: ProblemReport = {"message": str(error), "hint": error.hint, "device": ""}
                self.problems[node["name"]] = [*self.problems[node["name"]], problem]
                return

    def measured(self, node: NodeName, usage: UsageEvent) -> None:
        valid = self._samples.take(node, usage)
        if valid is not None:
            self._plan_around(node, valid)

    def _plan_around(self, node: NodeName, usage: UsageEvent) -> None:
        for observed in self._foreign.changes(node, usage):
            self._spawn(self._foreign.tell(observed))

    def plan_again(self) -> None:
        """Plan around what others use once more: what is respected of it has changed."""
        for node, usage in self._samples.latest.items():
            self._plan_around(node, usage)
