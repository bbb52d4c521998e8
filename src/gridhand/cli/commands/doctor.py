"""`grid doctor`: what is wrong with this installation, and how to mend it.

It starts nothing and changes nothing. Each thing it looks at is a small function that answers
findings; one that fails by itself is a finding too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import click

from gridhand.cli import machine, render
from gridhand.cli.machine import Finding
from gridhand.home import LONGEST_SOCKET, MACHINE_SOCKET, Home

_TAIL = 5


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what is wrong here, and how to mend it.

    Starts nothing and changes nothing. Ends with 1 if something must be mended.
    """
    found = findings(Home.find(make=False))
    if as_json:
        render.print_json([one._asdict() for one in found])
    else:
        width = max(len(one.what) for one in found)
        for one in found:
            level = render.coloured(f"{one.level:<4}", one.level)
            click.echo(f"{level}  {one.what:<{width}}  {render.clean(one.text)}")
            if one.hint and one.level != "ok":
                click.echo(f"{'':<{width + 8}}{render.clean(one.hint)}")
    ctx.exit(1 if any(one.level == "fail" for one in found) else 0)


def findings(home: Home) -> list[Finding]:
    return [one for look in _LOOKS for one in _safely(look, home)]


def _safely(look: Callable[[Home], Iterator[Finding]], home: Home) -> list[Finding]:
    try:
        return list(look(home))
    except Exception as error:
        what = look.__name__.removeprefix("look_at_").replace("_", " ")
        return [Finding(what, "warn", f"cannot be looked at: {error}", "")]


def look_at_home(home: Home) -> Iterator[Finding]:
    folder = home.folder
    if not os.path.exists(folder):
        yield Finding("home", "ok", f"{folder} is not there yet; the first command makes it")
        return
    found = os.stat(folder)
    if found.st_uid != os.geteuid():
        hint = "Set GRIDHAND_HOME to a folder of your own."
        yield Finding("home", "fail", f"{folder} belongs to uid {found.st_uid}", hint)
    elif found.st_mode & 0o077:
        text = f"{folder} is open to other users (mode {found.st_mode & 0o777:03o})"
        yield Finding("home", "fail", text, f"Run `chmod 700 {folder}`.")
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("home", "fail", f"{folder} cannot be written", f"Run `chmod 700 {folder}`.")
    else:
        yield Finding("home", "ok", folder)


def look_at_socket(home: Home) -> Iterator[Finding]:
    plain = os.path.join(home.folder, "socket")
    if len(os.fsencode(plain)) > LONGEST_SOCKET:
        text = f"its path is over {LONGEST_SOCKET} bytes, so it is at {home.socket}"
        yield Finding("socket", "ok", text)
    else:
        yield Finding("socket", "ok", home.socket)


def look_at_controller(home: Home) -> Iterator[Finding]:
    from gridhand import __version__
    from gridhand.client import connect
    from gridhand.core.errors import ControllerUnavailable, GridError

    try:
        with connect(start=False) as client:
            facts = client.version()
    except ControllerUnavailable as error:
        yield from _no_controller(home, error)
        return
    except GridError as error:
        yield Finding("controller", "fail", str(error), error.hint)
        return
    text = f"version {facts['version']}, pid {facts['pid']}, at {client.address}"
    if facts["version"] != __version__:
        hint = f"This is version {__version__}: run `grid stop --keep-jobs`, and go on."
        yield Finding("controller", "warn", text, hint)
    else:
        yield Finding("controller", "ok", text)
    if os.path.exists(MACHINE_SOCKET) and os.path.exists(home.socket):
        text = "the machine has a controller, and so have you: both promise the same cores"
        yield Finding("controller", "warn", text, "Stop one of them with `grid stop`.")


def _no_controller(home: Home, error: Exception) -> Iterator[Finding]:
    if os.environ.get("GRIDHAND_ADDRESS"):
        hint = "Start it there with `grid serve`, or unset GRIDHAND_ADDRESS."
        yield Finding("controller", "fail", str(error), hint)
        return
    yield Finding("controller", "ok", "none runs; the first command that needs one starts it")
    last = [line for line in _tail(home.log) if "error" in line.lower() or "Traceback" in line]
    if last:
        text = f"the last one wrote: {last[-1]}"
        yield Finding("controller log", "warn", text, f"Look at the end of {home.log}.")


def _tail(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            return file.read().decode(errors="replace").splitlines()[-_TAIL:]
    except OSError:
        return []


def look_at_agent_and_starter(home: Home) -> Iterator[Finding]:
    for what, folder in (("agent", home.agent), ("starter", home.starter)):
        path = os.path.join(folder, "socket")
        if not os.path.exists(path):
            yield Finding(what, "ok", "none runs")
        elif _answers(path):
            yield Finding(what, "ok", f"listens at {path}")
        else:
            text = f"{path} is there and nobody listens"
            yield Finding(what, "warn", text, "The controller starts it again when it needs it.")


def _answers(path: str) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(2)
        try:
            one.connect(path)
        except OSError:
            return False
    return True


def look_at_limits(home: Home) -> Iterator[Finding]:
    """What the agent says, if one runs; it may be permitted more than we are, or less."""
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    try:
        with connect(start=False) as client:
            enforced = client.status()["agent"]["enforced"]
    except (GridError, KeyError):
        yield from machine.look_at_limits(home)
        return
    watched = [name for name, how in enforced.items() if how != "cgroup"]
    if watched:
        text = f"the agent can only measure: {', '.join(watched)}"
        yield Finding("limits", "warn", text, machine.WATCHED)
    else:
        yield Finding("limits", "ok", f"the kernel holds jobs to their {' and '.join(enforced)}")


_LOOKS: tuple[Callable[[Home], Iterator[Finding]], ...] = (
    machine.look_at_python,
    look_at_home,
    machine.look_at_disk,
    look_at_socket,
    machine.look_at_sqlite,
    look_at_controller,
    look_at_agent_and_starter,
    look_at_limits,
    machine.look_at_hardware,
    machine.look_at_clock,
)
