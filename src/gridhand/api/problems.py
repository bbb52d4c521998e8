"""Every failure as application/problem+json: with a code, and a hint on what to do next."""

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

from gridhand.core import errors
from gridhand.core.errors import GridError, NoRoom
from gridhand.core.rows.answers import refusal_row

_log = logging.getLogger(__name__)

# The status of an error is that of the first class it is an instance of, else 409.
_STATUS: tuple[tuple[type[GridError], int], ...] = (
    (errors.UnknownNode, 404),
    (errors.UnknownAllocation, 404),
    (errors.UnknownJob, 404),
    (errors.UnknownCall, 404),
    (errors.UnknownToken, 404),
    (errors.UnknownFile, 404),
    (errors.TokenRefused, 401),
    (errors.ScopeTooNarrow, 403),
    (errors.TooManyRequests, 429),
    (errors.InvalidInput, 422),
    (errors.UnknownResource, 422),
    (errors.NeverFits, 422),
    (errors.NotYours, 403),
    (errors.StoreFull, 507),
    (errors.StoreUnavailable, 503),
    (errors.StoreFenced, 503),
    (errors.StoreError, 500),
    (errors.JobsFull, 429),
    (errors.QuotaExceeded, 429),
    (errors.QueueNotAllowed, 403),
    (errors.GridClosed, 503),
)
_MOST_SHOWN = 200
_MOST_NODES = 100

# Members that the reply has anyway, or in another form.
_RESERVED = frozenset({"hint", "code", "refusal", "status", "type", "title", "detail"})


_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}


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
    headers = _HEADERS.get(status)
    return Response(
        json.dumps(body), status, headers=headers, media_type="application/problem+json"
    )


def problem_of(error: GridError) -> Response:
    """Return the reply for an error of ours, with its attributes as members."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 409)
    more = facts_of(error)
    for name in ("field", "value", "allowed"):
        if (value := getattr(error, name, None)) is not None:
            more[name] = str(value)[:_MOST_SHOWN]
    if reasons := refusal_reasons(error):
        more["reasons"] = reasons
    return problem(status, error.code, str(error), error.hint, more)


def refusal_reasons(error: GridError) -> dict[str, list[str]]:
    """Return what each node lacks, of the first nodes; {} if the error is no refusal."""
    if not isinstance(error, NoRoom) or error.refusal is None:
        return {}
    return dict(islice(error.refusal.reasons().items(), _MOST_NODES))


def install(app: FastAPI) -> None:
    """Answer every failure of the app with a problem."""

    @app.exception_handler(GridError)
    async def grid_error(_: Request, error: GridError) -> Response:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        faults = [_fault(fault) for fault in error.errors()[:20]]
        first = faults[0]
        detail = f"{first['field']}: {first['value']} is not valid: {first['allowed']}"
        more = {**first, "errors": faults}
        return problem(422, "invalid_input", detail, "Correct the field.", more)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        words = {404: "not_found", 405: "not_allowed", 413: "too_large"}
        code = words.get(error.status_code, "http_error")
        hint = "See /openapi.json for the routes."
        return problem(error.status_code, code, str(error.detail), hint)

    @app.exception_handler(PermissionError)
    async def unknown_caller(_: Request, error: PermissionError) -> Response:
        return problem(401, "unknown_caller", str(error))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        hint = "This is a bug of ours; the controller's log says more."
        return problem(500, "internal", f"{type(error).__name__}: {error}", hint)


def facts_of(error: GridError) -> dict[str, Any]:
    """Return the plain attributes of an error; a refusal becomes a row for our own library."""
    facts = {name: value for name, value in vars(error).items() if name not in _RESERVED}
    plain = {name: value for name, value in facts.items() if _is_plain(value)}
    if isinstance(error, NoRoom) and error.refusal is not None:
        plain["refusal"] = refusal_row(error.refusal)
    return plain


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return value is None or isinstance(value, str | int | float)


def _fault(error: Mapping[str, Any]) -> dict[str, str]:
    """Translate one finding of pydantic."""
    field = ".".join(str(part) for part in error["loc"] if part not in ("body", "query"))
    value = repr(error.get("input"))
    shown = value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…"
    return {"field": field or "body", "value": shown, "allowed": str(error["msg"])}
