"""Serving: one controller in the foreground, on a socket that we bind ourselves.

The socket appears when everything behind it is ready, so that whoever can connect is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from gridhand.api.app import make_app
from gridhand.api.callers import PeerProtocol
from gridhand.api.logs import logging_beside
from gridhand.controller.controller import Controller, local_controller
from gridhand.core.errors import GridError, StoreOwned
from gridhand.home import Home

BACKLOG = 1024
_GRACE_S = 3
_LOOK_S = 5.0

_log = logging.getLogger("gridhand")


def serve(
    home: Home,
    *,
    store: str | None = None,
    ready_fd: int | None = None,
    new_cluster: bool = False,
) -> int:
    """Run until told to stop; `ready_fd` is told once that it runs, or why it does not."""
    # The keeper's thread and the event loop hand work to each other all the time, and a thread
    # that is ready would wait five milliseconds for one that computes.
    sys.setswitchinterval(0.0005)
    _log.setLevel(logging.INFO)
    try:
        with logging_beside():
            return asyncio.run(_serve(home, store or home.store, ready_fd, new_cluster))
    except GridError as error:
        if isinstance(error, StoreOwned):
            error.hint = "`grid status` shows the controller that runs; `grid stop` ends it."
        _tell(ready_fd, f"error: {error}\nhint: {error.hint}\n")
        raise


async def _serve(home: Home, store: str, ready_fd: int | None, new_cluster: bool) -> int:
    controller = local_controller(home, store)
    await controller.open(new_cluster=new_cluster)
    try:
        with _listening(home.socket) as listening, _stopped_by_signals(controller):
            server = _server(controller)
            serving = asyncio.create_task(server.serve([listening]))
            serving.add_done_callback(lambda _: controller.stopping.set())
            _log.info("controller %d serves %s", os.getpid(), home.socket)
            _tell(ready_fd, "ready\n")
            _mind(home, controller)
            await controller.stopping.wait()
            server.should_exit = True
            await serving
    finally:
        await controller.close()
        _log.info("controller %d has ended", os.getpid())
    return 0 if controller.failure is None else 1


def _mind(home: Home, controller: Controller) -> None:
    """Nobody finds a controller whose folder was removed, and nothing that it writes is kept."""
    if os.path.isdir(home.folder):
        asyncio.get_running_loop().call_later(_LOOK_S, _mind, home, controller)
        return
    _log.error("%s is gone, and so is what was kept there", home.folder)
    controller.stopping.set()


class _Server(uvicorn.Server):
    """Leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(controller: Controller) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            make_app(controller),
            http=PeerProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            backlog=BACKLOG,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )


@contextlib.contextmanager
def _listening(path: str) -> Iterator[socket.socket]:
    """A socket at this path, in the place of one that a controller before us has left.

    We own the store by now, so there is no other controller behind it.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    os.chmod(path, 0o600)
    listening.listen(BACKLOG)
    made = os.stat(path).st_ino
    try:
        yield listening
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == made:
                os.unlink(path)
        listening.close()


@contextlib.contextmanager
def _stopped_by_signals(controller: Controller) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        _log.info("told to stop by %s", name)
        controller.stopping.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop, signum.name)
    try:
        yield
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


def _tell(ready_fd: int | None, text: str) -> None:
    if ready_fd is None:
        return
    with contextlib.suppress(OSError):  # whoever started us has gone meanwhile
        os.write(ready_fd, text.encode())
        os.close(ready_fd)
