"""CommandList: several commands as one operation, decided in order and committed together.

Each command has its own outcome: one that is refused changes nothing, and the others go on. All of
them are one transaction, and one op id stands for the whole list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from gridhand.core.errors import GridError
from gridhand.core.operations import Command, operation

MOST_COMMANDS = 1000


class CommandFault(NamedTuple):
    """The reason for which a command of a list was refused."""

    code: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: GridError) -> CommandFault:
        return cls(error.code, str(error), error.hint)


class CommandOutcome(NamedTuple):
    """The reply to a command of a list, or why it was refused."""

    reply: Any
    fault: CommandFault | None = None


@operation
class CommandList(Command[list[CommandOutcome]]):
    """Run commands of one owner together."""

    commands: tuple[Command[Any], ...] = ()

    def frees_resources(self) -> bool:
        return all(command.frees_resources() for command in self.commands)

    def named_jobs(self) -> Iterable[str]:
        return [id for command in self.commands for id in command.named_jobs()]

    def body(self) -> str:
        return "\n".join(command.body() for command in self.commands)

    def encode_reply(self, reply: list[CommandOutcome]) -> str:
        both = zip(self.commands, reply, strict=True)
        return json.dumps(
            [
                command.encode_reply(outcome.reply) if outcome.fault is None else outcome.fault
                for command, outcome in both
            ]
        )

    def decode_reply(self, text: str) -> list[CommandOutcome]:
        both = zip(self.commands, json.loads(text), strict=True)
        return [
            CommandOutcome(command.decode_reply(stored))
            if isinstance(stored, str)
            else CommandOutcome(None, CommandFault(*stored))
            for command, stored in both
        ]
