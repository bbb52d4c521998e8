"""Turn failures into the errors of `gridhand.core.errors`.

That module is imported only when there is an error: a command that succeeds does not pay for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridhand.core.errors import GridError

# Members of problem+json that have a place of their own; the others become attributes.
_RESERVED = frozenset({"type", "title", "detail", "code", "hint", "instance", "args"})


def make_error(code: str, message: str, hint: str = "", **more: Any) -> GridError:
    """Return the error with this code, or a `GridError` if this version does not know the code.

    The constructor is bypassed, since each class takes arguments of its own.
    """
    from gridhand.core.errors import GridError

    kind = _kinds(GridError).get(code, GridError)
    error = kind.__new__(kind)
    error.args = (message,)
    vars(error).update(more, hint=hint)
    if error.code != code:
        vars(error)["code"] = code
    return error


def _kinds(root: type[GridError]) -> dict[str, type[GridError]]:
    """Return every class of error by its code. One that inherits its code is left out."""
    kinds: dict[str, type[GridError]] = {}
    waiting = [root]
    while waiting:
        kind = waiting.pop()
        if "code" in vars(kind):
            kinds.setdefault(kind.code, kind)
        waiting += kind.__subclasses__()
    return kinds


def read_problem(status: int, body: bytes) -> GridError:
    """Return the error for a reply of this status, whatever its body is."""
    problem = _object(body)
    message = problem.get("detail") or problem.get("title")
    if not isinstance(message, str):
        message = f"the controller answered with status {status}: {_short(body)}"
    code, hint = problem.get("code"), problem.get("hint")
    more = {name: value for name, value in problem.items() if name not in _RESERVED}
    return make_error(
        code if isinstance(code, str) else "grid_error",
        message,
        hint if isinstance(hint, str) else "",
        **{**more, "status": status},
    )


def unavailable(message: str, hint: str = "") -> GridError:
    """Return a `ControllerUnavailable`."""
    return make_error("controller_unavailable", message, hint)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _short(body: bytes) -> str:
    return body[:200].decode(errors="replace") or "an empty body"
