"""Find the controller to talk to, and start this user's own if it does not run.

However many processes do this at the same moment, one controller is started: they take turns at a
lock, and each looks again before it starts anything.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from gridhand import __version__
from gridhand.client.client import Client
from gridhand.client.errors import make_error, unavailable
from gridhand.client.retry import PATIENCE_S, gone
from gridhand.client.transport import Address
from gridhand.home import Home, machine_socket
from gridhand.posix import procfs
from gridhand.posix.locks import try_lock
from gridhand.posix.private_files import open_private_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.client.retry import Facts
    from gridhand.core.errors import GridError

PROTOCOL = 1
_PAUSE_S = 0.02
REPORT_S = 1.0  # after which the user is told what is waited for
_RESTART_S = 3.0  # for a controller that was there a moment ago to come back by itself
_MACHINE_S = 10.0  # for the controller of the machine, which others restart
_STARTING_S = 90.0
_STOPPING_S = 30.0


def connect(address: str | None = None, *, start: bool = True) -> Client:
    """Return a client of the controller at `address`, else $GRIDHAND_ADDRESS, else the machine's,
    else the user's own.

    With `start` the user's own is started if it does not run, and replaced if it is idle and of
    another version. Without, any version will do: that is how an old one is stopped.
    """
    if given := address or os.environ.get("GRIDHAND_ADDRESS"):
        parsed = Address.parse(given)
        return _elsewhere(parsed._replace(chosen=bool(parsed.path)))
    if os.access(machine_socket(), os.W_OK) and (client := _machine()):
        return client
    return _own(Home.find(make=start), start)


def usual_address() -> Address:
    """Return the address that `connect` tries first, without looking whether anybody answers."""
    if given := os.environ.get("GRIDHAND_ADDRESS"):
        address = Address.parse(given)
        return address._replace(chosen=bool(address.path))
    if os.access(machine_socket(), os.W_OK):
        return Address(machine_socket())
    return Address(Home.find(make=False).socket)


def _elsewhere(address: Address) -> Client:
    client = Client(address)
    client.revive = lambda start: _await(client, report=start)
    with _closed_on_failure(client):
        facts = client.probe()
        if facts is None:
            raise gone(client.address, ConnectionRefusedError())
        if facts.get("protocol") != PROTOCOL:
            raise _mismatch(facts, "Use the version of Gridhand that the controller has.")
    return client


def _machine() -> Client | None:
    address = Address(machine_socket())
    deadline = time.monotonic() + _MACHINE_S
    with Client(address) as client:
        while client.probe() is None:
            if time.monotonic() > deadline:  # the socket of a controller that is gone
                return None
            time.sleep(_PAUSE_S)
    return _elsewhere(address)


def _own(home: Home, start: bool) -> Client:
    client = Client(Address(home.socket))
    with _closed_on_failure(client):
        facts = client.probe()
        if facts is None and not start:
            raise gone(client.address, FileNotFoundError())
        if start and not _suits(facts):
            _ensure(home, client)
    if start:
        client.revive = lambda start: _await(client, home if start else None, report=start)
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


def _await(client: Client, home: Home | None = None, *, report: bool = False) -> None:
    """Wait for a controller to come back; after a while start one in `home`, if given.

    With `report` the user is told after a second. If starting fails, perhaps because another one is
    coming up, go on waiting.
    """
    begin, failure = time.monotonic(), None
    while (waited := time.monotonic() - begin) < PATIENCE_S:
        time.sleep(_PAUSE_S)
        if client.probe() is not None:
            return
        if report and waited > REPORT_S:
            report = False
            wait = f"waiting up to {PATIENCE_S:.0f} s for it to come back"
            client.report_wait(f"the controller at {client.address} is gone; {wait}")
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
    """Return when a controller of our version answers, or any version if `anything`."""
    with _locked(home, client) as ours:
        facts = client.probe() if ours else None
        if not ours or _suits(facts) or (facts and anything):
            return
        if facts is not None:
            _retire(client, facts)
        from gridhand.client.launch import launch

        launch(home, client)


@contextlib.contextmanager
def _locked(home: Home, client: Client) -> Iterator[bool]:
    """Yield whether we may start a controller; False if one has come up in the meantime."""
    fd = _open_lock(home)
    deadline = time.monotonic() + _STARTING_S
    try:
        while not (ours := try_lock(fd)) and not _suits(client.probe()):
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
    _check_socket_path(home)
    try:
        return open_private_file(home.lock)
    except OSError as error:
        message = f"no controller can be started: {home.lock}: {error.strerror}"
        raise unavailable(message, "Set GRIDHAND_HOME to a folder that can be written.") from error


def _check_socket_path(home: Home) -> None:
    from stat import S_ISSOCK

    with contextlib.suppress(FileNotFoundError):
        if not S_ISSOCK(os.lstat(home.socket).st_mode):
            message = f"{home.socket} is in the way: the controller's socket belongs there"
            raise unavailable(message, "Move that file elsewhere.")


def _retire(client: Client, facts: Facts) -> None:
    """Stop an idle controller of another version, and wait until it is gone."""
    if not facts.get("idle"):
        raise _mismatch(facts)
    from gridhand.core.errors import GridError

    try:
        client.stop(jobs="refuse")
    except GridError as error:
        if error.code == "jobs_running":  # submitted since the probe
            raise _mismatch(facts) from error
        raise
    deadline = time.monotonic() + _STOPPING_S
    while client.probe() is not None or procfs.is_alive(facts["pid"]):
        if time.monotonic() > deadline:
            message = f"the controller of version {facts['version']} was asked to stop and did not"
            raise unavailable(message, f"End process {facts['pid']}.")
        time.sleep(_PAUSE_S)


def _mismatch(facts: Facts, hint: str = "") -> GridError:
    theirs = facts.get("version")
    return make_error(
        "version_mismatch",
        f"the controller is version {theirs}, and this is version {__version__}",
        hint
        or "Jobs are queued or running, so it is not replaced by itself. Run `grid stop"
        " --keep-jobs`: the next command starts a new one, and it adopts the jobs.",
    )
