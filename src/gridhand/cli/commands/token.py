"""`grid token`: let clients on a network act for an owner, and stop that again."""

from __future__ import annotations

import os
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import CommandGroup, option

_AS_JSON = option("--json", "as_json", is_flag=True, help="Print JSON.")
_FILE = option(
    "-o",
    "--output",
    "path",
    type=click.Path(),
    metavar="FILE",
    help="Write the token to a new file that only you can read, instead of showing it.",
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def token(ctx: click.Context) -> None:
    """Manage the tokens of clients on the network."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@token.command(
    epilog="""
    grid token create --scope submit --owner ann --ttl 30d -o ann.token
    """
)
@option(
    "--scope",
    required=True,
    metavar="SCOPE",
    help="read, submit, admin, or agent:NODE. Each of the first three may do what those before it"
    " may; a token of an agent serves one node.",
)
@option("--owner", metavar="NAME", help="Act for this owner; by default for you.")
@option("--ttl", metavar="TIME", help="Refuse it after this time, such as 12h or 30d.")
@_FILE
@_AS_JSON
def create(scope: str, owner: str | None, ttl: str | None, path: str | None, as_json: bool) -> None:
    """Create a token. It is shown once: only a hash of it is kept."""
    from gridhand.cli.options import seconds
    from gridhand.client import connect

    ttl_s = None if ttl is None else seconds(ttl, "--ttl")
    _check_new(path)
    with connect() as client:
        made = client.create_token(scope, owner=owner, ttl_s=ttl_s)
    what = f"created token {made['id']} for {made['owner']} with the scope {made['scope']}"
    _show(made, what, path, as_json)


@token.command(name="list")
@_AS_JSON
def list_tokens(as_json: bool) -> None:
    """List the tokens, without anything secret."""
    from gridhand.client import connect

    with connect() as client:
        tokens = client.tokens()
    if as_json:
        render.print_json(tokens)
        return
    head = ("ID", "OWNER", "SCOPE", "STATE", "MADE", "EXPIRES", "LAST USED")
    times = ("made_at", "expires_at", "last_used_at")
    rows = [
        (one["id"], one["owner"], one["scope"], one["state"], *(one[name] or "-" for name in times))
        for one in tokens
    ]
    click.echo("\n".join(render.table(head, rows)))


@token.command()
@_FILE
@_AS_JSON
@click.argument("id")
def rotate(id: str, path: str | None, as_json: bool) -> None:
    """Give a token another secret. The old one is refused at once."""
    from gridhand.client import connect

    _check_new(path)
    with connect() as client:
        made = client.rotate_token(id)
    _show(made, f"rotated token {made['id']} of {made['owner']}", path, as_json)


@token.command()
@_AS_JSON
@click.argument("id")
def revoke(id: str, as_json: bool) -> None:
    """Refuse a token from now on, and end what is open with it."""
    from gridhand.client import connect

    with connect() as client:
        revoked = client.revoke_token(id)
    if as_json:
        render.print_json(revoked)
    else:
        click.echo(f"revoked token {revoked['id']} of {revoked['owner']}")


def _show(made: dict[str, Any], what: str, path: str | None, as_json: bool) -> None:
    """Print the token on stdout, or write it to a file; what was done goes to stderr."""
    if path is not None:
        _write(path, made.pop("token"))
        made["file"] = path
    if as_json:
        render.print_json(made)
        return
    if path is None:
        click.echo(made["token"])
        hint = "clients find it in $GRIDHAND_TOKEN; it is not shown again"
    else:
        hint = f"clients find it with GRIDHAND_TOKEN_FILE={path}"
    click.echo(f"grid: {what}; {hint}", err=True)


def _check_new(path: str | None) -> None:
    """Raise before a token is made that could not be written."""
    if path is not None and os.path.lexists(path):
        raise click.ClickException(f"{path} exists; give the name of a new file")


def _write(path: str, text: str) -> None:
    from gridhand.posix.private_files import create_private_file

    try:
        create_private_file(path, f"{text}\n".encode())
    except OSError as error:
        raise click.ClickException(
            f"{path}: {error.strerror}; the token was made and cannot be shown again: revoke it, or"
            " rotate it with another file"
        ) from error
