"""BatchDecisions: what the keeper decides about the commands of one batch, and in which order.

1. What is due by now expires.
2. Commands are decided in the order they came, but for new allocations if anything waits.
3. What waits is served with what was freed: allocations and jobs in the order of the queue.
4. New allocations are decided. So nobody who arrives with a release overtakes those who wait.
5. What waits is served once more.
"""

from __future__ import annotations

import hashlib
from typing import Any

from gridhand.controller.keeper import job_commands, ledger_commands, token_commands
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.listed_commands import LISTS
from gridhand.controller.keeper.past_lookup import AnsweredOperations
from gridhand.controller.keeper.tickets import Ticket
from gridhand.controller.keeper.wait_list import WaitList
from gridhand.core.errors import NoRoom, OperationReused
from gridhand.core.operations import Allocate, Command
from gridhand.store.base import Batch
from gridhand.store.base import StoredOperation as AnsweredOperation

_KEEPER = ""  # the owner of changes that nobody asked for, such as an expiry
_DECISIONS = {
    **ledger_commands.DECISIONS,
    **job_commands.DECISIONS,
    **token_commands.DECISIONS,
    **LISTS,
}


class BatchDecisions:
    """The decisions about one batch. `commands` loses the tickets that wait on."""

    def __init__(
        self,
        context: Context,
        commands: list[Ticket],
        answered: AnsweredOperations,
        waiting: WaitList,
        dispatch: Dispatch | None,
    ) -> None:
        self._context = context
        self._commands = commands
        self._answered = answered
        self._waiting = waiting
        self._dispatch = dispatch
        self._written = Batch(context.now)

    def run(self, starting: bool) -> Batch:
        """Decide everything, and return what is to be written."""
        self._context.ledger.expire_due(self._context.now)
        self._attribute_to_keeper()
        newcomers = self._newcomers()
        for ticket in self._commands:
            if ticket not in newcomers:
                self._decide(ticket)
        if newcomers:
            self._serve_waiting(starting)
            for ticket in newcomers:
                self._decide(ticket)
        self._serve_waiting(starting)
        return self._written

    def _newcomers(self) -> dict[Ticket, None]:
        """Return the allocations that come after all that waits; none if nothing does."""
        waits = self._waiting or (self._dispatch is not None and len(self._dispatch.queue))
        if not waits or len(self._commands) < 2:
            return {}
        commands = self._commands
        return {ticket: None for ticket in commands if isinstance(ticket.operation, Allocate)}

    def _attribute_to_keeper(self) -> None:
        """Write the latest changes as the keeper's own."""
        entries, changes = self._written.entries, self._context.ledger.changes
        entries.extend([(change, _KEEPER, None) for change in changes[len(entries) :]])

    # ---- one command

    def _decide(self, ticket: Ticket) -> None:
        context, entries = self._context, self._written.entries
        ledger = context.ledger
        command: Command[Any] = ticket.operation
        mark = len(entries)
        context.tried_before = ticket.refused is not None
        try:
            if command.op_id is None:
                ticket.reply = _DECISIONS[type(command)](command, context)
            else:
                ticket.reply = self._decide_once(command)
        except Exception as error:
            ledger.rollback(mark)
            if isinstance(error, NoRoom) and self._waiting.takes(ticket, error, context.now):
                ticket.refused = error
                self._waiting.join(ticket, context)
            else:
                ticket.error = error
        else:
            owner, op_id = command.owner, command.op_id
            entries.extend([(change, owner, op_id) for change in ledger.changes[mark:]])
            if ticket.token is not None:
                by_index = dict.fromkeys(range(mark, len(entries)), ticket.token)
                self._written.tokens |= by_index

    def _decide_once(self, command: Command[Any]) -> Any:
        """Return the stored reply to this op id, or decide and store the reply under it."""
        assert command.op_id is not None
        key = command.owner, command.op_id
        body = hashlib.sha256(command.body().encode()).hexdigest()
        known = self._answered.get(key)
        if known is not None:
            if known.body != body:
                raise OperationReused(command.op_id)
            return command.decode_reply(known.reply)
        reply = _DECISIONS[type(command)](command, self._context)
        answer = AnsweredOperation(*key, body, command.encode_reply(reply))
        self._answered[key] = answer
        self._written.operations.append(answer)
        return reply

    # ---- what waits

    def _serve_waiting(self, starting: bool) -> None:
        """Try allocations that wait, and start jobs, in the order of the queue if there is one."""
        if self._waiting and starting:
            self._retry_waiting()
        if self._dispatch is not None:
            self._dispatch.run(self._context, self._grant, starting=starting)
            self._attribute_to_keeper()

    def _grant(self, ticket: Ticket) -> NoRoom | None:
        self._attribute_to_keeper()
        return self._retry(ticket)

    def _retry_waiting(self) -> None:
        """Try tickets that wait for room again; those that are done are answered with the batch."""
        commands, waiting = self._commands, self._waiting
        commands[:] = [ticket for ticket in commands if ticket not in waiting]
        for ticket in waiting.to_try(self._written.entries, self._context.now):
            self._retry(ticket)

    def _retry(self, ticket: Ticket) -> NoRoom | None:
        """Try a ticket that waits; return why it has to wait on, or None if it is done."""
        if not ticket.abandoned:
            self._decide(ticket)
            if ticket.error is None and ticket.reply is None:
                return ticket.refused
            self._commands.append(ticket)
        self._waiting.leave(ticket, self._context.now)
        return None
