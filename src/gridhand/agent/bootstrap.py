"""How a controller comes to an agent: to the one that stands on its node, or to a new one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from gridhand.agent import wire
from gridhand.agent.link import Facts, Link, LinkAbsent, LinkLost
from gridhand.agent.starting import StarterError, launch, locked

_TRIES = 3
_PAUSE_S = 0.05


async def ensure_agent(
    folder: str,
    starter: str,
    *,
    epoch: int,
    on_event: Callable[[Facts], None] | None = None,
    on_lost: Callable[[], None] | None = None,
    grace_s: float = 60.0,
    timeout_s: float = 30.0,
    options: Sequence[str] = (),
) -> Link:
    """A link to the agent of `folder`, after its hello; if none runs it is started.

    However many do this at the same moment, one is started, which belongs to nobody. The answer to
    the hello is the link's `greeting`. Raises `LinkRefused` when a later epoch is in charge.
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
            words = ("--grace", str(grace_s), *options)
            await asyncio.to_thread(_ensure, folder, starter, words)
        except LinkLost:  # one that was just about to end
            await asyncio.sleep(_PAUSE_S)
    return await connect()


def _ensure(folder: str, starter: str, options: Sequence[str]) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    command = ["gridhand.agent.main", folder, "--starter", starter, *options]
    try:
        with locked(folder):
            if not _listens(folder):
                launch(command, folder)
    except StarterError as error:
        raise LinkLost(f"no agent can be started: {error}") from error


def _listens(folder: str) -> bool:
    try:
        wire.connect(folder, 1.0).close()
    except OSError:
        return False
    return True
