"""`grid completion`: the lines that let a shell complete commands and options."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Let a shell complete commands.

    Prints what the shell has to read: put `eval "$(grid completion bash)"` into ~/.bashrc, the same
    with zsh into ~/.zshrc, or `grid completion fish | source` into config.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "grid", "_GRID_COMPLETE").source())
