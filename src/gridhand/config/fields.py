"""Types of configuration values: amounts, durations and names as users write them.

Amounts keep the spelling of the file, so that what is written again reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from gridhand.core.errors import InvalidInput
from gridhand.core.model.durations import read_duration
from gridhand.core.model.names import check_label, check_node_name
from gridhand.core.model.resources import Resources, read_amount
from gridhand.core.placement.strategies import strategy_named


class Block(BaseModel):
    """One block of the file: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _checked(check: Callable[[Any], object]) -> BeforeValidator:
    """Return a validator that keeps the value, from a function that raises InvalidInput."""

    def validate(value: Any) -> Any:
        _allow(check, value)
        return value

    return BeforeValidator(validate)


def _read(read: Callable[[Any], object]) -> BeforeValidator:
    """Return a validator that replaces the value, from a function that raises InvalidInput."""
    return BeforeValidator(lambda value: _allow(read, value))


def _allow(read: Callable[[Any], object], value: Any) -> object:
    try:
        return read(value)
    except InvalidInput as error:
        allowed = {"allowed": error.allowed}
        raise PydanticCustomError("not_allowed", "{allowed}", allowed) from error


def _seconds(value: Any) -> Any:
    """Return seconds: a bare number counts them, a text has units."""
    if not isinstance(value, str):
        return value
    if not value[-1:].isalpha():  # on the command line a text without a unit counts minutes
        raise InvalidInput("seconds", value, _DURATION)
    try:
        return read_duration(value) / 1000
    except InvalidInput:
        raise InvalidInput("seconds", value, _DURATION) from None


def _group(value: Any) -> str:
    """Check the name of a unix group; whether the machine has it is another question."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,99}", value):
        return value
    raise InvalidInput("group", value, "the name of a unix group")


def _granularity(value: Any) -> None:
    """Check an amount of memory that others are multiples of."""
    if read_amount("memory", value) == 0:
        raise InvalidInput("memory", value, "more than 0")


def _amount(name: str) -> BeforeValidator:
    return _checked(lambda value: read_amount(name, value))


_DURATION = "a number of seconds, or a text with units such as 90s, 2h or 1h30m"

Written = int | float | str  # an amount as it stands in the file

Memory = Annotated[Written, _amount("memory")]
Granularity = Annotated[Written, _checked(lambda value: _granularity(value))]
Gigabytes = Annotated[float, Field(gt=0)]
Cores = Annotated[Written, _amount("cpu")]
Price = Annotated[Written, _amount("price")]
Amounts = Annotated[dict[str, Written], _checked(Resources.of)]
Seconds = Annotated[float, _read(_seconds), Field(gt=0)]
AnySeconds = Annotated[float, _read(_seconds), Field(ge=0)]  # none at all, too
Percent = Annotated[float, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
NodeText = Annotated[str, _checked(lambda value: check_node_name(value, "node"))]
GroupText = Annotated[str, _checked(lambda value: _group(value))]
LabelText = Annotated[str, _checked(lambda value: check_label(value, "label"))]
StrategyText = Annotated[str, _checked(strategy_named)]
