"""What went wrong, as the errors that callers know.

`gridhand.core.errors` is imported when there is an error and not before: a command that goes well
does not pay for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridhand.core.errors import GridError

# Members of problem+json that are said in other ways; the rest become attributes.
_SAID = frozenset({"type", "title", "detail", "code", "hint", "instance", "args"})


def make_error(code: str, message: str, hint: str = "", **more: Any) -> GridError:
    """The error with this code; one that this version does not know keeps its code all the same.

    It is made without its constructor, which takes other things than a message.
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
    """Every kind of error by its code. A kind that inherits its code does not stand for it."""
    found: dict[str, type[GridError]] = {}
    waiting = [root]
    while waiting:
        kind = waiting.pop()
        if "code" in vars(kind):
            found.setdefault(kind.code, kind)
        waiting += kind.__subclasses__()
    return found


def read_problem(status: int, body: bytes) -> GridError:
    """The error that a reply of this status stands for, whatever its body is."""
    told = _object(body)
    message = told.get("detail") or told.get("title")
    if not isinstance(message, str):
        message = f"the controller answered with status {status}: {_short(body)}"
    code, hint = told.get("code"), told.get("hint")
    more = {name: value for name, value in told.items() if name not in _SAID}
    return make_error(
        code if isinstance(code, str) else "grid_error",
        message,
        hint if isinstance(hint, str) else "",
        **{**more, "status": status},
    )


def unavailable(message: str, hint: str = "") -> GridError:
    return make_error("controller_unavailable", message, hint)


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _short(body: bytes) -> str:
    return body[:200].decode(errors="replace") or "and said nothing"
