"""Look up what a batch of commands needs from the store before it is decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.command_list import CommandList
from gridhand.core.operations import Command, MoveAllocation
from gridhand.store.base import Store
from gridhand.store.base import StoredOperation as AnsweredOperation

AnsweredOperations = dict[tuple[str, str], AnsweredOperation]  # by owner and op id

_MOST_TASKS = 100_000
_LONGEST_NUMBER = 19


def look_up(commands: Iterable[Command[Any]], context: Context, store: Store) -> AnsweredOperations:
    """Return the answered operations; put closed allocations and ended jobs into the context."""
    live = context.ledger.live
    op_ids: list[tuple[str, str]] = []
    numbers: list[int] = []
    job_ids: list[str] = []
    for command in commands:
        if command.op_id is not None:
            op_ids.append((command.owner, command.op_id))
        for single in command.commands if type(command) is CommandList else (command,):
            if type(single) is MoveAllocation and single.id not in live:
                number = single.id.rpartition("-")[2]
                if number.isdecimal() and len(number) < _LONGEST_NUMBER:
                    numbers.append(int(number))
        job_ids += command.named_jobs()
    _look_up_jobs(job_ids, context, store)
    if numbers:
        context.past.update({held.id: held for held in store.find(numbers)})
    if not op_ids:
        return {}
    return {(known.owner, known.op_id): known for known in store.operations(op_ids)}


def _look_up_jobs(ids: Sequence[str], context: Context, store: Store) -> None:
    """Look up jobs that have ended, and the tasks of arrays without open tasks."""
    open_jobs, past = context.ledger.jobs.open, context.past_jobs
    missing = [id for id in dict.fromkeys(ids) if id not in open_jobs]
    if not missing:
        return
    past.update({job.id: job for job in store.find_jobs(missing)})
    arrays = {job.array for job in open_jobs.values()} if len(past) < len(missing) else set()
    for id in missing:
        if id not in past and id not in arrays:
            past.update({job.id: job for job in store.jobs(array=id, limit=_MOST_TASKS)})
