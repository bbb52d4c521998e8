"""The entry point of `grid`: finds the command, and prints failures as `error:` and `hint:` lines.

`grid` exits with the code of the job that it ran. Every failure of our own, including wrong usage,
exits with 125, so that a script can tell it from a failure of the job.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

import click

from gridhand import __version__
from gridhand.cli.help_format import SETTINGS, write_examples

OWN_FAILURE = 125
INTERRUPTED = 130
BROKEN_PIPE = 141


class CommandEntry(NamedTuple):
    """The place of a command, and its line in `grid --help`, which does not import it."""

    target: str  # "package.module:attribute"
    help: str
    group: str = "Commands"


_GROUPS = {
    "Run work": {
        "run": ("commands.run:run", "Run a command on a node that has room for it."),
        "jobs": ("commands.jobs:jobs", "List jobs."),
        "queue": (
            "commands.queue:queue",
            "Show what waits, in the order in which it would be tried now.",
        ),
        "history": ("commands.history:history", "Add up ended jobs: outcomes, waits, run times."),
        "logs": ("commands.logs:logs", "Print the output of a job."),
        "show": ("commands.show:show", "Show the details of a job or a function call."),
        "why": ("commands.why:why", "Explain why work waits, or where it would fit."),
        "predict": ("commands.predict:predict", "Predict what the next run of a task will need."),
        "fetch": ("commands.fetch:fetch", "Copy files of a job from another machine."),
        "wait": ("commands.wait:wait", "Wait until jobs have ended."),
        "cancel": ("commands.jobs:cancel", "Cancel queued or running jobs."),
        "hold": ("commands.hold:hold", "Keep queued jobs from starting until `grid unhold`."),
        "unhold": ("commands.hold:unhold", "Let held jobs start."),
        "calls": ("commands.calls:calls", "List calls of Python functions."),
        "reserve": ("commands.reserve:reserve", "Reserve resources by hand."),
        "release": ("commands.reserve:release", "Release reserved resources."),
    },
    "See the cluster": {
        "status": ("commands.status:status", "Show a summary of the cluster."),
        "list": ("commands.status:list_nodes", "List the nodes and their resources."),
        "stats": ("commands.status:stats", "Show one node in detail."),
        "events": (
            "commands.events:events",
            "List or follow what happens to jobs, nodes and allocations.",
        ),
        "top": ("commands.top:top", "Watch nodes and jobs live."),
        "node": ("commands.node:node", "Register, drain, resume or remove nodes."),
    },
    "Controller": {
        "serve": ("commands.serve:serve", "Run the controller in the foreground."),
        "stop": ("commands.serve:stop", "Stop the controller."),
        "worker": (
            "commands.worker:worker",
            "Serve this machine as a node of another controller.",
        ),
        "service": ("commands.service:service", "Run the controller as a systemd service."),
        "token": ("commands.token:token", "Manage the tokens of clients on the network."),
        "config": ("commands.config:config", "Show, check and reload the configuration."),
        "doctor": ("commands.doctor:doctor", "Check this installation and suggest fixes."),
    },
    "State and tools": {
        "check": ("commands.store:check", "Verify that no resource is promised twice or lost."),
        "migrate-store": ("commands.store:migrate_store", "Move the state to another store."),
        "simulate": ("commands.simulate:simulate", "Compare strategies on a simulated cluster."),
        "completion": ("completion:completion", "Print the completion script of a shell."),
    },
}
COMMANDS: Mapping[str, CommandEntry] = {
    name: CommandEntry(f"gridhand.cli.{target}", help, group)
    for group, commands in _GROUPS.items()
    for name, (target, help) in commands.items()
}

# Names that users of Slurm and similar tools type, and the words that they stand for.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "submit": ("run", "--detach"),
    "ps": ("jobs",),
    "nodes": ("list",),
    "kill": ("cancel",),
}

_EXAMPLES = """
    grid run -c 2 --mem 4GB -- python train.py    run it, and wait for it
    grid run -d --gpus 1 -- python train.py       run it in the background
    grid logs -f @                                follow your last job
    grid why 17                                   explain why job 17 waits
"""


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def __init__(
        self,
        *,
        entries: Mapping[str, CommandEntry],
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
            context_settings=SETTINGS,
        )
        self.entries = entries

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would catch it further out, and exit with 1
            ctx.exit(_silence_output())

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
        width = max(map(len, self.entries), default=0)  # the same column in every group
        for group in dict.fromkeys(entry.group for entry in self.entries.values()):
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (name.ljust(width), entry.help)
                        for name, entry in self.entries.items()
                        if entry.group == group
                    ]
                )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.epilog, formatter)
        with formatter.section("Aliases"):
            others = [(name, " ".join(words)) for name, words in ALIASES.items()]
            formatter.write_text(", ".join(f"{name} = {words}" for name, words in others))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *more = ALIASES.get(args[0], args[:1])
        if name in self.entries:
            return super().resolve_command(ctx, [name, *more, *args[1:]])
        # While a shell completes a line, an unknown word is not yet an error.
        if ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise UnknownCommand(args[0], self.entries, ctx)


class UnknownCommand(click.UsageError):
    """An unknown command. The hint names the nearest one."""

    def __init__(self, name: str, known: Mapping[str, CommandEntry], ctx: click.Context) -> None:
        super().__init__(f"there is no command {name!r}", ctx)
        nearest = _nearest_command(name, known, ctx.command_path)
        see = f"`{ctx.command_path} --help` lists the commands."
        self.hint = f"Did you mean `{nearest}`? {see}" if nearest else see


def _nearest_command(name: str, known: Mapping[str, CommandEntry], path: str) -> str:
    """Return the command that another tool's name stands for, or that is spelled most alike."""
    from difflib import get_close_matches

    from gridhand.cli.support.aliases import MEANT

    if name in MEANT:
        return MEANT[name]
    names = [*known, *(alias for alias, words in ALIASES.items() if words[0] in known)]
    nearest = get_close_matches(name, names, n=1)
    return f"{path} {nearest[0]}" if nearest else ""


@click.pass_context
def _help_without_command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def make_cli(entries: Mapping[str, CommandEntry]) -> click.Group:
    """Return the command `grid` with these commands in it."""
    group = LazyGroup(
        entries=entries,
        name="grid",
        help="Give every piece of work the machine it needs.",
        epilog=_EXAMPLES,
    )
    show_version = click.version_option(
        __version__, prog_name="grid", message="%(prog)s %(version)s"
    )
    return show_version(group)


def run(cli: click.Command, args: Sequence[str]) -> int:
    """Run one command line, print its failure if it has one, and return its exit code."""
    try:
        # `ctx.exit(code)` in a command arrives here as a plain value.
        code = cli.main(list(args), prog_name="grid", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        return _failed(error.format_message(), _usage_hint(error))
    except OSError as error:
        return _failed(*_system_failure(error))
    except Exception as error:
        return _unexpected(error)
    return code if isinstance(code, int) else 0


def _system_failure(error: OSError) -> tuple[str, str]:
    """Return the message and the hint for a failed system call; without a file it was output."""
    message = error.strerror or str(error)
    if error.filename is None:
        return message, "Check where the output goes."
    return f"{error.filename!s}: {message}", "Check that you may read and run it."


def _silence_output() -> int:
    """Return the code of a command that SIGPIPE ended: `grid jobs | head` is not a failure."""
    import os

    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nothing, stream.fileno())  # the rest must not fail at exit
    return BROKEN_PIPE


def _usage_hint(error: click.ClickException) -> str:
    if hint := getattr(error, "hint", ""):
        return str(hint)
    ctx = getattr(error, "ctx", None)
    return f"See `{ctx.command_path} --help`." if ctx else ""


def _unexpected(error: Exception) -> int:
    # Imported here, so that a command without errors does not load them.
    from gridhand.core.errors import GridError

    if isinstance(error, GridError):
        return _failed(str(error), error.hint)
    # A bug of ours is shown in full, with an exit code that is not taken for a job's.
    sys.excepthook(type(error), error, error.__traceback__)
    return OWN_FAILURE


def _failed(message: str, hint: str) -> int:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return OWN_FAILURE


def main() -> None:
    """Run the console script."""
    _leave(run(make_cli(COMMANDS), sys.argv[1:]))


def _leave(code: int) -> None:
    """End the process, and skip the interpreter's teardown if no exit handler is registered.

    The teardown takes a sixth of the time of a short command.
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


if __name__ == "__main__":  # a client starts a controller this way
    main()
