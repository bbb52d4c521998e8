"""Find the agent of a folder, or start one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from gridhand.agent.link import Link
from gridhand.agent.link_errors import LinkAbsent, LinkLost
from gridhand.agent.starter import connection
from gridhand.posix.daemon import DaemonFailed, launch, start_lock, unprotected

_TRIES = 3
_PAUSE_S = 0.05


async def ensure_agent(
    folder: str,
    starter: str,
    *,
    epoch: int,
    on_event: Callable[[Any], None] | None = None,
    on_lost: Callable[[], None] | None = None,
    grace_s: float = 60.0,
    timeout_s: float = 30.0,
    options: Sequence[str] = (),
) -> Link:
    """Return a link to the agent of `folder`, after its hello; start an agent if none runs.

    However many callers do this at the same moment, one is started, which belongs to nobody. The
    answer to the hello is the link's `greeting`. Raises LinkRefused if a later epoch is in charge.
    """

    async def connect() -> Link:
        link = await Link.open(folder, on_event=on_event, on_lost=on_lost, timeout_s=timeout_s)
        try:
            await link.hello(epoch)
        except BaseException:
            link.close()
            raise
        return link

    for _ in range(_TRIES):
        try:
            return await connect()
        except LinkAbsent:
            arguments = ("--starter", starter, "--grace", str(grace_s), *options)
            await asyncio.to_thread(_launch_agent, folder, arguments)
        except LinkLost:  # an agent that was just about to end
            await asyncio.sleep(_PAUSE_S)
    return await connect()


def _launch_agent(folder: str, arguments: Sequence[str]) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        with start_lock(folder):
            if not _listens(folder):
                launch(["gridhand.agent.main", folder, *arguments], folder, unprotected)
    except DaemonFailed as error:
        if not _listens(folder):  # one runs, and has just put back a socket that was removed
            raise LinkLost(f"no agent can be started: {error}") from error


def _listens(folder: str) -> bool:
    try:
        connection.connect(folder, 1.0).close()
    except OSError:
        return False
    return True
