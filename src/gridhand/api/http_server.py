"""Serve one controller in the foreground, on a unix socket and, if wanted, on TCP ports.

The sockets appear when everything behind it is ready, so every client that can connect is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from gridhand.api.app import make_app
from gridhand.api.auth import PeerProtocol
from gridhand.api.network_access import NetworkCallers
from gridhand.api.network_listener import NetworkListener, open_listener
from gridhand.api.server_log import log_in_thread
from gridhand.api.slow_clients import ACCEPTED_AT_ONCE
from gridhand.controller.controller import Controller
from gridhand.controller.local_controller import StartOptions, local_controller
from gridhand.core.errors import GridError, StoreOwned, StoreUnavailable
from gridhand.home import Home
from gridhand.posix.daemon import protect
from gridhand.posix.locks import read_holder, sign_lock, wait_for_lock
from gridhand.posix.log_file import rotate_log
from gridhand.posix.private_files import open_private_file
from gridhand.posix.socket_file import CHECK_S, SocketFile

_GRACE_S = 3
_HANDSHAKE_S = 10.0  # for the encryption of a connection to begin
_CUT_S = 0.25  # between looks at the tokens of open replies
_LOCK_S = 10.0  # for a controller that is about to end

_log = logging.getLogger("gridhand")

Announce = Callable[[str, str], object]  # of the address, and of a link for one login


def serve(
    home: Home,
    start: StartOptions,
    *,
    ready_fd: int | None = None,
    announce: Announce | None = None,
) -> int:
    """Run until stopped. `ready_fd` gets one message: that it runs, or why it does not.

    If it listens on the network, `announce` gets its address, and a link for one login.
    """
    # The keeper's thread and the event loop hand work to each other all the time. With the default
    # of 5 ms, a thread that is ready would wait that long for one that computes.
    sys.setswitchinterval(0.0005)
    protect()
    _log.setLevel(logging.INFO)
    try:
        with log_in_thread(), _sole_controller(home):  # before anything is read, changed or told
            return asyncio.run(_serve(home, start, ready_fd, announce))
    except GridError as error:
        if isinstance(error, StoreOwned):
            error.hint = "`grid status` shows the controller that runs; `grid stop` ends it."
        _report(ready_fd, f"error: {error}\nhint: {error.hint}\n")
        raise


async def _serve(
    home: Home,
    start: StartOptions,
    ready_fd: int | None,
    announce: Announce | None,
) -> int:
    controller = local_controller(home, start)
    listener = open_listener(start.listen.over(controller.settings.http))
    try:
        await controller.open(new_cluster=start.new_cluster)
    except BaseException as error:
        if listener is not None:
            listener.close()
        if isinstance(error, StoreUnavailable):
            where = controller.store_url
            error.hint = f"The state is in {where}. Try again when it can be reached."
        raise
    try:
        server = _server(controller)
        server.network, server.announce = listener, announce
        with server.listening_at(home), _stopped_by_signals(controller, server):
            serving = asyncio.create_task(server.serve([server.file.listening]))
            serving.add_done_callback(lambda _: controller.begin_stopping())
            _log.info("controller %d serves %s", os.getpid(), home.socket)
            _report(ready_fd, "ready\n")
            await _check_files(home, controller, server)
            server.should_exit = True
            await serving
    finally:
        await controller.close()
        _log.info("controller %d has ended", os.getpid())
    return 0 if controller.failure is None else 1


async def _check_files(home: Home, controller: Controller, server: _Server) -> None:
    """Put back a removed socket and bound the log, until the controller stops.

    It stops by itself when its folder is removed.
    """
    while not controller.stopping.is_set():
        if not home.exists():
            _log.error("%s was removed, and with it the state of this controller", home.folder)
            controller.begin_stopping()
            return
        rotate_log(home.log)
        with contextlib.suppress(GridError, OSError):  # something is in the way; try again later
            home.make()  # a link to the socket may have been removed, too
            await server.listen_again(home)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await controller.stopping.wait()


class _Server(uvicorn.Server):
    """A server that leaves the signals to us, and can listen anew."""

    file: SocketFile
    network: NetworkListener | None = None
    announce: Announce | None = None
    returns = False  # whether another controller is about to take over the socket

    def __init__(self, app: FastAPI) -> None:
        super().__init__(_settings(app))
        self._callers: NetworkCallers = app.state.callers

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def listening_at(self, home: Home) -> Iterator[None]:
        """Listen at the home's socket, in place of one that an earlier controller left.

        We own the store by now, so no other controller is behind it.
        """
        self.file = _socket_file(home)
        try:
            yield
        finally:
            self.file.close(keep_file=self.returns)

    async def listen_again(self, home: Home) -> None:
        """Replace a socket that was removed; connections that exist stay."""
        if not self.started or (home.socket == self.file.path and self.file.is_in_place()):
            return
        removed = self.file
        self.file = _socket_file(home)
        _log.warning("%s was removed, and is back", self.file.path)
        accepting = await asyncio.get_running_loop().create_server(
            self._protocol, sock=self.file.listening, backlog=ACCEPTED_AT_ONCE
        )
        self.servers.insert(0, accepting)
        self.servers.pop(1).close()
        removed.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.network is not None:
            await self._listen_on(self.network)

    async def _listen_on(self, listener: NetworkListener) -> None:
        """Listen on the network, too, and cut replies whose tokens have ended."""
        self._callers.logins.cookie = f"gridhand_{listener.port}"
        loop = asyncio.get_running_loop()
        for bound in listener.sockets:
            accepting = await loop.create_server(
                self._protocol,
                sock=bound,
                ssl=listener.tls,
                ssl_handshake_timeout=None if listener.tls is None else _HANDSHAKE_S,
                backlog=ACCEPTED_AT_ONCE,
            )
            bound.listen(1024)  # so many may wait to be accepted
            self.servers.append(accepting)
        self._cutting = asyncio.create_task(self._cut_ended())
        _log.info("controller %d listens at %s", os.getpid(), listener.url)
        if self.announce is not None:
            code = self._callers.logins.make_code()
            self.announce(listener.url, f"{listener.url}/login?code={code}")

    async def _cut_ended(self) -> None:
        while not self.should_exit:
            self._callers.cut_ended()
            await asyncio.sleep(_CUT_S)

    def _protocol(self) -> PeerProtocol:
        return PeerProtocol(self.config, self.server_state, self.lifespan.state)


def _socket_file(home: Home) -> SocketFile:
    return SocketFile(home.socket, 0o600 if home.public_socket is None else 0o666)


@contextlib.contextmanager
def _sole_controller(home: Home) -> Iterator[None]:
    """Hold the lock of the home, by which `grid stop` and `grid doctor` find this process."""
    fd = open_private_file(home.controller_lock)
    try:
        if not wait_for_lock(fd, _LOCK_S):
            raise GridError(
                f"{home.folder} is owned by another controller{_holder(home)}",
                hint="`grid stop` ends it. If it does not answer, `grid doctor` says why.",
            )
        with contextlib.suppress(OSError):  # the lock holds even if the disk is full
            sign_lock(fd)
        yield
    finally:
        os.close(fd)


def _holder(home: Home) -> str:
    holder = read_holder(home.controller_lock)
    return f" (pid {holder.pid})" if holder else ""


def _server(controller: Controller) -> _Server:
    return _Server(make_app(controller))


def _settings(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        proxy_headers=False,  # nobody may say in a header who asks
        server_header=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=ACCEPTED_AT_ONCE,
    )


@contextlib.contextmanager
def _stopped_by_signals(controller: Controller, server: _Server) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop(signum: signal.Signals) -> None:
        _log.info("stopped by %s", signum.name)
        # systemd restarts the service, or removes the folder of the socket. Meanwhile users must
        # not take the controller of the machine for gone, and start controllers of their own.
        server.returns = controller.users.shared and signum is signal.SIGTERM
        controller.begin_stopping()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop, signum)
    try:
        yield
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


def _report(ready_fd: int | None, text: str) -> None:
    if ready_fd is None:
        return
    with contextlib.suppress(OSError):  # the process that started us is gone
        os.write(ready_fd, text.encode())
        os.close(ready_fd)
