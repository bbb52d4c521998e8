"""Another user of this machine, played by a process with another uid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

OTHER = 61234

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="plays another user, as only root can")


def run_as_other(code: str, *arguments: object) -> None:
    """Run Python code as the other user, to its end."""
    subprocess.run(_command(code, arguments), check=True)


class OtherProcess:
    """Python code that runs as the other user until the end of a `with` statement.

    It has begun when it has printed a line.
    """

    def __init__(self, code: str, *arguments: object) -> None:
        self._command = _command(code, arguments)

    def __enter__(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline()
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


# The other user may not be able to read our Python, so modules are imported before.
_CHANGE = f"""
import fcntl, os, resource, select, socket, sys, time
os.setgroups([])
os.setresgid({OTHER}, {OTHER}, {OTHER})
os.setresuid({OTHER}, {OTHER}, {OTHER})
"""


def _command(code: str, arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _CHANGE + code, *map(str, arguments)]
