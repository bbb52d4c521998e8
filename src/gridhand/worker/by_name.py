"""Functions that are sent by the name of the task that was made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ByName:
    """Stands for the function of a task; unpickled, it is that function."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return function_of(self.module, self.name)(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return function_of, (self.module, self.name)


def task_named(module: str, name: str) -> Any:
    from importlib import import_module

    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def function_of(module: str, name: str) -> Callable[..., Any]:
    code: Callable[..., Any] = task_named(module, name)._code
    return code
