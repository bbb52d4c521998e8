"""connect: the controller that is meant, started if it is this user's own and does not run.

However many processes come at the same moment, one controller is started: they take turns at a
lock, and whoever gets it looks again before it starts anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from gridhand import __version__
from gridhand.client.calling import PATIENCE_S, gone
from gridhand.client.client import Client
from gridhand.client.problems import make_error, unavailable
from gridhand.client.transport import Address
from gridhand.home import MACHINE_SOCKET, Home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.client.calling import Facts
    from gridhand.core.errors import GridError

PROTOCOL = 1
_PAUSE_S = 0.02
_RESTART_S = 3.0  # a controller that was there a moment ago has so long to come back by itself
_STARTING_S = 90.0
_STOPPING_S = 30.0


def connect(address: str | None = None, *, start: bool = True) -> Client:
    """The controller at `address` or $GRIDHAND_ADDRESS, else the machine's, else the user's own.

    With `start` the user's own is started when it does not run, and replaced when it is idle and
    of another version. Without, any version will do: that is how an old one is stopped.
    """
    if given := address or os.environ.get("GRIDHAND_ADDRESS"):
        return _elsewhere(Address.parse(given))
    if os.access(MACHINE_SOCKET, os.W_OK) and (client := _machine()):
        return client
    return _own(Home.find(make=start), start)


def _elsewhere(address: Address) -> Client:
    client = Client(address)
    client.revive = lambda start: _await(client)
    with _closed_on_failure(client):
        facts = client.look()
        if facts is None:
            raise gone(client.address, ConnectionRefusedError())
        if facts.get("protocol") != PROTOCOL:
            raise _mismatch(facts, "Use the version of Gridhand that the controller has.")
    return client


def _machine() -> Client | None:
    address = Address(MACHINE_SOCKET)
    with Client(address) as client:
        if client.look() is None:  # a socket that was left behind
            return None
    return _elsewhere(address)


def _own(home: Home, start: bool) -> Client:
    client = Client(Address(home.socket))
    with _closed_on_failure(client):
        facts = client.look()
        if facts is None and not start:
            raise gone(client.address, FileNotFoundError())
        if start and not _suits(facts):
            _ensure(home, client)
    if start:
        client.revive = lambda may_start: _await(client, home if may_start else None)
    return client


@contextlib.contextmanager
def _closed_on_failure(client: Client) -> Iterator[None]:
    try:
        yield
    except BaseException:
        client.close()
        raise


def _suits(facts: Facts | None) -> bool:
    return facts is not None and facts.get("version") == __version__


def _await(client: Client, home: Home | None = None) -> None:
    """Wait for a controller that was there to come back; then start one in `home`, if given.

    When that fails, perhaps because another one is coming up, it is waited for all the same.
    """
    begin, failure = time.monotonic(), None
    while (waited := time.monotonic() - begin) < PATIENCE_S:
        time.sleep(_PAUSE_S)
        if client.look() is not None:
            return
        if home is not None and waited > _RESTART_S:
            failure = _try_to_start(home, client)
            home = None
    raise failure or gone(client.address, ConnectionRefusedError())


def _try_to_start(home: Home, client: Client) -> GridError | None:
    from gridhand.core.errors import GridError

    try:
        _ensure(home, client, anything=True)
    except GridError as error:
        return error
    return None


def _ensure(home: Home, client: Client, *, anything: bool = False) -> None:
    """Leave with a controller that answers; of our version, unless `anything` will do."""
    with _locked(home, client) as ours:
        facts = client.look() if ours else None
        if not ours or _suits(facts) or (facts and anything):
            return
        if facts is not None:
            _retire(client, facts)
        from gridhand.client.launching import launch

        launch(home, client)


@contextlib.contextmanager
def _locked(home: Home, client: Client) -> Iterator[bool]:
    """Whether we may start a controller now; False when one has come up while we waited."""
    fd = _open_lock(home)
    deadline = time.monotonic() + _STARTING_S
    try:
        while not (ours := _take(fd)) and not _suits(client.look()):
            if time.monotonic() > deadline:
                raise unavailable(
                    f"another process has been starting a controller for {_STARTING_S:.0f} s",
                    f"Look at the end of {home.log}.",
                )
            time.sleep(_PAUSE_S)
        yield ours
    finally:
        os.close(fd)


def _open_lock(home: Home) -> int:
    _refuse_what_is_no_socket(home)
    try:
        return os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"no controller can be started: {home.lock}: {error.strerror}"
        raise unavailable(message, "Set GRIDHAND_HOME to a folder that can be written.") from error


def _refuse_what_is_no_socket(home: Home) -> None:
    from stat import S_ISSOCK

    with contextlib.suppress(FileNotFoundError):
        if not S_ISSOCK(os.lstat(home.socket).st_mode):
            message = f"{home.socket} is in the way: the controller's socket goes there"
            raise unavailable(message, "Move it elsewhere.")


def _take(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _retire(client: Client, facts: Facts) -> None:
    """End an idle controller of another version, and wait until it is gone."""
    if not facts.get("idle"):
        raise _mismatch(facts)
    from gridhand.core.errors import GridError

    try:
        client.stop(jobs="refuse")
    except GridError as error:
        if error.code == "jobs_running":  # submitted after we had looked
            raise _mismatch(facts) from error
        raise
    deadline = time.monotonic() + _STOPPING_S
    while client.look() is not None or _lives(facts["pid"]):
        if time.monotonic() > deadline:
            message = f"the controller of version {facts['version']} was asked to stop and did not"
            raise unavailable(message, f"End process {facts['pid']}.")
        time.sleep(_PAUSE_S)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _mismatch(facts: Facts, hint: str = "") -> GridError:
    theirs = facts.get("version")
    return make_error(
        "version_mismatch",
        f"the controller is version {theirs}, and this is version {__version__}",
        hint
        or "Jobs are queued or running, so it is not replaced by itself. Run `grid stop"
        " --keep-jobs`: the next command starts a new one, and it adopts the jobs.",
    )
