"""`grid run`: run a command on a node that has room for it."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli.help_format import command, option, option_group
from gridhand.cli.options import PLACEMENT, read_names, request_options
from gridhand.cli.support.completions import complete_files, complete_jobs
from gridhand.cli.support.scripts import ScriptCommand

if TYPE_CHECKING:
    from gridhand.cli.support.attach import Attached
    from gridhand.client import Client

_CONDITIONS = ("afterok", "afterany", "afternotok")
_PLAIN = (
    "name", "priority", "task_type", "array", "nodes", "retries", "processes", "within", "queue",
)  # fmt: skip
_COUNT = partial(option, metavar="N")
_FILE = partial(option, shell_complete=complete_files, metavar="FILE")


def read_after(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """Read `17`, `17,18`, or as in Slurm `afterok:17:18,afterany:19`; a bare id is afterok."""
    dependencies = []
    for part in read_names(ctx, param, values):
        condition, *ids = part.split(":") if ":" in part else ("afterok", part)
        if condition not in _CONDITIONS or not all(ids):
            allowed = f"an id, or {', '.join(_CONDITIONS)} and ids, as in afterok:17:18"
            raise click.BadParameter(f"{part!r} is not {allowed}")
        dependencies += [{"id": id, "condition": condition} for id in ids]
    return dependencies


def read_variables(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """Read `NAME=TEXT`, or `NAME` for the caller's own."""
    variables = []
    for value in values:
        name, mark, text = value.partition("=")
        if not name or (not mark and name not in os.environ):
            raise click.BadParameter(f"{value!r} is not NAME=TEXT, or the NAME of a variable")
        variables.append((name, text if mark else os.environ[name]))
    return variables


@command(
    cls=ScriptCommand,
    context_settings={"allow_interspersed_args": False},
    epilog="""
    grid run -c 2 --mem 4GB -- python train.py
    grid run -d --gpus 1 -t 2h -- python train.py     in the background for 2 h
    grid run -a 1-100%8 -- ./task.sh                  100 tasks, 8 at a time
    grid run --after 17 --retries 3 -- ./report.sh    after job 17 has succeeded
    grid run --nodes 4 --gpus 8 -- ./train.sh         on 4 nodes at once, 8 GPUs on each
    """,
)
@request_options
@option_group(
    PLACEMENT,
    _COUNT(
        "-N", "--nodes", type=click.IntRange(1), help="One process on each of N nodes, together."
    ),
    option("--within", metavar="ID", help="Run inside a reservation made with `grid reserve`."),
    option("--anywhere", is_flag=True, help="Run on other machines, too, in a new folder there."),
)
@option_group(
    "Queueing",
    option("-d", "--detach", is_flag=True, help="Print the job's id and return at once."),
    option("-J", "--name", metavar="NAME", help="Name of the job in lists."),
    option("-p", "--priority", metavar="P", help="urgent, high, medium or low."),
    option(
        "--after",
        "--dependency",
        multiple=True,
        callback=read_after,
        shell_complete=complete_jobs,
        metavar="ID",
        help="Start after this job has succeeded; also afterany:ID, afternotok:ID.",
    ),
    option("-a", "--array", metavar="1-10%4", help="Run one task for each index, four at a time."),
    option("--queue", metavar="NAME", help="Use this named queue of the configuration."),
    option("--expect", metavar="TIME", help="Time it should take, for planning; -t ends it."),
    option("--begin", metavar="WHEN", help="Start no earlier: +2h, 18:00, 'tomorrow 09:00'."),
    option("--deadline", metavar="WHEN", help="Cancel it if it can no longer end by then."),
    option(
        "--fallback-after",
        metavar="TIME",
        help="Use the alternatives of the request only after it has waited so long.",
    ),
    option("--type", "task_type", metavar="TYPE", help="Kind of work, for predictions."),
)
@option_group(
    "Limits and retries",
    option("-t", "--time", "limit", metavar="TIME", help="Time limit: minutes, H:M:S, D-H or 90s."),
    option("--signal", "warning", metavar="SIG@S", help="Send SIG so many seconds before -t ends."),
    option("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL: 30 or 2m."),
    _COUNT("--processes", type=click.IntRange(1), help="Most processes and threads at once."),
    _COUNT("--retries", type=click.IntRange(0), help="Most attempts after the first one fails."),
    option(
        "--retry-on",
        multiple=True,
        callback=read_names,
        metavar="CAUSE",
        help="Retry only for these: oom, timeout, exit codes such as 75, …",
    ),
)
@option_group(
    "Input and output",
    _FILE("-i", "--input", "stdin", help="Read stdin from FILE, or `none`."),
    _FILE("-o", "--output", "stdout", help="Write stdout to FILE."),
    _FILE("-e", "--error", "stderr", help="Write stderr to FILE."),
    option(
        "--env",
        "variables",
        multiple=True,
        callback=read_variables,
        metavar="NAME=TEXT",
        help="Set a variable; NAME alone passes yours on to another machine.",
    ),
    _FILE("--send", multiple=True, help="Copy to the other machine first. Repeatable."),
    _FILE("--fetch", multiple=True, help="Copy back from the other machine. Repeatable."),
    option("-q", "--quiet", is_flag=True, help="Print nothing but errors of our own."),
    option("--json", "as_json", is_flag=True, help="Print the job as JSON, not its output."),
)
@option(
    "--dry-run",
    "--test-only",
    "dry_run",
    is_flag=True,
    help="Only show where it would start, or why it would wait.",
)
@click.argument(
    "command",
    nargs=-1,
    required=True,
    shell_complete=complete_files,
    metavar="[--] COMMAND...",
)
@click.pass_context
def run(ctx: click.Context, /, **given: Any) -> None:
    """Run a command on a node that has room for it.

    The command runs in this folder, with this environment and input. Its output appears here, and
    grid exits with the command's code; 124 means that the time limit was exceeded, and 125 that
    grid itself failed. Ctrl-C goes to the job, and a second Ctrl-C cancels it; an array is
    cancelled at once. Without --detach the job ends when grid does.

    COMMAND is not read by a shell. A single word with spaces, as in 'echo hi', is split into words.
    Lines at the top of a script, such as `#GRID -c 2 --mem 4GB` or `#SBATCH -c 2`, are options too;
    options on the command line override them. A script need not be executable.

    With --dry-run nothing is submitted, and the exit code is 0 if the job would start now, 1 if it
    would wait, and 125 if it would be refused.

    If $GRIDHAND_ADDRESS is a controller on another machine, the command runs there in an empty
    folder, with the files of --send and the variables of --env, and without input.
    """
    from gridhand.client import connect

    order = submission(**given)
    with connect() as client:
        client.on_wait = _say
        _adapt(client, order, given)
        resolve_last_job(client, order)
        if given["dry_run"]:
            from gridhand.cli.support.plan_output import dry_run

            ctx.exit(dry_run(client, order, as_json=given["as_json"]))
        elif given["detach"]:
            print_submitted(submit(client, order, given), given)
        elif given["array"] is not None or given["nodes"] is not None:
            ctx.exit(run_array(client, order, given))
        else:
            ctx.exit(run_job(client, order, given))


def _adapt(client: Client, order: dict[str, Any], given: dict[str, Any]) -> None:
    """Send what a job on another machine needs, and nothing that it cannot use."""
    if not client.remote and not given["send"] and not given["fetch"]:
        return
    from gridhand.cli.support.remote_files import adapt_order, refuse_files

    many = given["array"] is not None or given["nodes"] is not None
    if given["fetch"] and (given["detach"] or many):
        raise click.UsageError("--fetch needs one job to wait for; use `grid fetch` afterwards.")
    if client.remote:
        adapt_order(client, order, given)
    else:
        refuse_files(given)


def submission(**given: Any) -> dict[str, Any]:
    """Return the submission to send. The controller adds what the request does not name."""
    from gridhand.posix.caller_settings import VARIABLE, own_settings

    request = given["request"]
    folder = _folder()
    order = {
        "command": list(given["command"]),
        "folder": folder,
        "environment": {**os.environ, VARIABLE: own_settings(), **dict(given["variables"])},
        "request": request,
        "detached": given["detach"],
    }
    if given["anywhere"]:
        order["anywhere"] = True
    if given["within"] is not None and not request:
        del order["request"]
    for name in _PLAIN:
        if given[name] is not None:
            order[name] = given[name]
    for name in ("after", "retry_on"):
        if given[name]:
            order[name] = given[name]
    if given["retry_on"] and given["retries"] is None:
        order["retries"] = 1  # --retry-on alone means one retry
    for name in ("stdin", "stdout", "stderr"):
        if given[name] is not None and (name, given[name]) != ("stdin", "none"):
            order[name] = os.path.join(folder, given[name])
    return order | _times(given)


def resolve_last_job(client: Client, order: dict[str, Any]) -> None:
    """Replace each @ among the dependencies by the id of the last job."""
    for dependency in order.get("after", ()):
        if dependency["id"] == "@":
            from gridhand.cli.commands.jobs import resolve_id

            dependency["id"] = resolve_id(client, "@")


def _times(given: dict[str, Any]) -> dict[str, Any]:
    times: dict[str, Any] = {}
    if given["limit"] is not None:
        from gridhand.core.model.durations import read_time_limit

        limit = read_time_limit(given["limit"], "--time")
        times["time_limit_s"] = None if limit is None else limit / 1000
    if given["grace"] is not None:
        from gridhand.cli.options import seconds

        times["grace_s"] = seconds(given["grace"], "--grace")
    for name in ("expect", "fallback_after"):
        if given[name] is not None:
            from gridhand.core.model.durations import read_duration

            option = f"--{name.replace('_', '-')}"
            times[f"{name}_s"] = read_duration(given[name], option) / 1000
    return times | _moments(given)


def _moments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the times of day as seconds from now, and the signal before the time limit."""
    moments: dict[str, Any] = {}
    for name in ("begin", "deadline"):
        if given[name] is not None:
            from gridhand.client.moments import seconds_until

            moments[f"{name}_s"] = seconds_until(given[name], f"--{name}")
    if given["warning"] is not None:
        from gridhand.client.moments import read_warning

        moments["warn_signal"], moments["warn_s"] = read_warning(given["warning"], "--signal")
    return moments


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise click.ClickException("the current folder no longer exists") from None


def print_submitted(jobs: list[dict[str, Any]], given: dict[str, Any]) -> None:
    """Print the id of a detached job or array, and how to follow it."""
    id, as_json, quiet = jobs[0]["array"] or jobs[0]["id"], given["as_json"], given["quiet"]
    if as_json:
        import json

        click.echo(json.dumps(jobs if jobs[0]["array"] else jobs[0]))
        return
    click.echo(id)
    if not quiet:
        what = f"job {id}"
        if given["nodes"] is not None:
            what = f"gang {id} (on {given['nodes']} nodes)"
        elif jobs[0]["array"]:
            what = f"array {id} ({len(task_ids(jobs, given))} tasks)"
        click.echo(f"grid: submitted {what}; follow it with `grid logs -f {id}`", err=True)


def submit(client: Client, order: dict[str, Any], given: dict[str, Any]) -> list[dict[str, Any]]:
    """Submit; say what may not be as the user expects, and whether it can never start."""
    jobs = client.submit(order)
    if given["quiet"]:
        return jobs
    for warning in client.warnings:
        _say(f"warning: {warning}")
    if not given["detach"] and "GRIDHAND_JOB_ID" in os.environ:
        from gridhand.cli.support.deadlock import deadlock_message

        if message := deadlock_message(client, jobs[0]):
            _say(f"warning: {message}")
    return jobs


def task_ids(jobs: list[dict[str, Any]], given: dict[str, Any]) -> list[str]:
    """Return the ids of all tasks: the reply has only the first of a large array."""
    if given["nodes"] is not None:
        return [f"{jobs[0]['array']}_{rank}" for rank in range(given["nodes"])]
    from gridhand.core.model.job_arrays import read_array

    return [f"{jobs[0]['array']}_{index}" for index in read_array(given["array"]).indices]


def run_job(client: Client, order: dict[str, Any], given: dict[str, Any]) -> int:
    """Submit a job, follow it to its end, and return its exit code."""
    from gridhand.cli.support.stdin import Stdin

    own_input = given["stdin"] is None and not client.remote
    with closing(Stdin(0 if own_input else -1)) as stdin:
        if stdin.path is not None:
            order["stdin"] = stdin.path
        if stdin.is_pipe and "retries" not in order:
            order["retry_on"] = []  # another attempt would get only what this one has not read
        [job] = submit(client, order, given)
        with _attached(client, job, order, given) as attached:
            job = attached.follow(job, stdin=stdin, output=not given["as_json"])
        _print([job], given, many=False)
        code = attached.end(job)
        if given["fetch"]:
            from gridhand.cli.support.remote_files import fetch_files

            fetch_files(client, job["id"], given["fetch"])
        return code


def run_array(client: Client, order: dict[str, Any], given: dict[str, Any]) -> int:
    """Submit an array, print the output of its tasks in order, and return the highest exit code.

    The tasks run side by side; the output of a later one is printed when those before it have
    ended. The exit code of a gang is that of the member that failed first.
    """
    from gridhand.cli.support.gang_outcome import gang_exit_code
    from gridhand.client.session import Session

    ended: list[tuple[dict[str, Any], int]] = []
    with Session(client) as session:  # the jobs end with this process, however it ends
        jobs = submit(client, order, given)
        ids = task_ids(jobs, given)
        session.attach(ids)
        kept = given["as_json"]
        with _attached(client, jobs[0], order, given) as attached:
            for id in ids:
                job = attached.follow({"id": id, "state": "queued"}, output=not given["as_json"])
                ended.append((job if kept else _summary(job), attached.end(job)))
    _print([job for job, _ in ended], given, many=True)
    if given["nodes"] is not None:
        return gang_exit_code(ended)
    return max(code for _, code in ended)


def _summary(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the exit code depends on: an array may have a million tasks."""
    return {name: job[name] for name in ("reason", "ended_at", "array_index")}


def _attached(
    client: Client, job: dict[str, Any], order: dict[str, Any], given: dict[str, Any]
) -> Attached:
    from gridhand.cli.support.attach import Attached

    return Attached(client, job, quiet=given["quiet"], elsewhere=order.keys())


def _say(text: str) -> None:
    from gridhand.cli.support.attach import say

    say(text)


def _print(jobs: list[dict[str, Any]], given: dict[str, Any], *, many: bool) -> None:
    if given["as_json"]:
        import json

        click.echo(json.dumps(jobs if many else jobs[0]))
