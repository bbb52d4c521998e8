"""ControllerLink: the requests of a worker to its controller, each in a thread.

A failed request is not repeated here: what to do depends on what it was for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

from gridhand.client.errors import read_problem
from gridhand.client.http1 import HttpConnection
from gridhand.client.transport import Address, Transport
from gridhand.core.model.names import NodeName

Facts = dict[str, Any]

_THREADS = 6
_TIMEOUT_S = 10.0


class ControllerLink:
    """Sends requests about one node. Raises GridError for a refusal, OSError without an answer."""

    def __init__(self, address: str, token: str, node: NodeName) -> None:
        parsed = Address.parse(address)
        self.address = str(parsed)
        self._transport = Transport(parsed, timeout_s=_TIMEOUT_S)
        self._threads = ThreadPoolExecutor(_THREADS, "gridhand-worker")
        self._headers = {"authorization": f"Bearer {token}"}
        self._target = f"/api/v1/nodes/{quote(node, safe='')}"
        self._open: set[HttpConnection] = set()

    async def post(
        self, what: str, body: Mapping[str, Any], timeout_s: float = _TIMEOUT_S
    ) -> Facts:
        """Send a body and return the answer."""
        content = json.dumps(body, separators=(",", ":")).encode()
        headers = {"content-type": "application/json"}
        return _facts((await self._send("POST", what, headers, content, timeout_s))[0])

    async def send_bytes(self, what: str, query: Mapping[str, Any], data: bytes) -> Facts:
        """Send raw bytes and return the answer."""
        headers = {"content-type": "application/octet-stream"}
        return _facts((await self._send("POST", _with(what, query), headers, data, _TIMEOUT_S))[0])

    async def read_facts(self, what: str, query: Mapping[str, Any]) -> Facts:
        return _facts((await self.read_bytes(what, query))[0])

    async def read_bytes(
        self, what: str, query: Mapping[str, Any]
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return raw bytes, and the headers that came with them."""
        return await self._send("GET", _with(what, query), {}, None, _TIMEOUT_S)

    async def _send(
        self, method: str, what: str, headers: dict[str, str], body: bytes | None, timeout_s: float
    ) -> tuple[bytes, Mapping[str, str]]:
        opened: list[HttpConnection] = []

        def send() -> tuple[int, Mapping[str, str], bytes]:
            return self._transport.request(
                method,
                f"{self._target}/{what}",
                self._headers | headers,
                body,
                repeatable=True,
                timeout_s=timeout_s,
                opened=self._note(opened),
            )

        try:
            loop = asyncio.get_running_loop()
            status, told, content = await loop.run_in_executor(self._threads, send)
        finally:
            self._open.difference_update(opened)
        if status >= 400:
            raise read_problem(status, content)
        return content, told

    def _note(self, opened: list[HttpConnection]) -> Callable[[HttpConnection], None]:
        def note(connection: HttpConnection) -> None:
            opened.append(connection)
            self._open.add(connection)

        return note

    def hang_up(self) -> None:
        """End all requests that wait for an answer: the network may have lost them."""
        for connection in list(self._open):
            connection.shut_down()

    def close(self) -> None:
        self.hang_up()
        self._transport.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _with(what: str, query: Mapping[str, Any]) -> str:
    return f"{what}?{urlencode(query)}"


def _facts(content: bytes) -> Facts:
    facts: Facts = json.loads(content)
    return facts
