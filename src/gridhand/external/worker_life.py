"""The life of a worker process: check the options, serve, and leave on a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import NamedTuple

from gridhand.core.errors import GridError, InvalidInput
from gridhand.core.model.names import NodeName
from gridhand.core.model.resources import Resources
from gridhand.external.controller_link import ControllerLink
from gridhand.external.node_worker import NodeWorker
from gridhand.external.worker_folder import WorkerFolder

INTERRUPTED = 130


class WorkerOptions(NamedTuple):
    """The wishes of the user who starts a worker."""

    address: str
    token: str
    node: NodeName
    offered: str | None
    folder: str


def run_worker(options: WorkerOptions) -> int:
    """Serve until a signal comes; a second one ends the process at once."""
    if options.offered is not None and not Resources.parse(options.offered):
        raise InvalidInput("offer", options.offered, "what the node has, as in cpu=4,memory=2GB")
    if os.geteuid() == 0:
        say("jobs of all users of the controller will run as root here")
    folder = WorkerFolder(options.folder)
    with folder.locked():
        asyncio.run(_serve(folder, options))
    return 0


async def _serve(folder: WorkerFolder, options: WorkerOptions) -> None:
    leaving = asyncio.Event()
    link = ControllerLink(options.address, options.token, options.node)

    def leave() -> None:
        if leaving.is_set():
            say("ended at once; jobs that run are stopped within 15 s")
            os._exit(INTERRUPTED)
        leaving.set()

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, leave)
    worker = NodeWorker(folder, folder.begin(), link, options.node, say, options.offered)
    try:
        await worker.run(leaving)
    except OSError as error:
        hint = "Check the address, and that the controller listens there."
        raise GridError(f"no controller answers at {link.address}: {error}", hint=hint) from error


def say(sentence: str) -> None:
    """Tell the user something."""
    print(f"grid: {sentence}", file=sys.stderr, flush=True)
