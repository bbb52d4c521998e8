"""Start a controller as a daemon: independent of the caller, its terminal and its job."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from gridhand.client.errors import unavailable
from gridhand.home import find_config_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.client.client import Client
    from gridhand.core.errors import GridError
    from gridhand.home import Home

READY = "ready"  # any other message has `error:` and `hint:` lines
COMMAND = [sys.executable, "-m", "gridhand.cli.main", "serve"]  # and --ready-fd N

_LONGEST_S = 60.0
_PATIENCE_S = 1.0  # after which a terminal shows progress
_OTHERS_S = 10.0
_TAIL_LINES = 12

# Run by a Python process of its own, since a process with threads must not fork. So the controller
# has no parent that would have to wait for it. `_UNPIN` frees it from the cores of a job.
_DETACH = "import os, sys; os.fork() and os._exit(0); os.execv(sys.argv[1], sys.argv[1:])"
_UNPIN = "import os; os.sched_setaffinity(0, range(1024)); "

# What an agent sets for a job besides GRIDHAND_*. A controller must see the whole machine.
_JOB_VARIABLES = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}


def launch(home: Home, client: Client) -> None:
    """Start a controller and print a line when it answers; raise if it does not come up."""
    begin = _size(home.log)
    reading, writing = os.pipe()
    try:
        try:
            _spawn(home, writing)
        finally:
            os.close(writing)
        message = _read_message(reading)
    finally:
        os.close(reading)
    if message != READY and not _another_answers(message, client):
        raise _failure(home, begin, message)
    facts = client.probe()
    if facts is None:
        raise _failure(home, begin, "")
    say(f"started a controller for this machine (pid {facts['pid']})\n")
    _warn_of_address(home)


def _warn_of_address(home: Home) -> None:
    """Say what a port on the command line was good for: nobody has asked for it this time."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(home.listened) as file:
        url = file.read()
        say(
            f"the one before listened at {url}, as `grid serve --port` had said. This one listens"
            " on the network only if `http.port` is in its configuration file; else run `grid stop`"
            " and `grid serve --port` again\n"
        )


def _spawn(home: Home, ready_fd: int) -> None:
    detach = (_UNPIN if _in_job() else "") + _DETACH
    command = [*COMMAND, "--ready-fd", str(ready_fd)]
    if (config := find_config_file()) is not None:
        command += ["--config", config]
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
        raise unavailable(message, "Its log belongs there.") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _in_job() -> bool:
    return "GRIDHAND_JOB_ID" in os.environ


def _environment(home: Home) -> dict[str, str]:
    """Return the caller's environment without a job's variables, and with the absolute home."""
    env = dict(os.environ)
    if _in_job():
        env = {
            name: text
            for name, text in env.items()
            if not name.startswith("GRIDHAND_") and name not in _JOB_VARIABLES
        }
    return env | {"GRIDHAND_HOME": home.folder}


def _read_message(reading: int) -> str:
    """Return the message of the new controller, or "" if it died without one."""
    message = b""
    with _Progress() as progress:
        deadline = time.monotonic() + _LONGEST_S
        while message.strip() != READY.encode():
            if time.monotonic() > deadline:
                return f"it was not ready after {_LONGEST_S:.0f} s"
            if select.select([reading], [], [], progress.pause())[0]:
                chunk = os.read(reading, 1 << 16)
                if not chunk:
                    break
                message += chunk
    return message.decode(errors="replace").strip()


class _Progress:
    """A line on a terminal that counts the seconds and is cleared at the end."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._shown = False

    def pause(self) -> float:
        """Show the line if it is time; return the seconds until the next update."""
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
    """Write to stderr, if there is one that is read."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _another_answers(message: str, client: Client) -> bool:
    """Return whether another controller owns the store and answers soon."""
    if " is owned by " not in message:
        return False
    deadline = time.monotonic() + _OTHERS_S
    while client.probe() is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _failure(home: Home, begin: int, said: str) -> GridError:
    """Return the error that the controller reported, else one with the end of its log."""
    told, _, hint = said.removeprefix("error: ").partition("\nhint: ")
    message = "the controller did not start" + (f": {told}" if told else "")
    if not told and (tail := _tail(home.log, begin)):
        message = f"{message}; the end of its log:\n{tail}"
    return unavailable(message, hint or f"Its log is {home.log}.")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _tail(path: str, begin: int) -> str:
    """Return the last lines that were written after offset `begin`."""
    try:
        with open(path, "rb") as file:
            file.seek(max(begin, _size(path) - (1 << 14)))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
