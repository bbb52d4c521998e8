"""`grid serve` and `grid stop`: the controller itself."""

from __future__ import annotations

import click

from gridhand.cli import render


@click.command()
@click.option("--store", metavar="URL", help="Where the state is kept; else in the home folder.")
@click.option("--new-cluster", is_flag=True, help="Begin anew, though nodes know of another state.")
@click.option(
    "--stand-for",
    "nodes",
    multiple=True,
    metavar="NAME:AMOUNTS",
    help="Be this node, as in a:cpu=4,memory=2GB, and not what this machine is. Several make a"
    " cluster to try things on. Kept in the home folder for all controllers that follow.",
)
@click.option("--ready-fd", type=click.IntRange(3), metavar="N", hidden=True)
@click.pass_context
def serve(
    ctx: click.Context,
    store: str | None,
    new_cluster: bool,
    nodes: tuple[str, ...],
    ready_fd: int | None,
) -> None:
    """Run the controller in the foreground.

    Other commands start one by themselves, in the background, when there is none. Ctrl-C or SIGTERM
    ends it; jobs go on and are found again by the next one.
    """
    from gridhand.api.serving import serve as run_controller
    from gridhand.home import Home

    home = Home.find()
    if nodes:
        from gridhand.engines.several import stand_for

        named = (one.partition(":") for one in nodes)
        stand_for(home, {name: amounts.replace(",", " ") for name, _, amounts in named})
    ctx.exit(run_controller(home, store=store, ready_fd=ready_fd, new_cluster=new_cluster))


@click.command()
@click.option("--keep-jobs", "jobs", flag_value="keep", help="Jobs go on without a controller.")
@click.option("--kill-jobs", "jobs", flag_value="kill", help="Jobs are cancelled first.")
@click.option("--json", "as_json", is_flag=True, help="Print what was stopped as JSON.")
def stop(jobs: str | None, as_json: bool) -> None:
    """Stop the controller.

    Refused while jobs are queued or running, unless told what becomes of them. Those that are kept
    are found again by the next controller, which the next command starts.
    """
    from gridhand.client import connect
    from gridhand.core.errors import ControllerUnavailable

    try:
        client = connect(start=False)
    except ControllerUnavailable:
        _say({"stopped": False, "pid": None}, as_json, "no controller runs here")
        return
    with client:
        pid = client.version()["pid"]
        client.stop(jobs=jobs or "refuse")
        here = client.address.startswith("unix:")
    if here:  # elsewhere the number stands for another process
        _await_end(pid)
    kept = "; its jobs go on" if jobs == "keep" else ""
    _say({"stopped": True, "pid": pid}, as_json, f"stopped the controller (pid {pid}){kept}")


def _say(facts: dict[str, object], as_json: bool, sentence: str) -> None:
    if as_json:
        render.print_json(facts)
    else:
        click.echo(sentence)


def _await_end(pid: int, patience_s: float = 60.0) -> None:
    """Wait until the process is gone: what comes next may want its store, or its socket."""
    import time

    deadline = time.monotonic() + patience_s
    while lives(pid):
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"the controller (pid {pid}) was told to stop and still runs"
            )
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
