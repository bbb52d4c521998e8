"""`grid serve` and `grid stop`: start and stop the controller."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option
from gridhand.cli.support.system_checks import require_root, require_root_only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.client import Client
    from gridhand.core.errors import GridError
    from gridhand.home import Home
    from gridhand.posix.procfs import ProcessIdentity

_STORE = "GRIDHAND_STORE"
_PAUSE_S = 0.02
_SOCKET_S = 5.0  # for a controller to put back its socket


@command(
    epilog="""
    grid serve --virtual-node a:cpu=4,memory=8GB --virtual-node b:cpu=4
    """
)
@option(
    "--store",
    metavar="URL",
    help="Store of the state, or $GRIDHAND_STORE. The home folder remembers it; at first it is a"
    " file there.",
)
@option(
    "--config",
    type=click.Path(),
    metavar="FILE",
    help="Configuration file; by default $GRIDHAND_CONFIG, or cluster_config.yaml in this folder or"
    " the home folder.",
)
@option("--host", metavar="HOST", help="Listen at this name or address, by default localhost.")
@option("--port", type=click.IntRange(0, 65535), metavar="N", help="Listen on this TCP port, too.")
@option(
    "--tls-cert", type=click.Path(), metavar="FILE", help="Encrypt with this certificate (PEM)."
)
@option("--tls-key", type=click.Path(), metavar="FILE", help="The private key of the certificate.")
@option("--insecure", is_flag=True, help="Listen beyond this machine without encryption.")
@option("--new-cluster", is_flag=True, help="Start a new cluster even if nodes belong to another.")
@option(
    "--virtual-node",
    "nodes",
    multiple=True,
    metavar="NAME:AMOUNTS",
    help="Act as this node, such as a:cpu=4,memory=2GB, instead of this machine. Repeat it for a"
    " test cluster. Later controllers of this home folder do the same.",
)
@option("--system", is_flag=True, help="Serve all users of this machine, as root.")
@option("--stand-for", "old_nodes", multiple=True, hidden=True)  # the former spelling
@option("--ready-fd", type=click.IntRange(3), metavar="N", hidden=True)
@click.pass_context
def serve(
    ctx: click.Context,
    store: str | None,
    config: str | None,
    host: str | None,
    port: int | None,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
    new_cluster: bool,
    nodes: tuple[str, ...],
    system: bool,
    old_nodes: tuple[str, ...],
    ready_fd: int | None,
) -> None:
    """Run the controller in the foreground.

    Other commands start a controller in the background when none is running. Ctrl-C or SIGTERM
    stops it; jobs continue, and the next controller adopts them.

    With --port, clients on other machines reach it with a token, which `grid token create` makes.
    Browsers use the link that is printed: it works once.

    With --system, every user of the machine finds this controller, and jobs run as their users.
    `grid service install --system` runs it with systemd.
    """
    import os

    store = _without_password_in_sight(store)
    with _without_collection():
        from gridhand.api.http_server import serve as run_controller
        from gridhand.controller.listen_options import ListenOptions
        from gridhand.controller.local_controller import StartOptions
    from gridhand.home import Home, find_config_file

    if system:
        config = config or os.environ.get("GRIDHAND_CONFIG")
        home = _machine_home(config)
    else:
        config = config or find_config_file()
        home = Home.find()
    pairs = (node.partition(":") for node in (*nodes, *old_nodes))
    start = StartOptions(
        store=store,
        config=config,
        new_cluster=new_cluster,
        virtual_nodes={name: amounts.replace(",", " ") for name, _, amounts in pairs},
        system=system,
        listen=ListenOptions(host, port, tls_cert, tls_key, insecure),
    )
    # The output of a controller in the background is its log, which must not have the link.
    announce = partial(_announce, None if port is None else home) if ready_fd is None else None
    if ready_fd is None:
        _forget_address(home)
    ctx.exit(run_controller(home, start, ready_fd=ready_fd, announce=announce))


def _announce(home: Home | None, url: str, link: str) -> None:
    """Print where the controller listens; with a home, note it for those that come after."""
    if home is not None:
        from gridhand.posix.private_files import replace_file

        replace_file(home.listened, url.encode())
    click.echo(f"listening at {url}")
    click.echo(f"for your browser, once, within 10 minutes: {link}")


def _forget_address(home: Home) -> None:
    import os

    with contextlib.suppress(OSError):
        os.unlink(home.listened)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Import without garbage collection: modules stay, and it takes a sixth of the start."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _machine_home(config: str | None) -> Home:
    """Return the home of a machine-wide controller; raise if others could change what it uses."""
    import os

    from gridhand.home import Home

    hint = "Run it with sudo, or `grid serve` for a controller of your own."
    require_root("--system needs root", hint)
    home = Home.machine_wide()
    hint = "Use a place where only root can write, such as /var/lib/gridhand."
    require_root_only([home.folder, os.path.dirname(home.socket), config], hint)
    return home


def _without_password_in_sight(store: str | None) -> str | None:
    """Return the address of the store; begin anew if its password is an argument of this process.

    Every user of the machine can read the arguments of a process, and only its owner its variables.
    """
    import os
    import sys

    if store is None:
        return os.environ.pop(_STORE, None)
    credentials = store.partition("://")[2].partition("@")[0]
    if ":" in credentials and "@" in store:
        words = [word for word in sys.orig_argv if word not in (store, f"--store={store}")]
        if "--store" in words:
            words.remove("--store")
        os.environ[_STORE] = store
        os.execv(sys.executable, [sys.executable, *words[1:]])
    return store


@command()
@option("--keep-jobs", "jobs", flag_value="keep", help="Let jobs continue without a controller.")
@option("--kill-jobs", "jobs", flag_value="kill", help="Cancel jobs first.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def stop(jobs: str | None, as_json: bool) -> None:
    """Stop the controller.

    Refused while jobs are queued or running, unless --keep-jobs or --kill-jobs is given. The next
    command starts a new controller, which adopts the jobs that were kept.
    """
    from gridhand.core.errors import ControllerUnavailable

    try:
        client = _find()
    except ControllerUnavailable as error:
        pid = _stop_unreachable(jobs, error)
    else:
        pid = _ask_to_stop(client, jobs)
    if pid is None:
        _print({"stopped": False, "pid": None}, as_json, "no controller is running")
        return
    kept = "; its jobs continue" if jobs == "keep" else ""
    _print({"stopped": True, "pid": pid}, as_json, f"stopped the controller (pid {pid}){kept}")


def _find() -> Client:
    """Return a client; wait a little for a controller that runs and puts back its socket."""
    import time

    from gridhand.client import connect
    from gridhand.core.errors import ControllerUnavailable

    deadline = time.monotonic() + _SOCKET_S
    while True:
        try:
            return connect(start=False)
        except ControllerUnavailable:
            if _local_controller() is None or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _local_controller() -> ProcessIdentity | None:
    """Return the process of this home's controller, which its lock file names."""
    import os

    from gridhand.home import Home
    from gridhand.posix.locks import read_holder

    if os.environ.get("GRIDHAND_ADDRESS"):
        return None
    return read_holder(Home.find(make=False).controller_lock)


def _ask_to_stop(client: Client, jobs: str | None) -> int:
    with client:
        pid: int = client.version()["pid"]
        client.stop(jobs=jobs or "refuse")
        here = client.address.startswith("unix:")
    if here:  # on another machine the pid would be of another process
        _await_end(pid)
    return pid


def _stop_unreachable(jobs: str | None, error: GridError) -> int | None:
    """Stop a controller that runs and cannot be asked; return None if none runs."""
    import signal

    from gridhand.posix import procfs

    found = _local_controller()
    if found is None:
        return None
    if jobs != "keep":  # a signal lets jobs continue
        error.hint = (
            f"The controller (pid {found.pid}) runs and cannot be reached. `grid stop --keep-jobs`"
            " ends it all the same."
        )
        raise error
    procfs.send_signal(found, signal.SIGTERM)
    _await_end(found.pid)
    return found.pid


def _print(facts: dict[str, object], as_json: bool, sentence: str) -> None:
    if as_json:
        render.print_json(facts)
    else:
        click.echo(sentence)


def _await_end(pid: int, patience_s: float = 60.0) -> None:
    """Wait until the process has ended and its store and socket are free."""
    import time

    from gridhand.posix import procfs

    deadline = time.monotonic() + patience_s
    while procfs.is_alive(pid):
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"the controller (pid {pid}) did not stop within {patience_s:.0f} s"
            )
        time.sleep(_PAUSE_S)
