"""`grid service`: a systemd user unit that runs the controller.

Jobs are not children of the controller, and `KillMode=process` keeps systemd from killing them
with it. `Delegate=yes` lets the agent enforce memory limits.
"""

from __future__ import annotations

import os
import sys

import click

from gridhand.cli import render
from gridhand.cli.help_format import CommandGroup, option
from gridhand.cli.support.outcome import OWN_FAILURE

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


@click.group(cls=CommandGroup)
def service() -> None:
    """Run the controller as a systemd service."""


def unit_path() -> str:
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        config = os.path.expanduser("~/.config")
    return os.path.join(config, "systemd", "user", _NAME)


def unit_text() -> str:
    """Return the unit for this installation and this home."""
    from gridhand.home import Home

    command = f"{_quoted(sys.executable)} -m gridhand.cli.main"
    return _UNIT.format(
        command=command, home=_quoted(f"GRIDHAND_HOME={Home.find(make=False).folder}")
    )


def _quoted(path: str) -> str:
    """Quote for systemd, where % begins a specifier and spaces end a word."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if " " in text or '"' in text else text


@service.command()
def show() -> None:
    """Print the unit that `install` would write."""
    click.echo(unit_text(), nl=False)


@service.command()
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def install(ctx: click.Context, as_json: bool) -> None:
    """Write the unit, and start it now and at every boot.

    Exits with 125 if systemd could not do that.
    """
    path = unit_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(unit_text())
    steps = [_systemctl("daemon-reload"), _systemctl("enable", "--now", _NAME)]
    done = [f"wrote {path}", *_running_controller(), *(text for text, _ in steps)]
    _answer(done, as_json, path)
    if not all(succeeded for _, succeeded in steps):
        click.echo("error: the service was not started", err=True)
        click.echo("hint: Without systemd, start the controller with `grid serve`.", err=True)
        ctx.exit(OWN_FAILURE)
    if not as_json:
        click.echo("Run `loginctl enable-linger` to keep it running while you are logged out.")


@service.command()
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def uninstall(as_json: bool) -> None:
    """Stop the service and remove its unit; jobs continue."""
    path = unit_path()
    if not os.path.exists(path):
        _answer([f"not installed: there is no {path}"], as_json, path)
        return
    disabled, _ = _systemctl("disable", "--now", _NAME)
    os.unlink(path)
    reloaded, _ = _systemctl("daemon-reload")
    _answer([disabled, f"removed {path}", reloaded], as_json, path)


def _running_controller() -> list[str]:
    """Return a line about a controller that owns the store, which the service waits for."""
    from gridhand.client import connect
    from gridhand.core.errors import GridError

    try:
        with connect(start=False) as client:
            pid = client.version()["pid"]
    except GridError:
        return []
    return [f"a controller is running (pid {pid}); stop it with `grid stop --keep-jobs`"]


def _systemctl(*words: str) -> tuple[str, bool]:
    """Run systemctl if there is one; return a line about the outcome, and whether it succeeded."""
    import shutil
    import subprocess

    command = ["systemctl", "--user", *words]
    if shutil.which(command[0]) is None:
        return f"systemctl not found: `{' '.join(command)}` was not run", False
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return f"ran `{' '.join(command)}`", True
    reason = render.clean(done.stderr) or f"exit code {done.returncode}"
    return f"`{' '.join(command)}` failed: {reason}", False


def _answer(done: list[str], as_json: bool, path: str) -> None:
    if as_json:
        render.print_json({"unit": path, "done": done})
    else:
        click.echo("\n".join(done))
