"""`grid completion`: the script that lets a shell complete commands, options and their values."""

from __future__ import annotations

import click

from gridhand.cli.help_format import command


@command(
    epilog="""
    eval "$(grid completion bash)"     in ~/.bashrc
    eval "$(grid completion zsh)"      in ~/.zshrc
    grid completion fish | source      in config.fish
    """
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "grid", "_GRID_COMPLETE").source())
