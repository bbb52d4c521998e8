"""Strict JSON: what the standard does not know, or nobody could mean, is refused before it is read.

NaN and Infinity are no JSON, but Python reads them. Numbers of thousands of digits and lists a
thousand deep would raise errors of their own, which would be taken for faults of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

DEEPEST = 100
# A text to its end, or to the end of all: whatever is sent, each byte is looked at once.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_strict"):
            self._strict = read_json(await self.body())
        return self._strict


class StrictRoute(APIRoute):
    """A route whose body is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def read_json(body: bytes) -> Any:
    """What `body` says, or `JSONDecodeError`, whatever is the matter with it."""
    _check_depth(body)
    try:
        return json.loads(body, parse_constant=_refuse)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # too many digits, no UTF-8, too deep
        raise json.JSONDecodeError(str(error), "", 0) from error


def _check_depth(body: bytes) -> None:
    """Refuse what could be too deep. Brackets in texts count too, so this looks only once."""
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    depth = deepest = 0
    for byte in _TEXT.sub(b"", body).translate(None, _NO_BRACKETS):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    if deepest > DEEPEST:
        raise json.JSONDecodeError(f"nested more than {DEEPEST} deep", "", 0)


def _refuse(word: str) -> NoReturn:
    raise json.JSONDecodeError(f"{word} is not a number", "", 0)
