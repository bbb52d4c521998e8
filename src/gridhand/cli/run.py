"""`grid run`: a command, where it fits."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli.options import read_names, request_options
from gridhand.cli.scripts import ScriptCommand

if TYPE_CHECKING:
    from gridhand.cli.attached import Attached
    from gridhand.client import Client

_CONDITIONS = ("afterok", "afterany", "afternotok")


def read_after(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """`17`, `17,18`, or as in Slurm `afterok:17:18,afterany:19`; a bare id is afterok."""
    found = []
    for part in read_names(ctx, param, values):
        condition, *ids = part.split(":") if ":" in part else ("afterok", part)
        if condition not in _CONDITIONS or not all(ids):
            allowed = f"an id, or {', '.join(_CONDITIONS)} and ids, as in afterok:17:18"
            raise click.BadParameter(f"{part!r} is not {allowed}")
        found += [{"id": id, "condition": condition} for id in ids]
    return found


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@request_options
@click.option("-p", "--priority", metavar="P", help="urgent, high, medium or low.")
@click.option("-J", "--name", metavar="NAME", help="What it is called in lists.")
@click.option("-t", "--time", "limit", metavar="TIME", help="At most: minutes, H:M:S, D-H or 90s.")
@click.option("--grace", metavar="TIME", help="Between warning and killing: seconds, or 2m.")
@click.option("--type", "task_type", metavar="TYPE", help="The kind of work, for predictions.")
@click.option("-d", "--detach", is_flag=True, help="Print its id and leave; it goes on without us.")
@click.option(
    "--after",
    "--dependency",
    multiple=True,
    callback=read_after,
    metavar="ID",
    help="When this job has succeeded; also afterany:ID, afternotok:ID.",
)
@click.option("-a", "--array", metavar="1-10%4", help="Once for each index; %4: four at a time.")
@click.option("--retries", type=click.IntRange(0), help="How often again if it fails.")
@click.option(
    "--retry-on",
    multiple=True,
    callback=read_names,
    metavar="CAUSE",
    help="Only for these: oom, timeout, exit codes such as 75 or 100-109, …",
)
@click.option("--processes", type=click.IntRange(1), help="At most so many at once, with threads.")
@click.option("--within", metavar="ID", help="In what `grid reserve` holds: its id or its holder.")
@click.option("-i", "--input", "stdin", metavar="FILE", help="What it reads; none for nothing.")
@click.option("-o", "--output", "stdout", metavar="FILE", help="Where its output goes.")
@click.option("-e", "--error", "stderr", metavar="FILE", help="Where its errors go.")
@click.option(
    "--dry-run",
    "--test-only",
    "dry_run",
    is_flag=True,
    help="Only say where it would go, or why not.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON, not its output.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of our own unless we fail.")
@click.argument("command", nargs=-1, required=True, metavar="[--] COMMAND...")
@click.pass_context
def run(ctx: click.Context, /, **given: Any) -> None:
    """Run a command where it fits.

    Its output appears here and its exit code is ours: 128+n if signal n ended it, 127 if there is
    no such command, 126 if it cannot be run, and 125 if we failed ourselves. It runs in this folder
    with this environment and input, and ends if we do, unless --detach. Ctrl-C is passed on to it;
    twice cancels it.

    COMMAND and its options are passed as they are, and no shell reads them. A single word with
    spaces, as in 'echo hi there', is split into words. Of a script, lines at its head such as
    `#GRID -c 2 --mem 4GB` are options, too; those given here win.

    With --dry-run nothing is submitted: the exit code is 0 if it would start now, 1 if it would
    wait, and 125 if it would be refused.
    """
    from gridhand.client import connect

    order = submission(**given)
    with connect() as client:
        client.waits = _say
        name_last(client, order)
        if given["dry_run"]:
            from gridhand.cli.dryrun import dry_run

            ctx.exit(dry_run(client, order, as_json=given["as_json"]))
        elif given["detach"]:
            leave(client.submit(order), as_json=given["as_json"], quiet=given["quiet"])
        elif given["array"] is not None:
            ctx.exit(stay_with_array(client, order, given))
        else:
            ctx.exit(stay(client, order, given))


def submission(**given: Any) -> dict[str, Any]:
    """What is sent. Nothing is asked for unless it is named, but a command has a core."""
    request = given["request"]
    folder = _folder()
    order = {
        "command": list(given["command"]),
        "folder": folder,
        "environment": dict(os.environ),
        "request": request if "cpu" in request else {"cpu": 1, **request},
        "detached": given["detach"],
    }
    if given["within"] is not None and not request:
        del order["request"]
    for name in ("name", "priority", "task_type", "array", "retries", "processes", "within"):
        if given[name] is not None:
            order[name] = given[name]
    for name in ("after", "retry_on"):
        if given[name]:
            order[name] = given[name]
    if given["retry_on"] and given["retries"] is None:
        order["retries"] = 1  # who says for what means that it shall be tried again
    for name in ("stdin", "stdout", "stderr"):
        if given[name] is not None and (name, given[name]) != ("stdin", "none"):
            order[name] = os.path.join(folder, given[name])
    return order | _times(given)


def name_last(client: Client, order: dict[str, Any]) -> None:
    """Put its id for each @ among what it is to run after."""
    for one in order.get("after", ()):
        if one["id"] == "@":
            from gridhand.cli.jobs import whole

            one["id"] = whole(client, "@")


def _times(given: dict[str, Any]) -> dict[str, Any]:
    times: dict[str, Any] = {}
    if given["limit"] is not None:
        from gridhand.core.durations import read_time_limit

        limit = read_time_limit(given["limit"], "--time")
        times["time_limit_s"] = None if limit is None else limit / 1000
    if given["grace"] is not None:
        from gridhand.cli.options import seconds

        times["grace_s"] = seconds(given["grace"], "--grace")
    return times


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise click.ClickException("the current folder is not there any more") from None


def leave(jobs: list[dict[str, Any]], *, as_json: bool, quiet: bool) -> None:
    """Print how to find again what goes on without us."""
    whole = jobs[0]["array"] or jobs[0]["id"]
    if as_json:
        import json

        click.echo(json.dumps(jobs if jobs[0]["array"] else jobs[0]))
        return
    click.echo(whole)
    if not quiet:
        what = f"{len(jobs)} jobs of array" if jobs[0]["array"] else "job"
        click.echo(f"grid: submitted {what} {whole}; `grid logs -f {whole}` follows", err=True)


def stay(client: Client, order: dict[str, Any], given: dict[str, Any]) -> int:
    """Submit a job, be with it to its end, and answer its exit code."""
    from gridhand.cli.stdin import Stdin

    with closing(Stdin(0 if given["stdin"] is None else -1)) as stdin:
        if stdin.path is not None:
            order["stdin"] = stdin.path
        [job] = client.submit(order)
        with _attached(client, job, order, given) as attached:
            job = attached.follow(job, stdin=stdin, output=not given["as_json"])
        _print([job], given, whole=False)
        return attached.end(job)


def stay_with_array(client: Client, order: dict[str, Any], given: dict[str, Any]) -> int:
    """Submit an array, and show the output of its tasks one after the other.

    They run side by side; what a later one wrote meanwhile is shown when its turn has come. The
    exit code is the highest.
    """
    from gridhand.cli.together import Together

    ended: list[dict[str, Any]] = []
    codes = [0]
    with Together(client) as together:
        jobs = client.submit(order)
        together.attach(jobs)
        with _attached(client, jobs[0], order, given) as attached:
            for job in jobs:
                ended.append(attached.follow(job, output=not given["as_json"]))
                codes.append(attached.end(ended[-1]))
    _print(ended, given, whole=True)
    return max(codes)


def _attached(
    client: Client, job: dict[str, Any], order: dict[str, Any], given: dict[str, Any]
) -> Attached:
    from gridhand.cli.attached import Attached

    return Attached(client, job, quiet=given["quiet"], elsewhere=order.keys())


def _say(text: str) -> None:
    from gridhand.cli.attached import say

    say(text)


def _print(jobs: list[dict[str, Any]], given: dict[str, Any], *, whole: bool) -> None:
    if given["as_json"]:
        import json

        click.echo(json.dumps(jobs if whole else jobs[0]))
