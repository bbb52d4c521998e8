"""Problems of a configuration: each with its path, the value, and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gridhand.core.errors import GridError, short_repr
from gridhand.core.model.resources import nearest_name

Problem = tuple[str, str]  # the path, such as nodes.0.port, and what is wrong there

_MOST_SHOWN = 50


class InvalidConfig(GridError):
    """A configuration with problems, all of which are in `problems`."""

    code = "invalid_config"

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = list(problems)
        lines = [f"{path}: {what}" if path else what for path, what in self.problems]
        shown = lines[:_MOST_SHOWN]
        if len(lines) > len(shown):
            shown.append(f"and {len(lines) - len(shown)} more")
        message = f"{source} is not valid:" + "".join(f"\n  {line}" for line in shown)
        super().__init__(message, hint="`grid config check FILE` checks a file.")


def describe_errors(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Return the problems that pydantic found, in the order of the file."""
    found = error.errors()
    inside = {details["loc"][:depth] for details in found for depth in range(len(details["loc"]))}
    # A list whose items are wrong counts as empty, which is no problem of its own.
    real = [one for one in found if one["type"] != "too_short" or one["loc"] not in inside]
    return [_describe(details, model) for details in real]


def _describe(details: ErrorDetails, model: type[BaseModel]) -> Problem:
    path, kind, context = _path(details["loc"]), details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return path, _unknown_key(details["loc"], model)
    if kind == "missing":
        return path, "is missing"
    if kind == "value_error":
        return path, f"allowed: {context['error']}"
    allowed = str(context["allowed"]) if kind == "not_allowed" else _allowed(kind, context, details)
    return path, f"{short_repr(_plain(details['input']))} is not allowed: {allowed}"


def _path(location: tuple[int | str, ...]) -> str:
    """Return the location without the parts that pydantic adds for unions and keys."""
    parts = [
        str(part) for part in location if not str(part).startswith(("constrained-", "function-"))
    ]
    return ".".join(part for part in parts if part not in _UNION_PARTS)


_UNION_PARTS = {"int", "float", "str", "[key]", "nullable"}


def _allowed(kind: str, context: dict[str, Any], details: ErrorDetails) -> str:
    bounds = {
        "greater_than": ("above", "gt"),
        "greater_than_equal": ("at least", "ge"),
        "less_than": ("below", "lt"),
        "less_than_equal": ("at most", "le"),
    }
    if kind in bounds:
        word, key = bounds[kind]
        return f"{word} {context[key]:g}"
    if kind in _WORDS:
        return _WORDS[kind]
    if kind == "literal_error":
        return f"one of {context['expected'].replace(chr(39), '').replace(' or ', ', ')}"
    if kind == "too_short":
        return f"at least {context['min_length']}"
    if kind in ("string_too_short", "string_too_long"):
        return "a text that is not empty" if kind == "string_too_short" else "a shorter text"
    return details["msg"][0].lower() + details["msg"][1:]


_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def _plain(value: Any) -> Any:
    """Return the value with lists for tuples, as the file has them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _unknown_key(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    known = _keys_at(location[:-1], model)
    meant = nearest_name(str(location[-1]), known)
    hint = f" (did you mean {meant}?)" if meant else ""
    return f"is not a key here{hint}; keys: {', '.join(sorted(known))}"


def _keys_at(location: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """Return the keys of the block that a location leads to."""
    at: Any = model
    for part in location:
        if isinstance(at, type) and issubclass(at, BaseModel) and part in at.model_fields:
            at = _block_in(at.model_fields[str(part)].annotation) or at
    return list(at.model_fields)


def _block_in(annotation: Any) -> type[BaseModel] | None:
    """Return the block in an annotation, such as the one of the items of a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_block_in(part) for part in get_args(annotation))
    return next((block for block in found if block is not None), None)
