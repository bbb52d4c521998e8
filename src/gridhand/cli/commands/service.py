"""`grid service`: a systemd unit that runs the controller, of a user or for the whole machine.

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
from gridhand.cli.support.system_checks import require_root, require_root_only

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
_SYSTEM_UNIT = """\
[Unit]
Description=Gridhand controller for all users of this machine
After=network.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command} serve --system{options}
WorkingDirectory=/
RuntimeDirectory=gridhand
RuntimeDirectoryPreserve=restart
StateDirectory=gridhand
StateDirectoryMode=0700
UMask=0077
Restart=on-failure
RestartSec=1
KillMode=process
Delegate=yes

[Install]
WantedBy=multi-user.target
"""
_SYSTEM_UNITS = "/etc/systemd/system"
_NAME = "gridhand.service"

_system_option = option("--system", is_flag=True, help="For all users of this machine, as root.")
_config_option = option(
    "--config",
    type=click.Path(),
    metavar="FILE",
    help="Configuration file of the controller, with --system.",
)


@click.group(cls=CommandGroup)
def service() -> None:
    """Run the controller as a systemd service."""


def unit_path(system: bool = False) -> str:
    if system:
        return os.path.join(_SYSTEM_UNITS, _NAME)
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        config = os.path.expanduser("~/.config")
    return os.path.join(config, "systemd", "user", _NAME)


def unit_text(system: bool = False, config: str | None = None) -> str:
    """Return the unit for this installation and this home."""
    from gridhand.home import Home

    if config is not None and not system:
        raise click.UsageError("--config needs --system; a controller of your own has one already")
    if system:
        # Variables and the user's packages must not change which code runs as root.
        command = f"{_quoted(sys.executable)} -E -s -P -m gridhand.cli.main"
        options = f" --config {_quoted(os.path.abspath(config))}" if config else ""
        return _SYSTEM_UNIT.format(command=command, options=options)
    command = f"{_quoted(sys.executable)} -m gridhand.cli.main"
    return _UNIT.format(
        command=command, home=_quoted(f"GRIDHAND_HOME={Home.find(make=False).folder}")
    )


def _quoted(path: str) -> str:
    """Quote for systemd, where % begins a specifier and spaces end a word."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if " " in text or '"' in text else text


@service.command()
@_system_option
@_config_option
def show(system: bool, config: str | None) -> None:
    """Print the unit that `install` would write."""
    click.echo(unit_text(system, config), nl=False)


@service.command()
@_system_option
@_config_option
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def install(ctx: click.Context, system: bool, config: str | None, as_json: bool) -> None:
    """Write the unit, and start it now and at every boot.

    With --system one controller serves all users of this machine, and their jobs run as them. Exits
    with 125 if systemd could not do that.
    """
    path, text = unit_path(system), unit_text(system, config)
    if system:
        _check_system_install(config)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    steps = [_systemctl(system, "daemon-reload"), _systemctl(system, "enable", "--now", _NAME)]
    done = [f"wrote {path}", *_running_controller(), *(text for text, _ in steps)]
    _answer(done, as_json, path)
    if not all(succeeded for _, succeeded in steps):
        click.echo("error: the service was not started", err=True)
        click.echo("hint: Without systemd, start the controller with `grid serve`.", err=True)
        ctx.exit(OWN_FAILURE)
    if not as_json and not system:
        click.echo("Run `loginctl enable-linger` to keep it running while you are logged out.")


@service.command()
@_system_option
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def uninstall(system: bool, as_json: bool) -> None:
    """Stop the service and remove its unit; jobs continue."""
    path = unit_path(system)
    if not os.path.exists(path):
        _answer([f"not installed: there is no {path}"], as_json, path)
        return
    disabled, _ = _systemctl(system, "disable", "--now", _NAME)
    os.unlink(path)
    reloaded, _ = _systemctl(system, "daemon-reload")
    _answer([disabled, f"removed {path}", reloaded], as_json, path)


def _check_system_install(config: str | None) -> None:
    """Raise unless we are root, and nobody else can change the code that would run as root."""
    import gridhand

    hint = "Run it with sudo. Without --system it is a service of your own."
    require_root("a service for all users needs root", hint)
    paths = [sys.executable, os.path.dirname(gridhand.__file__), config]
    hint = "Install Gridhand where only root can write, such as in /opt/gridhand."
    require_root_only(paths, hint)


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


def _systemctl(system: bool, *words: str) -> tuple[str, bool]:
    """Run systemctl if there is one; return a line about the outcome, and whether it succeeded."""
    import shutil
    import subprocess

    command = ["systemctl", *([] if system else ["--user"]), *words]
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
