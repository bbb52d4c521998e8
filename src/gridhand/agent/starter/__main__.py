"""The starter as a process of its own: `python -m gridhand.agent.starter`."""

from __future__ import annotations

import sys

from gridhand.agent.starter.starter import Starter
from gridhand.posix.daemon import become_subreaper, detach, enter_private_folder, lock

_USAGE = "usage: gridhand.agent.starter FOLDER [--grace SECONDS] [--detach]"


def main(arguments: list[str]) -> int:
    """Run a starter in the given folder; return 3 if another one has the folder."""
    folder, grace_s, detached = _options(arguments)
    folder_fd = enter_private_folder(folder)
    ready = detach() if detached else None
    if lock(folder_fd) is None:
        print("another starter has this folder", file=sys.stderr)
        return 3
    become_subreaper()
    starter = Starter(folder_fd, grace_s)
    if ready is not None:
        ready()
    starter.run()
    return 0


def _options(arguments: list[str]) -> tuple[str, float, bool]:
    """Read the command line by hand: argparse would add milliseconds to the start."""
    rest = [argument for argument in arguments if argument != "--detach"]
    match rest:
        case [folder]:
            grace_s = 60.0
        case [folder, "--grace", seconds]:
            grace_s = float(seconds)
        case _:
            raise SystemExit(_USAGE)
    return folder, grace_s, len(rest) < len(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
