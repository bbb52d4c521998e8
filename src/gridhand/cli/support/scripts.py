"""The command of `grid run`, and the options at the top of a script.

Lines that begin with `#GRID` hold options of `grid run`, those that begin with `#SBATCH` options of
Slurm. Options on the command line override them. They are read only up to the first line that is
neither empty nor a comment.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import click
from click.core import ParameterSource

from gridhand.cli.help_format import GroupedCommand

_GRID, _SBATCH = b"#GRID", b"#SBATCH"
_SHELL = "/bin/sh"
_HEAD_BYTES = 1 << 16
_LONGEST_NAME = 200


class Script(NamedTuple):
    """A script, its interpreter, the options at its top, and those of Slurm that are ignored."""

    path: str
    interpreter: list[str]
    options: list[str]
    ignored: list[str]


class ScriptCommand(GroupedCommand):
    """A command whose options may also be at the top of the script that it runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell completes an unfinished line
            return rest
        command = split_command(ctx.params["command"])
        script = find_script(command[0])
        if script is None and ctx.params["detach"]:  # nobody would see that it cannot start
            _check_name(command[0])
        if script is not None:
            command = [*command_of(script), *command[1:]]
            if script.options or script.ignored:
                self._take_from(script, ctx)
        ctx.params["command"] = tuple(command)
        return rest

    def _take_from(self, script: Script, ctx: click.Context) -> None:
        """Apply the options of the script that are not on the command line."""
        inner = click.Context(self, info_name=ctx.info_name, parent=ctx.parent)
        end = ["--", "--"]  # an option without its value takes the first, and is noticed
        try:
            super().parse_args(inner, [*script.options, *end])
        except click.UsageError as error:
            raise _wrong(script.path, error.format_message()) from None
        if inner.params.pop("command") != ("--",):
            raise _wrong(script.path, "only options and their values are allowed")
        for name, value in inner.params.items():
            if ctx.get_parameter_source(name) is ParameterSource.DEFAULT:
                ctx.params[name] = value
        if ctx.params["name"] is None:
            ctx.params["name"] = _title(script.path)
        if script.ignored and not ctx.params["quiet"]:
            words = " ".join(script.ignored)
            click.echo(f"grid: {script.path}: ignored #SBATCH options: {words}", err=True)


def split_command(command: tuple[str, ...]) -> list[str]:
    """Return the command; a single word is split as a shell would, unless it names a file."""
    if len(command) > 1 or not set(command[0]) & set(" \t\n\"'\\") or os.path.exists(command[0]):
        return list(command)
    import shlex

    try:
        words = shlex.split(command[0])
    except ValueError as error:
        raise click.UsageError(f"COMMAND: {command[0]!r} cannot be split: {error}") from None
    if not words:
        raise click.UsageError("COMMAND: it is empty")
    return words


def find_script(name: str) -> Script | None:
    """Return the script of that name: a file that begins with `#!` or with lines of options.

    A name without a slash is first looked up on the PATH, so that nobody runs a file by accident
    because it is in the current folder.
    """
    head = _head(name)
    if not head.startswith(b"#") or ("/" not in name and _on_path(name)):
        return None
    first, *rest = head.split(b"\n")
    named = first.startswith(b"#!")
    options, ignored = _options(name, rest if named else [first, *rest], 2 if named else 1)
    if not named and not options and not ignored:
        return None
    interpreter = os.fsdecode(first[2:].strip()).split(maxsplit=1) if named else []
    return Script(name, interpreter, options, ignored)


def _head(path: str) -> bytes:
    """Return the beginning of a file; empty if it cannot be read."""
    try:
        if not os.path.isfile(path):  # opening a pipe would wait for its other end
            return b""
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:  # running it will report that
        return b""


def _options(path: str, lines: list[bytes], first: int) -> tuple[list[str], list[str]]:
    """Return the options of `grid run`, and those of Slurm that are ignored; `#GRID` lines win."""
    ours: list[str] = []
    slurm: list[str] = []
    for number, line in enumerate(lines, first):
        text = line.strip()
        if text and not text.startswith(b"#"):
            break
        ours += _words(path, number, line, _GRID)
        slurm += _words(path, number, line, _SBATCH)
    if not slurm:
        return ours, []
    from gridhand.cli.support.sbatch import translate_sbatch

    translated, ignored = translate_sbatch(slurm)
    return [*translated, *ours], ignored


def _words(path: str, number: int, line: bytes, mark: bytes) -> list[str]:
    if not (line.startswith(mark) and line[len(mark) :][:1].isspace()):
        return []
    import shlex

    try:
        return shlex.split(os.fsdecode(line[len(mark) :]), comments=True)
    except ValueError as error:
        raise _wrong(path, f"line {number}: {error}") from None


def _on_path(name: str) -> bool:
    """Return whether the PATH has such a command, other than the file in this folder."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return not os.path.samefile(path, name)
    return False


def _check_name(name: str) -> None:
    """Raise for a file of this folder that no job would find under this name."""
    if "/" not in name and os.path.isfile(name) and not _on_path(name):
        from gridhand.core.errors import InvalidInput

        use = f"./{name} for a program of this folder, or begin a script with #!/bin/sh"
        raise InvalidInput("command", name, use)


def command_of(script: Script) -> list[str]:
    """Return the words that start the script; one that the kernel cannot start needs help."""
    path = script.path if "/" in script.path else f"./{script.path}"
    if script.interpreter and os.access(path, os.X_OK):
        return [path]
    return [*(script.interpreter or [_SHELL]), path]


def _title(path: str) -> str | None:
    name = os.path.basename(path)
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else None


def _wrong(path: str, what: str) -> click.UsageError:
    return click.UsageError(f"the #GRID or #SBATCH lines of {path}: {what}")
