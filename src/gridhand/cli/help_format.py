"""The layout of `--help`: options in groups, and examples at the end.

A command's docstring opens with one sentence, which `grid --help` lists. Its epilog is a block of
example lines, which is printed as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

DEFAULT_GROUP = "Options"
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class GroupedOption(click.Option):
    """An option that `--help` lists under the heading `group`."""

    group = DEFAULT_GROUP

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # errors name the range, and help texts where it matters
        return extra


option = partial(click.option, cls=GroupedOption)


def option_group(title: str, *options: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds options to a command under one heading."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
            command.__click_params__[-1].group = title
        return command

    return add


class GroupedCommand(click.Command):
    """A command whose help lists options by group, in the order in which groups first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                groups.setdefault(getattr(param, "group", DEFAULT_GROUP), []).append(record)
        groups[DEFAULT_GROUP] = groups.pop(DEFAULT_GROUP)  # --help comes last
        width = max(len(names) for records in groups.values() for names, _ in records)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl([(names.ljust(width), text) for names, text in records])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.epilog, formatter)


command = partial(click.command, cls=GroupedCommand)


class CommandGroup(click.Group):
    """A command with commands in it, and with examples in its help."""

    command_class = GroupedCommand

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("context_settings", SETTINGS)
        super().__init__(*args, **settings)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.epilog, formatter)


def write_examples(lines: str | None, formatter: click.HelpFormatter) -> None:
    """Write example lines under their heading, unwrapped."""
    if lines:
        with formatter.section("Examples"):
            for line in lines.strip().splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line.strip()}\n")
