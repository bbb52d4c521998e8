"""Exceptions of functions on their way back: the exception itself, and its traceback as text."""

from __future__ import annotations

import marshal
import pickle
from typing import Any

from gridhand.worker.encoded_values import dumps_known
from gridhand.worker.old_names import loads


class RemoteTraceback(Exception):
    """The traceback of an exception in its worker, as the `__cause__` of that exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def failure(error: BaseException, because: str = "") -> bytes:
    """Return the error as bytes; `because` says what failed if it was not the function."""
    import traceback

    tb = error.__traceback__
    inner = tb.tb_next if tb is not None and not because else tb
    text = "".join(traceback.format_exception(type(error), error, inner))
    return marshal.dumps((_pickled(error), f"{because}{_short(error)}", text, bool(because)))


class _InParts:
    """Pickles an exception whose `__init__` takes other arguments than it hands on, as many do."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        from gridhand.core.errors import restored

        error = self._error
        kept = {name: value for name, value in vars(error).items() if _sendable(value)}
        return restored, (type(error), error.args, kept)


def _pickled(error: BaseException) -> bytes:
    """Return the pickle of an error; empty if it could not be loaded again, which is tried here."""
    return _sendable(error) or _sendable(_InParts(error))


def _sendable(value: object) -> bytes:
    """Return the pickle of a value; empty if there is none that can be loaded again."""
    try:
        data = bytes(dumps_known(value))
        pickle.loads(data)
    except BaseException:  # whatever its own methods raise
        return b""
    return data


def _short(error: BaseException) -> str:
    try:
        said = " ".join(str(error).split())
    except Exception:  # a __str__ that fails
        said = ""
    kind = type(error).__qualname__
    return f"{kind}: {said[:400]}" if said else kind


def raised(data: bytes, name: str) -> BaseException:
    """Return what the function raised, or a `CallFailed` with its text if it cannot be loaded."""
    from gridhand.core.errors import CallFailed

    pickled, said, text, ours = marshal.loads(data)
    error: BaseException | None = None
    if pickled and not ours:
        try:
            error = loads(pickled)
        except Exception:
            error = None
    if error is None:
        hint = "See __cause__ for where it happened."
        error = CallFailed(name, "raised", said, hint=hint)
    error.__cause__ = RemoteTraceback(text)
    return error
