"""The routes of /docs: a page to read and try the API, which needs no internet.

Its program and its style are files of a package that we depend on. The page itself has neither, so
that our content security policy allows nothing inline.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Gridhand API</title>
<link rel="icon" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<div id="docs"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</html>
"""
_START = """SwaggerUIBundle({
  dom_id: "#docs", url: "/openapi.json", deepLinking: true, filter: true, validatorUrl: null,
});
"""
_KINDS = {"css": "text/css", "js": "text/javascript", "png": "image/png"}
# As for all pages, and the icons that are written into the style.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'; object-src 'none'"
)
File = Literal["swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png", "start.js"]


def api_browser_routes() -> APIRouter:
    """Return the routes of the page, which are no part of the API that it describes."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        headers = {"content-security-policy": _POLICY}
        return Response(_PAGE, media_type="text/html", headers=headers)

    @router.get("/docs/{file}")
    async def part(file: File) -> Response:
        content = _START.encode() if file == "start.js" else _read_part(file)
        return Response(content, media_type=_KINDS[file.rpartition(".")[2]])

    return router


@cache
def _read_part(file: str) -> bytes:
    # Imported here alone: the package is only wanted for its files.
    from importlib.resources import files

    return files("fastapi_swagger").joinpath("resources", file).read_bytes()
