"""The OpenAPI document: what FastAPI finds out about the routes, and what all of them share.

Every failure is a problem (RFC 9457), with members of its own beside the usual ones, and every
request over the network needs a token.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gridhand.api.access import ACCESS, OPEN

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "Why a request failed, and what to do. Other members depend on the code.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code", "hint"],
}
_FAILURES = {"4XX": "The request was refused; nothing changed.", "5XX": "It could not be served."}
_FASTAPI_ONLY = ("HTTPValidationError", "ValidationError")  # its own form of 422


def install_document(app: FastAPI) -> None:
    """Have the application describe itself as it really answers."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            app.openapi_schema = _completed(found)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for name in _FASTAPI_ONLY:
        schemas.pop(name, None)
    schemas["Problem"] = _PROBLEM
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    parts["responses"] = {kind: _failure(text) for kind, text in _FAILURES.items()}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _complete(operation, ACCESS[f"{method.upper()} {path}"].scope)
    return document


def _failure(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": text, "content": {"application/problem+json": {"schema": schema}}}


def _complete(operation: dict[str, Any], scope: str) -> None:
    """Add the failures that every route may have, and the scope that it needs."""
    responses = operation["responses"]
    responses.pop("422", None)
    for kind in _FAILURES:
        responses.setdefault(kind, {"$ref": f"#/components/responses/{kind}"})
    operation["x-scope"] = scope
    if scope != OPEN:
        operation["security"] = [{"token": []}]
