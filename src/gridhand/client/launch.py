"""Starting a controller that belongs to nobody: not to the caller, its terminal or its job."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from gridhand.client.problems import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.client.client import Client
    from gridhand.core.errors import GridError
    from gridhand.home import Home

READY = "ready"  # else what it says is `error:` and `hint:` lines
COMMAND = [sys.executable, "-m", "gridhand.cli.main", "serve"]  # and --ready-fd N

_LONGEST_S = 60.0
_PATIENCE_S = 1.0  # what takes longer says so, on a terminal
_OTHERS_S = 10.0
_TAIL_LINES = 12

# Run by a Python of its own, as a process with threads must not fork: the controller has no
# parent then that has to wait for it. Cores that a job is pinned to are not the controller's.
_DETACH = "import os, sys; os.fork() and os._exit(0); os.execv(sys.argv[1], sys.argv[1:])"
_UNPIN = "import os; os.sched_setaffinity(0, range(1024)); "

# What an agent sets for a job besides GRIDHAND_*: a controller is to see all of the machine.
_OF_THE_JOB = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}


def launch(home: Home, client: Client) -> None:
    """Start a controller, wait until it answers, and say so; raise if it does not come up."""
    begin = _size(home.log)
    reading, writing = os.pipe()
    try:
        try:
            _spawn(home, writing)
        finally:
            os.close(writing)
        word = _await_word(reading)
    finally:
        os.close(reading)
    if word != READY and not _another_has_come(word, client):
        raise _failure(home, begin, word)
    facts = client.look()
    if facts is None:
        raise _failure(home, begin, "")
    say(f"started a controller for this machine (pid {facts['pid']})\n")


def _spawn(home: Home, ready_fd: int) -> None:
    detach = (_UNPIN if _in_job() else "") + _DETACH
    command = [*COMMAND, "--ready-fd", str(ready_fd)]
    with _log(home) as log:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", detach, *command],
            pass_fds=(ready_fd,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home.folder,
            env=_environment(home),
            check=False,
        )


@contextlib.contextmanager
def _log(home: Home) -> Iterator[int]:
    try:
        fd = os.open(home.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"no controller can be started: {home.log}: {error.strerror}"
        raise unavailable(message, "It writes its log there.") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _in_job() -> bool:
    return "GRIDHAND_JOB_ID" in os.environ


def _environment(home: Home) -> dict[str, str]:
    """The caller's, without what a job has been given. The home is told in full: `cwd` differs."""
    env = dict(os.environ)
    if _in_job():
        env = {
            name: text
            for name, text in env.items()
            if not name.startswith("GRIDHAND_") and name not in _OF_THE_JOB
        }
    return env | {"GRIDHAND_HOME": home.folder}


def _await_word(reading: int) -> str:
    """What the controller says of itself; nothing when it has died without a word."""
    said = b""
    with _Progress() as progress:
        deadline = time.monotonic() + _LONGEST_S
        while said.strip() != READY.encode():
            if time.monotonic() > deadline:
                return f"it was not ready after {_LONGEST_S:.0f} s"
            if select.select([reading], [], [], progress.pause())[0]:
                chunk = os.read(reading, 1 << 16)
                if not chunk:
                    break
                said += chunk
    return said.decode(errors="replace").strip()


class _Progress:
    """One line on a terminal that counts the seconds, and goes away."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._shown = False

    def pause(self) -> float:
        waited = time.monotonic() - self._begin
        if waited >= _PATIENCE_S and sys.stderr is not None and sys.stderr.isatty():
            say(f"\r\033[Kstarting a controller for this machine ... {waited:.0f} s")
            self._shown = True
        return _PATIENCE_S

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            say("\r\033[K")


def say(text: str) -> None:
    """On stderr, if there is one that listens."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _another_has_come(word: str, client: Client) -> bool:
    """Whether a controller that has the store answers soon: it was started by other means."""
    if " is owned by " not in word:
        return False
    deadline = time.monotonic() + _OTHERS_S
    while client.look() is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _failure(home: Home, begin: int, word: str) -> GridError:
    """Its own words if it had any, else the last ones of its log."""
    told, _, hint = word.removeprefix("error: ").partition("\nhint: ")
    message = "the controller did not start" + (f": {told}" if told else "")
    if not told and (tail := _tail(home.log, begin)):
        message = f"{message}; its last words:\n{tail}"
    return unavailable(message, hint or f"Its log is {home.log}.")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _tail(path: str, begin: int) -> str:
    """The last lines that were written after `begin`."""
    try:
        with open(path, "rb") as file:
            file.seek(max(begin, _size(path) - (1 << 14)))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
