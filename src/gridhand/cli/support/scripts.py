"""The command to run: its words, and scripts that say in their head what they need.

As with `#SBATCH`, lines that begin with `#GRID` hold options of `grid run`, and the command line
wins over them. Only the head of a script counts: what is before its first line that is neither
empty nor a comment.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import click
from click.core import ParameterSource

_MARK = b"#GRID"
_HEAD_BYTES = 1 << 16
_LONGEST_NAME = 200


class Script(NamedTuple):
    """What a script says of itself: the options in its head, and what runs it."""

    path: str
    options: list[str]
    interpreter: list[str]


class ScriptCommand(click.Command):
    """A command whose options may also be in the head of the script that it is to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell completes a line that is not finished
            return rest
        command = words(ctx.params["command"])
        script = find_script(command[0])
        if script is not None:
            self._take_from(script, ctx)
            command = [*started_by(script), *command[1:]]
        ctx.params["command"] = tuple(command)
        return rest

    def _take_from(self, script: Script, ctx: click.Context) -> None:
        """The options that are not on the command line, as if they were."""
        inner = click.Context(self, info_name=ctx.info_name, parent=ctx.parent)
        end = ["--", "--"]  # an option that lacks its value takes the first, and is found out
        try:
            super().parse_args(inner, [*script.options, *end])
        except click.UsageError as error:
            raise _wrong(script.path, error.format_message()) from None
        if inner.params.pop("command") != ("--",):
            raise _wrong(script.path, "there must be options with their values, and nothing else")
        for name, value in inner.params.items():
            if ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
                ctx.params[name] = value
        if ctx.params["name"] is None:
            ctx.params["name"] = _title(script.path)


def words(command: tuple[str, ...]) -> list[str]:
    """The command; a single word is split as a shell would, unless it is the name of a file."""
    if len(command) > 1 or not set(command[0]) & set(" \t\n\"'\\") or os.path.exists(command[0]):
        return list(command)
    import shlex

    try:
        found = shlex.split(command[0])
    except ValueError as error:
        raise click.UsageError(f"COMMAND: {command[0]!r} cannot be split: {error}") from None
    if not found:
        raise click.UsageError("COMMAND: there is no word in it")
    return found


def find_script(name: str) -> Script | None:
    """The script that is meant, if there are options in its head.

    A name without a slash is a command on the PATH first: nobody shall run a file by accident
    because it lies in the current folder.
    """
    head = _head(name)
    if b"\n" + _MARK not in head or ("/" not in name and _on_path(name)):
        return None
    first, *lines = head.split(b"\n")
    options = _options(name, lines)
    return Script(name, options, os.fsdecode(first.strip()).split(maxsplit=1)) if options else None


def _head(path: str) -> bytes:
    """How a script begins, after the #!; nothing if it is none."""
    try:
        if not os.path.isfile(path):  # to open a pipe would wait for somebody at its other end
            return b""
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES) if file.read(2) == b"#!" else b""
    except OSError:  # who runs it will say so
        return b""


def _options(path: str, lines: list[bytes]) -> list[str]:
    import shlex

    found: list[str] = []
    for number, line in enumerate(lines, 2):
        text = line.strip()
        if text and not text.startswith(b"#"):
            break
        if line.startswith(_MARK) and line[len(_MARK) :][:1].isspace():
            try:
                found += shlex.split(os.fsdecode(line[len(_MARK) :]), comments=True)
            except ValueError as error:
                raise _wrong(path, f"line {number}: {error}") from None
    return found


def _on_path(name: str) -> bool:
    """Whether it is a command there, and another file than the one in this folder."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = os.path.join(folder or ".", name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return not os.path.samefile(found, name)
    return False


def started_by(script: Script) -> list[str]:
    """The words that start it; one that is not executable is given to what its first line names."""
    path = script.path if "/" in script.path else f"./{script.path}"
    return [path] if os.access(path, os.X_OK) else [*script.interpreter, path]


def _title(path: str) -> str | None:
    name = os.path.basename(path)
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else None


def _wrong(path: str, what: str) -> click.UsageError:
    return click.UsageError(f"the #GRID lines of {path}: {what}")
