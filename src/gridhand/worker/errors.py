"""What a function raised, on its way back: the exception itself, and where it happened as text."""

from __future__ import annotations

import marshal
import pickle
from typing import Any

from gridhand.worker.values import dumps_known


class RemoteTraceback(Exception):
    """The `__cause__` of an exception from a worker: where it happened there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def failure(error: BaseException, because: str = "") -> bytes:
    """The error as bytes. `because` when it is not the function that raised it."""
    import traceback

    tb = error.__traceback__
    inner = tb.tb_next if tb is not None and not because else tb
    text = "".join(traceback.format_exception(type(error), error, inner))
    return marshal.dumps((_pickled(error), f"{because}{_short(error)}", text, bool(because)))


class _InParts:
    """An exception whose `__init__` takes other things than it hands on, as many do."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        from gridhand.core.errors import restored

        error = self._error
        kept = {name: value for name, value in vars(error).items() if _sendable(value)}
        return restored, (type(error), error.args, kept)


def _pickled(error: BaseException) -> bytes:
    """Nothing, if it could not be read again: that is found out here, and not by the caller."""
    return _sendable(error) or _sendable(_InParts(error))


def _sendable(value: object) -> bytes:
    """Its pickle, if there is one that can be read again."""
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
    """The error again: what the function raised, or a `CallFailed` that tells of it."""
    from gridhand.core.errors import CallFailed

    pickled, said, text, ours = marshal.loads(data)
    error: BaseException | None = None
    if pickled and not ours:
        try:
            error = pickle.loads(pickled)
        except Exception:
            error = None
    if error is None:
        hint = "See __cause__ for where it happened."
        error = CallFailed(name, "raised", said, hint=hint)
    error.__cause__ = RemoteTraceback(text)
    return error
