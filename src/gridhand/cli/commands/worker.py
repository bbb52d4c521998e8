"""`grid worker`: make this machine a node of a controller on another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gridhand.cli.help_format import command, option

if TYPE_CHECKING:
    from gridhand.external.worker_life import WorkerOptions


@command(
    epilog="""
    grid token create --scope agent:lab2 -o lab2.token   at the controller
    grid worker --address https://grid.example:7070 --token-file lab2.token
    """
)
@option("--address", required=True, metavar="URL", help="Address of the controller.")
@option(
    "--token-file",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="File with a token for this node, made with `grid token create --scope agent:NODE`.",
)
@option("--name", metavar="NODE", help="Name of the node; by default that of this machine.")
@option(
    "--offer",
    metavar="AMOUNTS",
    help="Offer this much, such as cpu=4,memory=8GB, instead of the whole machine.",
)
@option(
    "--folder",
    type=click.Path(),
    metavar="PATH",
    help="Folder for jobs and for what the worker must remember; by default in the home folder.",
)
@click.pass_context
def worker(
    ctx: click.Context,
    address: str,
    token_file: str,
    name: str | None,
    offer: str | None,
    folder: str | None,
) -> None:
    """Serve this machine as a node of another controller.

    The worker runs in the foreground. It registers the node, fetches jobs and runs them, each in a
    folder of its own, as the user who started it. It goes on when the controller or the network is
    away; if that lasts for 15 seconds, its jobs are stopped, because the controller starts them
    elsewhere. Ctrl-C or SIGTERM stops the jobs and ends it: they are queued again.
    """
    ctx.exit(_run(_options(address, token_file, name, offer, folder)))


def _options(
    address: str, token_file: str, name: str | None, offer: str | None, folder: str | None
) -> WorkerOptions:
    import os
    import socket

    from gridhand.client.credentials import read_token_file
    from gridhand.core.model.names import check_node_name
    from gridhand.external.worker_life import WorkerOptions
    from gridhand.home import Home

    node = check_node_name(name or socket.gethostname())
    amounts = None if offer is None else offer.replace(",", " ")
    place = folder or os.path.join(Home.find().folder, "workers", node)
    return WorkerOptions(address, read_token_file(token_file), node, amounts, place)


def _run(options: WorkerOptions) -> int:
    from gridhand.external.worker_life import run_worker

    return run_worker(options)
