"""ReadModel: a copy of the durable state, from which lists and status are read.

The keeper's thread hands over the changes of each commit, and the whole state after it was loaded;
that costs it one append. The event loop applies them when somebody reads, so reading never stalls a
grant. A change is handed over before its caller is answered: whoever reads next sees it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gridhand.controller.jobs.job_pages import JobPages
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.metrics.state_tally import StateTally
from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.ledger import Change
from gridhand.core.ledger.ledger_copy import LedgerCopy
from gridhand.core.ledger.leftovers import Leftovers
from gridhand.core.ledger.status import NodeStatus, Status, cluster_status, node_status
from gridhand.core.model.host_use import NO_HOST_USE, HostUse
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Node
from gridhand.core.model.tokens import Token
from gridhand.core.placement.snapshot import Snapshot

_MOST_UNREAD = 500  # commits that wait for a reader


class _State(NamedTuple):
    """The whole state at one moment. The snapshot is the keeper's own, for what is measured."""

    machine: str
    nodes: Sequence[Node]
    allocations: Sequence[Allocation]
    jobs: Sequence[Job]
    tokens: Sequence[Token]
    snapshot: Snapshot


class ReadModel:
    """Reads happen in the event loop; `loaded` and `committed` are called by the keeper."""

    def __init__(self, wake: Callable[[Callable[[], None]], object] = lambda work: None) -> None:
        """`wake` has a function called in the event loop."""
        self._wake = wake
        self._news: deque[_State | Sequence[Change]] = deque()
        self._ledger = LedgerCopy()
        self._pages = JobPages()
        self._leftovers = Leftovers()
        self._foreign: Mapping[str, int] = {}
        self._host_use: Mapping[NodeName, HostUse] = {}
        self._ready = False
        self._tally = StateTally()

    # ---- in the keeper's thread

    def loaded(self, context: Context) -> None:
        """Take over the whole state: it was read from the store."""
        ledger = context.ledger
        nodes = [ledger.nodes[name].node for name in ledger.names]
        jobs = sorted(ledger.jobs.open.values(), key=lambda job: job.number)
        held, tokens = list(ledger.live.values()), list(ledger.tokens.by_id.values())
        self._news.append(_State(ledger.machine, nodes, held, jobs, tokens, context.snapshot))

    def committed(self, changes: Sequence[Change]) -> None:
        """Take over changes that are durable now."""
        self._news.append(changes)
        if len(self._news) % _MOST_UNREAD == 0:
            self._wake(self._catch_up)

    # ---- in the event loop

    @property
    def ledger(self) -> LedgerCopy:
        """The state after the last commit. It must not be changed."""
        self._catch_up()
        return self._ledger

    @property
    def pages(self) -> JobPages:
        self._catch_up()
        return self._pages

    @property
    def tally(self) -> StateTally:
        """Counts of what there is and of what has happened."""
        self._catch_up()
        return self._tally

    def note(self, job: Job) -> None:
        """Take over that the process of a job has started, which is no change of the ledger."""
        known, noted = self.ledger.jobs.open.get(job.id), job.attempt
        if known is None or known.attempt is None or noted is None:
            return
        if known.attempt.number == noted.number:
            attempt = known.attempt._replace(started=noted.started)
            current = known._replace(attempts=(*known.attempts[:-1], attempt))
            self._ledger.jobs.note(current)
            self._pages.put(current)

    def status(self) -> Status:
        """Return the whole cluster, added up and node by node."""
        ledger = self._marked(self.ledger.names)
        return cluster_status(ledger, self._foreign, self._host_use)

    def node(self, name: NodeName) -> NodeStatus:
        """Return one node and what is held there; raise `UnknownNode` if there is none."""
        use = self._marked((name,)).node(name)
        return node_status(use, self._foreign, self._host_use.get(name, NO_HOST_USE))

    def has_leftovers(self, name: NodeName) -> bool:
        """Return whether processes of given-up attempts are left on a node."""
        self._catch_up()
        return name in self._leftovers

    def _marked(self, names: Iterable[NodeName]) -> LedgerCopy:
        """Return the ledger after marking nodes on which processes of given-up jobs are left."""
        ledger = self.ledger
        for name in names:
            if name in ledger.nodes:
                ledger.nodes[name].has_leftovers = name in self._leftovers
        return ledger

    def _catch_up(self) -> None:
        news = self._news
        while news:
            item = news.popleft()
            if isinstance(item, _State):
                self._replace(item)
            elif self._ready:
                self._apply(item)

    def _replace(self, state: _State) -> None:
        self._ledger = LedgerCopy()
        self._ledger.machine = state.machine
        self._ledger.load(state.nodes, state.allocations, state.jobs)
        self._ledger.tokens.load(state.tokens)
        self._pages = JobPages()
        for job in state.jobs:
            self._pages.put(job)
        self._leftovers = state.snapshot.ledger.leftovers
        self._foreign, self._host_use = state.snapshot.foreign, state.snapshot.host_use
        self._tally.replace(state.jobs, state.allocations)
        self._ready = True

    def _apply(self, changes: Sequence[Change]) -> None:
        self._ledger.follow(changes)
        self._tally.follow(changes)
        for change in changes:
            if type(change.after) is Job:
                self._pages.put(change.after)
