"""An agent from its first moment to its last: it finds what runs, listens, and ends when idle."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable

from gridhand.agent import processes, wire
from gridhand.agent.agent import Agent
from gridhand.agent.rounds import Rounds
from gridhand.agent.service import Client, Service

_LOOK_S = 0.25


async def stand(
    folder: str,
    folder_fd: int,
    starter: str,
    options: argparse.Namespace,
    ready: Callable[[], None],
) -> None:
    service = Service()
    agent = Agent(folder, starter, service.tell, options.stands_for)
    service.serve(agent)
    await agent.begin(os.getpid(), measured=options.measured)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, service.quitting.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    listening = wire.listen(folder_fd)
    server = await loop.create_unix_server(lambda: Client(service), sock=listening)
    rounds = asyncio.create_task(Rounds(agent, service.tell, service.watched).run())
    ready()
    await _until_idle(service, agent, options.grace)
    server.close()
    wire.unlisten(listening, folder_fd)
    await asyncio.sleep(0)  # the answer to the one who said quit
    for client in list(service.clients):
        if client.transport is not None:
            client.transport.close()
    rounds.cancel()
    await agent.end()


async def _until_idle(service: Service, agent: Agent, grace_s: float) -> None:
    """Until somebody says so, or nothing has run and nobody was connected for so long."""
    since = processes.boot_ms()
    while not service.quitting.is_set():
        if service.clients or agent.running:
            since = processes.boot_ms()
        if processes.boot_ms() - since >= grace_s * 1000:
            return
        try:
            async with asyncio.timeout(_LOOK_S):
                await service.quitting.wait()
        except TimeoutError:
            continue
