"""The name of a machine among those that share a store, which its home remembers."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket

from gridhand.home import Home
from gridhand.posix.private_files import create_private_file


def machine_name(home: Home) -> str:
    """Return the name of a home's machine; choose one if there is none yet.

    The host's name alone is not enough: it may be that of another machine, too.
    """
    with contextlib.suppress(FileExistsError):
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60]
        create_private_file(home.machine, f"{host}-{secrets.token_hex(4)}".encode())
    with open(home.machine, encoding="utf-8") as file:
        return file.read()
