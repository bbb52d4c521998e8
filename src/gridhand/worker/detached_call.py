"""One call that was written down in a file, as the command of a job that outlives its client."""

from __future__ import annotations

import marshal
import os
import pickle
import sys
from types import CoroutineType
from typing import Any

from gridhand.worker.failing import failure
from gridhand.worker.values import dumps_known

CALL, RESULT = "call", "result"
RETURNED, RAISED = "returned", "raised"


def write_call(folder: str, path: list[str], code: bytes, arguments: bytes) -> str:
    """The file that `run_once` takes; only its owner can read it."""
    return _write(folder, CALL, marshal.dumps((path, code, arguments)))


def run_once(file: str) -> int:
    """Call it, and leave beside it what it returned or raised. The exit code of the job."""
    with open(file, "rb") as opened:
        path, code, arguments = marshal.loads(opened.read())
    sys.path[:] = path
    sys.argv = [""]
    try:
        function = pickle.loads(code)
        args, kwargs = pickle.loads(arguments)
    except BaseException as error:
        return _left(file, RAISED, failure(error, "it could not be loaded: "))
    try:
        value: Any = function(*args, **kwargs)
        if type(value) is CoroutineType:
            import asyncio

            value = asyncio.run(value)
    except BaseException as error:
        return _left(file, RAISED, failure(error))
    try:
        return _left(file, RETURNED, bytes(dumps_known(value)))
    except Exception as error:
        return _left(file, RAISED, failure(error, "what it returned cannot be written: "))


def _left(file: str, how: str, data: bytes) -> int:
    _write(os.path.dirname(file), RESULT, marshal.dumps((how, data)))
    if how == RAISED:
        print(marshal.loads(data)[2], file=sys.stderr, end="")
    return 0 if how == RETURNED else 1


def _write(folder: str, name: str, content: bytes) -> str:
    """All of it or nothing, also after a power cut."""
    path = os.path.join(folder, name)
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fdatasync(fd)
    os.rename(f"{path}.new", path)
    return path


def read_result(folder: str) -> tuple[str, bytes]:
    """How it ended, and the bytes that belong to that; raises `FileNotFoundError` before."""
    with open(os.path.join(folder, RESULT), "rb") as file:
        how, data = marshal.loads(file.read())
    return how, data
