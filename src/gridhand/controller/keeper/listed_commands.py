"""How the keeper decides a list of commands: one after the other, each with its own outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gridhand.controller.keeper.ledger_commands import DECISIONS, Context
from gridhand.core.command_list import CommandFault, CommandList, CommandOutcome
from gridhand.core.errors import GridError, NoRoom
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, Command

_Refused = dict[tuple[Request, ...], GridError]


def decide_list(list_: CommandList, context: Context) -> list[CommandOutcome]:
    """Decide all commands; what one of them has changed is undone if it is refused."""
    refused: _Refused = {}
    return [_decide_one(command, context, refused) for command in list_.commands]


def _decide_one(command: Command[Any], context: Context, refused: _Refused) -> CommandOutcome:
    mark = context.ledger.mark()
    try:
        return CommandOutcome(_decide(command, context, refused))
    except GridError as error:
        context.ledger.rollback(mark)
        return CommandOutcome(None, CommandFault.of(error))


def _decide(command: Command[Any], context: Context, refused: _Refused) -> Any:
    """Decide a command. The reasons of a refusal are found once for requests that are alike."""
    if not isinstance(command, Allocate):
        refused.clear()  # it may free something
        return DECISIONS[type(command)](command, context)
    known = refused.get(command.requests)
    if known is not None and not context.ledger.held_by(command.terms, command.requests):
        raise known
    try:
        return DECISIONS[Allocate](command, context)
    except NoRoom as error:
        refused[command.requests] = error
        raise


LISTS: Mapping[type[Command[Any]], Callable[[Any, Context], Any]] = {CommandList: decide_list}
