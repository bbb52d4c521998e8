"""What an error carries besides its words, as plain data for the one who is told of it."""

from __future__ import annotations

from typing import Any

from gridhand.core.answers import refusal_row
from gridhand.core.errors import GridError, NoRoom

_SAID = frozenset({"hint", "code", "refusal", "status", "type", "title", "detail"})


def facts_of(error: GridError) -> dict[str, Any]:
    """Ids, names and counts as they are; of a refusal all that our own library makes of it."""
    facts = {name: value for name, value in vars(error).items() if name not in _SAID}
    plain = {name: value for name, value in facts.items() if _is_plain(value)}
    if isinstance(error, NoRoom):
        plain["refusal"] = refusal_row(error.refusal)
    return plain


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, str) for one in value)
    return value is None or isinstance(value, str | int | float)
