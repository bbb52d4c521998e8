"""The agent as a process of its own.

    python -E -s -m gridhand.agent.main FOLDER --starter FOLDER [--grace SECONDS] [--detach]
        [--measured] [--stands-for NAME AMOUNTS]

It stays as long as jobs run or a controller is connected, and a while longer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading

from gridhand.agent.daemon import detach, lock, protect, unprotected
from gridhand.agent.starting import StarterError, Starters


def main(arguments: list[str]) -> int:
    """Run in the given folder; exits with 3 when another agent has it."""
    options = _options(arguments)
    folder, starter = os.path.abspath(options.folder), os.path.abspath(options.starter)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.fstat(folder_fd).st_mode & 0o077 or os.fstat(folder_fd).st_uid != os.geteuid():
        raise SystemExit(f"{folder} must be yours, and closed to others (mode 0700)")
    os.fchdir(folder_fd)
    ready = detach() if options.detach else lambda: None
    locked = lock(folder_fd)
    if locked is None:
        print("another agent has this folder", file=sys.stderr)
        return 3
    protect()
    # The starter comes up while we load what we need, which takes as long.
    threading.Thread(target=_wake, args=(starter,), daemon=True).start()
    from gridhand.agent.standing import stand

    asyncio.run(stand(folder, folder_fd, starter, options, ready))
    return 0


def _wake(starter: str) -> None:
    with contextlib.suppress(StarterError, OSError):  # who needs it finds out, and says so
        Starters.ensure(starter, epoch=None, around=unprotected).close()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gridhand.agent.main")
    parser.add_argument("folder")
    parser.add_argument("--starter", required=True)
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("--detach", action="store_true")
    words = "make no control groups: measure what jobs use"
    parser.add_argument("--measured", action="store_true", help=words)
    words = "be another node than this machine, with these amounts"
    names = ("NAME", "AMOUNTS")
    parser.add_argument("--stands-for", nargs=2, metavar=names, type=str, help=words)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
