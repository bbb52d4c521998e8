"""The limits of bodies: what is exactly as large as it may be is read, and not a byte more."""

import asyncio
import json

import pytest
from starlette.exceptions import HTTPException

from gridhand.api.http import DEEPEST, MOST_BYTES, MOST_JOB_BYTES, LimitBodies, read_json


class App:
    """Reads the whole body, and records how much that was."""

    def __init__(self):
        self.read = None

    async def __call__(self, scope, receive, send):
        read = 0
        while True:
            message = await receive()
            read += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        self.read = read


def send(path, size, *, stated=None, chunk=1 << 16, kind="http"):
    """Send a body of `size` bytes; return what was read, or the status of the refusal."""
    app, sent = App(), []
    headers = [] if stated is None else [(b"content-length", str(stated).encode())]
    scope = {"type": kind, "path": path, "headers": headers, "method": "POST"}
    left = size

    async def receive():
        nonlocal left
        count = min(chunk, left)
        left -= count
        return {"type": "http.request", "body": bytes(count), "more_body": left > 0}

    async def reply(message):
        sent.append(message)

    try:
        asyncio.run(LimitBodies(app)(scope, receive, reply))
    except HTTPException as error:
        return error.status_code
    return sent[0]["status"] if sent else app.read


LIMITS = {
    "/api/v1/jobs": MOST_JOB_BYTES,
    "/api/v1/calls": MOST_JOB_BYTES,
    "/api/v1/allocations": MOST_BYTES,
    "/api/v1/jobs/7/signal": MOST_BYTES,
    "/": MOST_BYTES,
}


@pytest.mark.parametrize(("path", "most"), LIMITS.items())
def test_a_body_may_be_as_large_as_its_route_allows_and_no_larger(path, most):
    assert send(path, most, stated=most) == most
    assert send(path, most) == most
    assert send(path, most + 1, stated=most + 1) == 413
    assert send(path, most + 1) == 413  # found out as it comes
    assert send(path, 4 * most) == 413


def test_a_body_that_is_larger_than_it_says_is_refused_all_the_same():
    assert send("/", MOST_BYTES + 1, stated=10) == 413


@pytest.mark.parametrize("stated", ["-1", "1e3", "", "ten"])
def test_a_length_that_is_no_number_is_refused(stated):
    assert send("/", 10, stated=stated) == 413


def nested(deep):
    return b"[" * deep + b"]" * deep


def test_a_body_may_be_nested_so_deep_and_no_deeper():
    assert read_json(nested(DEEPEST))
    for deep in (DEEPEST + 1, 10_000, 500_000):
        with pytest.raises(json.JSONDecodeError, match="nested"):
            read_json(nested(deep))
    assert read_json(b'{"a": "' + b"[" * 1000 + b'"}') == {"a": "[" * 1000}
    assert read_json(b"[" + b"[],{}," * 1000 + b"1]")[-1] == 1
