"""The life of an agent process: find what runs, serve, and end when idle."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from gridhand.agent.agent import Agent
from gridhand.agent.agent_server import AgentServer, ControllerConnection
from gridhand.agent.monitor import Monitor
from gridhand.agent.starter import connection
from gridhand.posix import boot_clock
from gridhand.posix.daemon import LOG
from gridhand.posix.log_file import rotate_log

_LOOK_S = 0.25


async def run_agent(
    folder: str,
    folder_fd: int,
    starter: str,
    options: argparse.Namespace,
    ready: Callable[[], None],
) -> None:
    """Run an agent until it is idle or told to quit; call `ready` once it listens."""
    server = AgentServer(folder_fd)
    agent = Agent(folder, starter, server.tell, options.virtual_node, options.lease)
    server.serve(agent)
    await agent.begin(os.getpid(), measured=options.measured)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, server.quitting.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    door = _Door(server, folder_fd)
    await door.open()
    monitor = Monitor(agent, server.tell, server.controllers)
    await monitor.sample()  # before anything is promised here
    monitoring = asyncio.create_task(monitor.run())
    ready()
    await _wait_until_idle(server, agent, options.grace, door)
    door.close()
    await asyncio.sleep(0)  # so that the answer to `quit` is sent
    for client in list(server.clients):
        if client.transport is not None:
            client.transport.close()
    monitoring.cancel()
    await agent.end()


class _Door:
    """The socket by which controllers find the agent, put back when it is removed."""

    def __init__(self, server: AgentServer, folder_fd: int) -> None:
        self._server, self._folder_fd = server, folder_fd

    async def open(self) -> None:
        self._file = connection.listen(self._folder_fd)
        self._accepting = await asyncio.get_running_loop().create_unix_server(
            lambda: ControllerConnection(self._server), sock=self._file.listening
        )

    async def check(self) -> None:
        """Listen anew if the file was removed; connections that exist stay."""
        self._server.admission.put_back()
        if not self._file.is_in_place():
            removed = self._accepting
            with contextlib.suppress(OSError):  # something is in the way; try again later
                await self.open()
                removed.close()

    def close(self) -> None:
        self._accepting.close()
        self._file.close()


async def _wait_until_idle(server: AgentServer, agent: Agent, grace_s: float, door: _Door) -> None:
    """Wait for `quit`, or until nothing has run and nobody was connected for the grace."""
    since = boot_clock.boot_ms()
    while not server.quitting.is_set():
        await door.check()
        rotate_log(LOG)  # in the current folder
        if server.clients or agent.running:
            since = boot_clock.boot_ms()
        if boot_clock.boot_ms() - since >= grace_s * 1000:
            return
        try:
            async with asyncio.timeout(_LOOK_S):
                await server.quitting.wait()
        except TimeoutError:
            continue
