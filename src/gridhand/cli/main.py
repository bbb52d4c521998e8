"""Where `grid` begins: finds the command, and turns failures into `error:` and `hint:` lines.

`grid` ends with the exit code of what it ran. So that a script can tell its job's failure from
ours, everything that goes wrong on our side, wrong usage included, ends with 125.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

import click

from gridhand import __version__

OWN_FAILURE = 125
INTERRUPTED = 130
NOBODY_READS = 141


class Entry(NamedTuple):
    """Where a command is, and its line in `grid --help`, which must not import it."""

    target: str  # "package.module:attribute"
    help: str


COMMANDS: Mapping[str, Entry] = {
    "run": Entry("gridhand.cli.run:run", "Run a command where it fits."),
    "jobs": Entry("gridhand.cli.jobs:jobs", "List jobs."),
    "calls": Entry("gridhand.cli.calls:calls", "List calls of functions."),
    "show": Entry("gridhand.cli.show:show", "Show all that is known of a job or of a call."),
    "logs": Entry("gridhand.cli.logs:logs", "Print what a job has written."),
    "cancel": Entry("gridhand.cli.jobs:cancel", "End jobs, or take them out of the queue."),
    "why": Entry("gridhand.cli.why:why", "Say why a job or a call waits, or where work would go."),
    "status": Entry("gridhand.cli.cluster:status", "Show the cluster and its controller."),
    "list": Entry("gridhand.cli.cluster:list_nodes", "List the nodes and what is free on them."),
    "stats": Entry("gridhand.cli.cluster:stats", "Show one node in detail."),
    "top": Entry("gridhand.cli.top:top", "Watch nodes and jobs as they change."),
    "node": Entry("gridhand.cli.nodes:node", "Register, drain, resume and remove nodes."),
    "reserve": Entry("gridhand.cli.holding:reserve", "Hold resources by hand."),
    "release": Entry("gridhand.cli.holding:release", "Give back what was held by hand."),
    "serve": Entry("gridhand.cli.serving:serve", "Run the controller in the foreground."),
    "stop": Entry("gridhand.cli.serving:stop", "Stop the controller."),
    "check": Entry("gridhand.cli.store:check", "Prove that nothing is promised twice or lost."),
    "doctor": Entry("gridhand.cli.doctor:doctor", "Say what is wrong here, and how to mend it."),
    "config": Entry("gridhand.cli.settings:config", "Show the settings and where they come from."),
    "service": Entry("gridhand.cli.service:service", "Start the controller with the system."),
    "migrate-store": Entry("gridhand.cli.store:migrate_store", "Move the state to another store."),
    "simulate": Entry("gridhand.cli.simulate:simulate", "Replay tasks, and compare strategies."),
    "completion": Entry("gridhand.cli.completion:completion", "Let a shell complete commands."),
}


# What the hands of those type who come from Slurm and its like; the words they stand for.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "submit": ("run", "--detach"),
    "queue": ("jobs",),
    "ps": ("jobs",),
    "nodes": ("list",),
    "kill": ("cancel",),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and not before."""

    def __init__(
        self,
        *,
        entries: Mapping[str, Entry],
        name: str | None = None,
        help: str | None = None,
        epilog: str | None = None,
    ) -> None:
        super().__init__(
            name,
            help=help,
            epilog=epilog,
            invoke_without_command=True,
            callback=_help_without_command,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self.entries = entries

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # further out click would catch it, and end with 1
            ctx.exit(_nobody_reads())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, (cmd_name,))[0]
        if name not in self.entries:
            return None
        module, _, attribute = self.entries[name].target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.entries:
            with formatter.section("Commands"):
                formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *more = ALIASES.get(args[0], args[:1])
        if name in self.entries:
            return super().resolve_command(ctx, [name, *more, *args[1:]])
        # While a shell completes a line, an unknown word is not an error yet.
        if ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise UnknownCommand(args[0], self.entries, ctx)


class UnknownCommand(click.UsageError):
    """Names the nearest command there is."""

    def __init__(self, name: str, known: Mapping[str, Entry], ctx: click.Context) -> None:
        super().__init__(f"there is no command {name!r}", ctx)
        meant = _meant(name, known, ctx.command_path)
        see = f"`{ctx.command_path} --help` lists the commands."
        self.hint = f"Did you mean `{meant}`? {see}" if meant else see


def _meant(name: str, known: Mapping[str, Entry], path: str) -> str:
    """What does the same here under another name, or what it was a slip for."""
    from difflib import get_close_matches

    from gridhand.cli.elsewhere import MEANT

    if name in MEANT:
        return MEANT[name]
    names = [*known, *(alias for alias, words in ALIASES.items() if words[0] in known)]
    nearest = get_close_matches(name, names, n=1)
    return f"{path} {nearest[0]}" if nearest else ""


@click.pass_context
def _help_without_command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def make_cli(entries: Mapping[str, Entry]) -> click.Group:
    """The command `grid` with these commands in it."""
    group = LazyGroup(
        entries=entries,
        name="grid",
        help="Give every piece of work the machine it needs.",
        epilog="Also: submit for run --detach, queue and ps for jobs, nodes for list, kill for"
        " cancel.",
    )
    show_version = click.version_option(
        __version__, prog_name="grid", message="%(prog)s %(version)s"
    )
    return show_version(group)


def run(cli: click.Command, args: Sequence[str]) -> int:
    """Run one command line and return its exit code; a failure has been printed by then."""
    try:
        # A command ends early by `ctx.exit(code)`, which arrives here as a plain value.
        code = cli.main(list(args), prog_name="grid", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        return _failed(error.format_message(), _usage_hint(error))
    except OSError as error:
        return _failed(f"{error.strerror or error}", "Check where the output goes to.")
    except Exception as error:
        return _unexpected(error)
    return code if isinstance(code, int) else 0


def _nobody_reads() -> int:
    """End as a command that SIGPIPE ended, and silently: `grid jobs | head` is no failure."""
    import os

    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nothing, stream.fileno())  # what is left in it shall not fail at the exit
    return NOBODY_READS


def _usage_hint(error: click.ClickException) -> str:
    if hint := getattr(error, "hint", ""):
        return str(hint)
    ctx = getattr(error, "ctx", None)
    return f"See `{ctx.command_path} --help`." if ctx else ""


def _unexpected(error: Exception) -> int:
    # Imported here: a command that goes well does not pay for the errors it might have had.
    from gridhand.core.errors import GridError

    if isinstance(error, GridError):
        return _failed(str(error), error.hint)
    # A bug of ours: shown in full, but still not to be taken for the exit code of a job.
    sys.excepthook(type(error), error, error.__traceback__)
    return OWN_FAILURE


def _failed(message: str, hint: str) -> int:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return OWN_FAILURE


def main() -> None:
    """The entry point of the console script."""
    _leave(run(make_cli(COMMANDS), sys.argv[1:]))


def _leave(code: int) -> None:
    """End the process; at once, if nobody wants to be called at its end.

    To take the interpreter apart takes a sixth of the time of a short command.
    """
    import atexit
    import os

    if atexit._ncallbacks():
        sys.exit(code)
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:
        sys.exit(code)
    os._exit(code)


if __name__ == "__main__":  # how a client starts a controller
    main()
