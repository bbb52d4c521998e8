"""`grid fetch`: copy files of a job on another machine into this folder."""

from __future__ import annotations

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support.completions import complete_jobs


@command(
    epilog="""
    grid fetch 17 'results/*.csv'
    """
)
@option("--list", "only_list", is_flag=True, help="Only list the files.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("job", shell_complete=complete_jobs)
@click.argument("files", nargs=-1, metavar="[FILE]...")
def fetch(job: str, files: tuple[str, ...], only_list: bool, as_json: bool) -> None:
    """Copy files of a job from another machine.

    They are copied into this folder, below their own names.

    FILE may have * and ?, and may be a folder; without one, all files are copied.
    """
    from gridhand.cli.commands.jobs import resolve_id
    from gridhand.cli.support.remote_files import fetch_files
    from gridhand.client import connect

    with connect() as client:
        id = resolve_id(client, job)
        if only_list:
            found = client.files(id)
        else:
            found = [{"name": name} for name in fetch_files(client, id, files or (".",))]
    if as_json:
        render.print_json(found)
    else:
        for one in found:
            click.echo(render.clean(one["name"]))
