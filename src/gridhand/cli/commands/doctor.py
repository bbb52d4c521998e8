"""`grid doctor`: check this installation and suggest fixes.

It starts nothing, and changes nothing without --repair. Each check is a small function that yields
findings; a check that fails itself is a finding too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support import machine_checks
from gridhand.cli.support.machine_checks import Finding
from gridhand.home import LONGEST_SOCKET, OWN_FOLDER, Home, close_hint, machine_socket, open_hint
from gridhand.posix.daemon import LOCK
from gridhand.posix.locks import read_holder

_TAIL = 5


@command()
@option("--repair", is_flag=True, help="Have the controller write a removed store anew.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, repair: bool, as_json: bool) -> None:
    """Check this installation and suggest fixes.

    Starts nothing, and changes nothing without --repair. Exits with 1 if something must be fixed.
    """
    results = [*(_repair() if repair else ()), *findings(Home.find(make=False))]
    if as_json:
        render.print_json([finding._asdict() for finding in results])
    else:
        width = max(len(finding.what) for finding in results)
        for finding in results:
            level = render.coloured(f"{finding.level:<4}", finding.level)
            click.echo(f"{level}  {finding.what:<{width}}  {render.clean(finding.text)}")
            if finding.hint and finding.level != "ok":
                click.echo(f"{'':<{width + 8}}{render.clean(finding.hint)}")
    ctx.exit(1 if any(finding.level == "fail" for finding in results) else 0)


def findings(home: Home) -> list[Finding]:
    return [finding for check in _CHECKS for finding in _run_check(check, home)]


def _run_check(check: Callable[[Home], Iterator[Finding]], home: Home) -> list[Finding]:
    try:
        return list(check(home))
    except Exception as error:
        what = check.__name__.removeprefix("check_").replace("_", " ")
        return [Finding(what, "warn", f"the check failed: {error}", "")]


def _repair() -> Iterator[Finding]:
    """Have a running controller write its store anew, which it does only if the file is gone."""
    from gridhand.client import connect

    with connect(start=False) as client:
        done = client.repair()
    text = "the store was removed, and was written anew" if done else "nothing to repair"
    yield Finding("repair", "ok", text)


def check_store(home: Home) -> Iterator[Finding]:
    """Check that the file of the store is still there while a controller writes to it."""
    from gridhand.core.errors import StoreRemoved

    if (facts := _status(home).get("controller")) is None:
        return
    if lost := facts.get("lost_file"):
        removed = StoreRemoved(lost)
        yield Finding("store", "fail", str(removed), removed.hint)
    else:
        yield Finding("store", "ok", facts["store"])


def check_home(home: Home) -> Iterator[Finding]:
    folder = home.folder
    if not os.path.exists(folder):
        yield Finding("home", "ok", f"{folder} does not exist yet; the first command creates it")
        return
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        yield Finding("home", "fail", f"{folder} belongs to uid {status.st_uid}", OWN_FOLDER)
    elif status.st_mode & 0o077:
        text = f"{folder} is open to other users (mode {status.st_mode & 0o777:03o})"
        yield Finding("home", "fail", text, close_hint(folder) or OWN_FOLDER)
    elif not os.access(folder, os.W_OK | os.X_OK):
        hint = open_hint(folder) or OWN_FOLDER
        yield Finding("home", "fail", f"{folder} is not writable", hint)
    else:
        yield Finding("home", "ok", folder)


def check_socket(home: Home) -> Iterator[Finding]:
    plain = os.path.join(home.folder, "socket")
    if len(os.fsencode(plain)) > LONGEST_SOCKET:
        text = f"{home.socket}, because a path in the home has over {LONGEST_SOCKET} bytes"
        yield Finding("socket", "ok", text)
    else:
        yield Finding("socket", "ok", home.socket)


def check_controller(home: Home) -> Iterator[Finding]:
    from gridhand import __version__
    from gridhand.client import connect
    from gridhand.core.errors import ControllerUnavailable, GridError

    if (silent := _silent_controller(home)) is not None:
        text, hint = silent
        yield Finding("controller", "fail", text, hint)
        return
    try:
        with connect(start=False) as client:
            facts = client.version()
    except ControllerUnavailable as error:
        yield from _no_controller(home, error)
        return
    except GridError as error:
        yield Finding("controller", "fail", str(error), error.hint)
        return
    whose = "for all users of this machine" if facts.get("shared") else "your own"
    if facts.get("shared") is not True and os.environ.get("GRIDHAND_ADDRESS"):
        whose = "named by GRIDHAND_ADDRESS"
    text = f"{whose}, version {facts['version']}, pid {facts['pid']}, at {client.address}"
    if facts["version"] != __version__:
        hint = (
            f"This is version {__version__}. Run `grid stop --keep-jobs` to replace the controller."
        )
        yield Finding("controller", "warn", text, hint)
    else:
        yield Finding("controller", "ok", text)
    if os.path.exists(machine_socket()) and os.path.exists(home.socket):
        text = "two controllers, the machine's and yours, both allocate the same cores"
        yield Finding("controller", "warn", text, "Stop one of them with `grid stop`.")


def _silent_controller(home: Home) -> tuple[str, str] | None:
    """Return what is wrong with a controller that listens and does not answer, and a hint."""
    from gridhand.client.controller_finder import usual_address
    from gridhand.client.http1 import SILENCE_S
    from gridhand.client.silence import describe_silence, find_listener
    from gridhand.client.transport import Transport
    from gridhand.core.errors import GridError

    pid = None
    try:
        address = usual_address()
        pid = find_listener(address.path) if address.path else 0
        if pid is not None:
            with contextlib.closing(Transport(address, timeout_s=SILENCE_S)) as transport:
                transport.request("GET", "/api/v1/version", {}, repeatable=True)
    except TimeoutError:
        hint = f"Look at the end of {home.log}. If you end it, jobs go on and the next adopts them."
        return describe_silence(pid or 0, hint)
    except (OSError, GridError):
        return None
    return None


def _no_controller(home: Home, error: Exception) -> Iterator[Finding]:
    if os.environ.get("GRIDHAND_ADDRESS"):
        hint = "Start it there with `grid serve`, or unset GRIDHAND_ADDRESS."
        yield Finding("controller", "fail", str(error), hint)
        return
    if holder := read_holder(home.controller_lock):
        text = f"pid {holder.pid} runs, and does not answer at {home.socket}"
        hint = "It puts back a removed socket by itself. `grid stop --keep-jobs` ends it."
        yield Finding("controller", "fail", text, hint)
        return
    yield Finding("controller", "ok", "not running; the first command that needs one starts it")
    last = [line for line in _tail(home.log) if "error" in line.lower() or "Traceback" in line]
    if last:
        text = f"the last controller logged: {last[-1]}"
        yield Finding("controller log", "warn", text, f"Look at the end of {home.log}.")


def _tail(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            return file.read().decode(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return []


def check_agent_and_starter(home: Home) -> Iterator[Finding]:
    for what, folder in (("agent", home.agent), ("starter", home.starter)):
        path = os.path.join(folder, "socket")
        holder = read_holder(os.path.join(folder, LOCK))
        if holder is None:
            yield Finding(what, "ok", "not running; it is started when it is needed")
        elif _answers(path):
            yield Finding(what, "ok", f"pid {holder.pid}, listening at {path}")
        else:
            text = f"pid {holder.pid} runs, and does not answer at {path}"
            yield Finding(what, "warn", text, "It puts back a removed socket by itself.")


def _answers(path: str) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        try:
            connection.connect(path)
        except OSError:
            return False
    return True


def check_limits(home: Home) -> Iterator[Finding]:
    """Check the limits that the agent enforces; its permissions may differ from ours."""
    enforced: dict[str, str] | None = _status(home).get("agent", {}).get("enforced")
    if enforced is None:
        yield from machine_checks.check_limits(home)
        return
    measured = [name for name, how in enforced.items() if how != "cgroup"]
    if measured:
        text = f"limits enforced by measuring, not by the kernel: {', '.join(measured)}"
        yield Finding("limits", "warn", text, machine_checks.MEASURED)
    else:
        yield Finding("limits", "ok", f"the kernel enforces the limits on {' and '.join(enforced)}")


def _status(home: Home) -> dict[str, Any]:
    """Return what the controller says of itself; {} if it cannot be asked, without a long wait."""
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    if _silent_controller(home) is not None:
        return {}
    try:
        with connect(start=False) as client:
            return client.status()
    except GridError:
        return {}


_CHECKS: tuple[Callable[[Home], Iterator[Finding]], ...] = (
    machine_checks.check_python,
    check_home,
    machine_checks.check_disk,
    check_socket,
    machine_checks.check_sqlite,
    check_controller,
    check_store,
    check_agent_and_starter,
    check_limits,
    machine_checks.check_hardware,
    machine_checks.check_clock,
)
