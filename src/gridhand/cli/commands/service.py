"""`grid service`: a systemd unit of the user, so that the controller starts with the system.

Jobs are nobody's children of the controller, and `KillMode=process` keeps systemd from ending them
with it. `Delegate=yes` lets the agent hold jobs to their memory.
"""

from __future__ import annotations

import os
import sys

import click

from gridhand.cli import render

_UNIT = """\
[Unit]
Description=Gridhand controller
After=network.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command} serve
Environment={home}
Restart=on-failure
RestartSec=2
KillMode=process
Delegate=yes

[Install]
WantedBy=default.target
"""
_NAME = "gridhand.service"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def service() -> None:
    """Start the controller with the system."""


def unit_path() -> str:
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        config = os.path.expanduser("~/.config")
    return os.path.join(config, "systemd", "user", _NAME)


def unit_text() -> str:
    """The unit for this installation and this home."""
    from gridhand.home import Home

    command = f"{_quoted(sys.executable)} -m gridhand.cli.main"
    return _UNIT.format(
        command=command, home=_quoted(f"GRIDHAND_HOME={Home.find(make=False).folder}")
    )


def _quoted(path: str) -> str:
    """As systemd reads it: % begins a specifier, and spaces end a word."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if " " in text or '"' in text else text


@service.command()
def show() -> None:
    """Print the unit as `install` would write it."""
    click.echo(unit_text(), nl=False)


@service.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def install(as_json: bool) -> None:
    """Write the unit, and let systemd start it now and with every boot."""
    path = unit_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(unit_text())
    done = [f"wrote {path}", *_runs_already()]
    done += _systemctl("daemon-reload") + _systemctl("enable", "--now", _NAME)
    _answer(done, as_json, path)
    if not as_json:
        click.echo("`loginctl enable-linger` keeps it running while you are not logged in.")


@service.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def uninstall(as_json: bool) -> None:
    """Stop the service and remove its unit; jobs go on."""
    path = unit_path()
    if not os.path.exists(path):
        _answer([f"there is no {path}"], as_json, path)
        return
    done = _systemctl("disable", "--now", _NAME)
    os.unlink(path)
    _answer([*done, f"removed {path}", *_systemctl("daemon-reload")], as_json, path)


def _runs_already() -> list[str]:
    """A word about a controller that has the store: the service waits until it is free."""
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    try:
        with connect(start=False) as client:
            pid = client.version()["pid"]
    except GridError:
        return []
    return [f"a controller runs (pid {pid}): `grid stop --keep-jobs` lets the service take over"]


def _systemctl(*words: str) -> list[str]:
    """Ask systemd, if it is there; what it answers is told, and stops nothing."""
    import shutil
    import subprocess

    command = ["systemctl", "--user", *words]
    if shutil.which(command[0]) is None:
        return [f"systemd is not here: `{' '.join(command)}` was not run"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        return [f"ran `{' '.join(command)}`"]
    said = render.clean(ended.stderr) or f"exit code {ended.returncode}"
    return [f"`{' '.join(command)}` failed: {said}"]


def _answer(done: list[str], as_json: bool, path: str) -> None:
    if as_json:
        render.print_json({"unit": path, "done": done})
    else:
        click.echo("\n".join(done))
