"""The agent as a process of its own.

    python -E -s -m gridhand.agent.main FOLDER --starter FOLDER [--grace SECONDS] [--detach]
        [--measured] [--virtual-node NAME AMOUNTS] [--lease MS]

It lives as long as jobs run or a controller is connected, and a while longer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading

from gridhand.agent.link_errors import LinkError
from gridhand.agent.starter.starter_client import ensure_starter
from gridhand.posix.daemon import detach, enter_private_folder, lock, protect, unprotected


def main(arguments: list[str]) -> int:
    """Run an agent in the given folder; return 3 if another one has the folder."""
    options = _options(arguments)
    folder, starter = os.path.abspath(options.folder), os.path.abspath(options.starter)
    folder_fd = enter_private_folder(folder)
    ready = detach() if options.detach else lambda: None
    if lock(folder_fd) is None:
        print("another agent has this folder", file=sys.stderr)
        return 3
    protect()
    # The starter comes up while this process imports its modules, which takes about as long.
    threading.Thread(target=_wake_starter, args=(starter,), daemon=True).start()
    from gridhand.agent.lifetime import run_agent

    asyncio.run(run_agent(folder, folder_fd, starter, options, ready))
    return 0


def _wake_starter(folder: str) -> None:
    with contextlib.suppress(LinkError, OSError):  # the agent meets the same error, and tells it
        ensure_starter(folder, around=unprotected)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gridhand.agent.main")
    parser.add_argument("folder")
    parser.add_argument("--starter", required=True, help="the folder of the starter")
    parser.add_argument("--grace", type=float, default=60.0, help="seconds to stay when idle")
    parser.add_argument("--detach", action="store_true", help="run as a daemon")
    text = "make no control groups: measure what jobs use"
    parser.add_argument("--measured", action="store_true", help=text)
    text = "be this node, with these amounts, instead of this machine"
    names = ("NAME", "AMOUNTS")
    parser.add_argument("--virtual-node", nargs=2, metavar=names, type=str, help=text)
    text = "stop all jobs unless the lease is renewed within this time"
    parser.add_argument("--lease", metavar="MS", type=int, help=text)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
