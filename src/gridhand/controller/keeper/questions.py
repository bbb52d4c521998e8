"""How the keeper answers questions and takes note of observations.

Both are handled after the batch they came with is durable, in the order they came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gridhand.audit import Violation, check_state
from gridhand.controller.keeper.job_commands import note_spawned, skip_job_numbers
from gridhand.controller.keeper.ledger_commands import Context, resolve_neighbours
from gridhand.core.errors import InvalidInput
from gridhand.core.explain.explain import explain
from gridhand.core.explain.explanation import Explanation
from gridhand.core.explain.refusal import Refusal
from gridhand.core.ledger.status import cluster_status, dump, node_status
from gridhand.core.model.host_use import NO_HOST_USE
from gridhand.core.observations import (
    AwaitExit,
    NoteExit,
    NoteSpawned,
    SetForeignUse,
    SetHostUse,
    SkipJobNumbers,
    UseGranularity,
    UseQueues,
    UseStrategy,
)
from gridhand.core.operations import (
    CheckLedger,
    DumpLedger,
    Explain,
    Fits,
    GetNode,
    GetStatus,
    ListAllocations,
    ListEvents,
    Operation,
    Prune,
    Question,
    Reply,
)
from gridhand.core.placement.place import place
from gridhand.core.token_operations import ListTokens
from gridhand.store.base import Store

REPEATABLE_MS = 24 * 3600 * 1000  # for how long an operation may be repeated


class Read(Question[Reply]):
    """A question of this process: a function of the state."""

    __slots__ = ("answer",)

    def __init__(self, answer: Callable[[Context], Reply]) -> None:
        self.answer = answer


class AskStore(Question[Reply]):
    """A question to the store, or maintenance of it, as a function of it and the time."""

    __slots__ = ("ask",)

    def __init__(self, ask: Callable[[Store, int], Reply]) -> None:
        self.ask = ask


def _fits(question: Fits, context: Context) -> bool:
    asked = context.rounded(question.request)
    request = resolve_neighbours(asked, question.owner, context.ledger)
    placed = place(request, context.snapshot, context.strategy)
    if isinstance(placed, Refusal):
        return False
    return context.tracked is None or context.tracked.fits(placed.node, placed.asked.resources)


def _explain(question: Explain, context: Context) -> Explanation:
    request, *lower = (
        resolve_neighbours(context.rounded(level), question.owner, context.ledger)
        for level in (question.request, *question.lower)
    )
    return explain(request, context.snapshot, context.strategy, lower=lower)


def _dump(context: Context) -> dict[str, Any]:
    snapshot = context.snapshot
    return dump(context.ledger, snapshot.foreign, now=context.now, host_use=snapshot.host_use)


def _check(context: Context) -> list[Violation]:
    return check_state(_dump(context))


def _set_foreign_use(observed: SetForeignUse, context: Context) -> None:
    devices = context.ledger.node(observed.node).devices
    for id in observed.used:
        if id not in devices:
            raise InvalidInput("gpu id", id, f"a device of {observed.node}")
    before = {id: context.snapshot.foreign.get(id, 0) for id in devices}
    context.snapshot.set_foreign(observed.node, observed.used)
    context.freed |= any(observed.used.get(id, 0) < amount for id, amount in before.items())


def _set_host_use(observed: SetHostUse, context: Context) -> None:
    snapshot, node = context.snapshot, observed.node
    total = context.ledger.node(node).total
    spare = {name: amount - total.get(name, 0) for name, amount in observed.machine.items()}
    before = snapshot.host_use.get(node, NO_HOST_USE)
    used = observed.used.beyond({name: max(0, amount) for name, amount in spare.items()})
    snapshot.set_host_use(node, used)
    context.freed |= any(used.amount(name) < amount for name, amount in before.amounts.items())


def _use_strategy(observed: UseStrategy, context: Context) -> None:
    context.strategy = observed.strategy


def _use_granularity(observed: UseGranularity, context: Context) -> None:
    context.snapshot.memory_step_bytes = observed.step_bytes


def _use_queues(observed: UseQueues, context: Context) -> None:
    context.freed |= observed.queues != context.queues  # more may run now
    context.queues = observed.queues


def _await_exit(observed: AwaitExit, context: Context) -> None:
    for name in observed.names:
        context.ledger.await_exit(name, observed.attempts)


def _note_exit(observed: NoteExit, context: Context) -> None:
    context.freed |= context.ledger.note_exit(observed.attempts)


ANSWERS: Mapping[type[Operation[Any]], Callable[[Any, Context], Any]] = {
    Read: lambda question, context: question.answer(context),
    Fits: _fits,
    Explain: _explain,
    GetNode: lambda question, context: node_status(
        context.ledger.node(question.name),
        context.snapshot.foreign,
        context.snapshot.host_use.get(question.name, NO_HOST_USE),
    ),
    GetStatus: lambda _, context: cluster_status(
        context.ledger, context.snapshot.foreign, context.snapshot.host_use
    ),
    ListAllocations: lambda _, context: list(context.ledger.live.values()),
    ListTokens: lambda _, context: list(context.ledger.tokens.by_id.values()),
    DumpLedger: lambda _, context: _dump(context),
    CheckLedger: lambda _, context: _check(context),
    SetForeignUse: _set_foreign_use,
    SetHostUse: _set_host_use,
    AwaitExit: _await_exit,
    UseStrategy: _use_strategy,
    UseGranularity: _use_granularity,
    UseQueues: _use_queues,
    NoteExit: _note_exit,
    NoteSpawned: note_spawned,
    SkipJobNumbers: skip_job_numbers,
}


def _prune(question: Prune, store: Store, now: int) -> int:
    # However short the history is kept, an operation may be repeated for a day.
    answered_before = store.time_ago(max(question.age_ms, REPEATABLE_MS), now)
    before = store.time_ago(question.age_ms, now)
    return store.prune(before=before, most=question.most, answered_before=answered_before)


STORE_ANSWERS: Mapping[type[Operation[Any]], Callable[[Any, Store, int], Any]] = {
    AskStore: lambda question, store, now: question.ask(store, now),
    ListEvents: lambda question, store, _: store.events(after=question.after, limit=question.limit),
    Prune: _prune,
}
