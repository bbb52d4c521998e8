"""`grid wait`: wait until jobs have ended."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support.attach import WaitingLine, say, why_ended
from gridhand.cli.support.completions import complete_jobs
from gridhand.cli.support.outcome import TIMED_OUT, exit_code

if TYPE_CHECKING:
    from gridhand.client import Client

Job = dict[str, Any]


@command(
    epilog="""
    grid wait 17 18 && grid run -- ./merge
    grid wait --timeout 10m @
    """
)
@option("--timeout", metavar="TIME", help="Give up after this time, with exit code 124: 90s, 10m.")
@option("--json", "as_json", is_flag=True, help="Print the ended jobs as JSON.")
@option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_jobs)
@click.pass_context
def wait(
    ctx: click.Context, ids: tuple[str, ...], timeout: str | None, as_json: bool, quiet: bool
) -> None:
    """Wait until jobs have ended.

    Exits with 0 if all succeeded, else with the code of the first that did not. The id of an array
    means all its tasks, and @ means your last job. Ctrl-C does not touch the jobs.
    """
    from gridhand.cli.commands.jobs import resolve_id, tasks
    from gridhand.cli.options import seconds
    from gridhand.client import connect

    patience = None if timeout is None else seconds(timeout, "--timeout")
    deadline = None if patience is None else time.monotonic() + patience
    ended: list[Job] = []
    with connect() as client:
        client.on_wait = say
        for id in [resolve_id(client, id) for id in ids]:
            for job in tasks(client, id):
                last = job if _is_over(job) else _follow(client, job, deadline, quiet)
                if not _is_over(last):
                    say(f"job {last['id']} is still {last['state']} after {timeout}")
                    ctx.exit(TIMED_OUT)
                ended.append(last)
                if not quiet and (text := why_ended(client, last)):
                    say(f"job {last['id']}: {text}")
    if as_json:
        render.print_json(ended)
    ctx.exit(next((code for job in ended if (code := exit_code(job))), 0))


def _is_over(job: Job) -> bool:
    return job["state"] not in ("queued", "running")


def _follow(client: Client, job: Job, deadline: float | None, quiet: bool) -> Job:
    """Follow a job to its end or to the deadline; return it as it is then."""
    follower, line = client.follow(job["id"], output=False), WaitingLine(quiet)
    timers = [threading.Timer(1, line.due)]
    if deadline is not None:
        timers.append(threading.Timer(max(0.0, deadline - time.monotonic()), follower.stop))
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        for frame, _ in follower:
            if frame["event"] == "job" or frame["event"] == "end":
                job = dict(frame["job"])
                line.update(job)
    finally:
        for timer in timers:
            timer.cancel()
        line.clear()
        follower.close()
    return job
