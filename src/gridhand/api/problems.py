"""Problems: every failure as application/problem+json, with a code, and what to do next."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gridhand.api.facts import facts_of
from gridhand.core import errors
from gridhand.core.errors import GridError, NoRoom

_log = logging.getLogger(__name__)

# The first that an error is an instance of.
_STATUS: tuple[tuple[type[GridError], int], ...] = (
    (errors.UnknownNode, 404),
    (errors.UnknownAllocation, 404),
    (errors.UnknownJob, 404),
    (errors.UnknownCall, 404),
    (errors.InvalidInput, 422),
    (errors.UnknownResource, 422),
    (errors.NeverFits, 422),
    (errors.NotYours, 403),
    (errors.StoreFull, 507),
    (errors.StoreUnavailable, 503),
    (errors.StoreFenced, 503),
    (errors.StoreError, 500),
    (errors.JobsFull, 429),
    (errors.GridClosed, 503),
)
_SHOWN = 200
_NODES = 100


def problem(
    status: int, code: str, detail: str, hint: str = "", more: Mapping[str, Any] | None = None
) -> Response:
    body = {
        "type": f"urn:gridhand:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        **(more or {}),
    }
    headers = {"retry-after": "1"} if status == 503 else None
    return Response(
        json.dumps(body), status, headers=headers, media_type="application/problem+json"
    )


def of_error(error: GridError) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 409)
    more = facts_of(error)
    for name in ("field", "value", "allowed"):
        if (value := getattr(error, name, None)) is not None:
            more[name] = str(value)[:_SHOWN]
    if isinstance(error, NoRoom) and error.refusal is not None:
        more["reasons"] = dict(islice(error.refusal.reasons().items(), _NODES))
    return problem(status, error.code, str(error), error.hint, more)


def install(app: FastAPI) -> None:
    """Have every failure of the app answered like this."""

    @app.exception_handler(GridError)
    async def ours(_: Request, error: GridError) -> Response:
        return of_error(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        found = [_finding(one) for one in error.errors()[:20]]
        first = found[0]
        detail = f"{first['field']}: {first['value']} is not allowed: {first['allowed']}"
        more = {**first, "errors": found}
        return problem(422, "invalid_input", detail, "Correct the field.", more)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        words = {404: "not_found", 405: "not_allowed", 413: "too_large"}
        code = words.get(error.status_code, "http_error")
        hint = "See /openapi.json for what there is."
        return problem(error.status_code, code, str(error.detail), hint)

    @app.exception_handler(PermissionError)
    async def unknown_caller(_: Request, error: PermissionError) -> Response:
        return problem(401, "unknown_caller", str(error))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        hint = "This is a fault of ours; the controller's log says more."
        return problem(500, "internal", f"{type(error).__name__}: {error}", hint)


def _finding(one: Mapping[str, Any]) -> dict[str, str]:
    field = ".".join(str(part) for part in one["loc"] if part not in ("body", "query"))
    value = repr(one.get("input"))
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
    return {"field": field or "body", "value": shown, "allowed": str(one["msg"])}
