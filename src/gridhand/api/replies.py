"""Replies as JSON in plain ASCII.

What people give a command need not be text: Python has bytes that are none as halves of characters,
which UTF-8 cannot write. One such job must not keep everybody from listing theirs.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse as Utf8Response


class JSONResponse(Utf8Response):
    """As the usual one, but able to say anything that was taken."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
