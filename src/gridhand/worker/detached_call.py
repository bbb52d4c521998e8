"""Runs a call that was written to a file, as the command of a job that outlives its client."""

from __future__ import annotations

import marshal
import os
import sys
from types import CoroutineType
from typing import Any

from gridhand.posix.private_files import replace_file
from gridhand.worker.encoded_values import dumps_known
from gridhand.worker.errors import failure
from gridhand.worker.old_names import loads

CALL, RESULT = "call", "result"
RETURNED, RAISED = "returned", "raised"


def write_call(folder: str, path: list[str], code: bytes, arguments: bytes) -> str:
    """Write the file that `run_once` takes, readable by its owner only; return its path."""
    file = os.path.join(folder, CALL)
    replace_file(file, marshal.dumps((path, code, arguments)))
    return file


def run_once(file: str) -> int:
    """Call the function, write its result or error beside the file, and return the exit code."""
    with open(file, "rb") as opened:
        path, code, arguments = marshal.loads(opened.read())
    sys.path[:] = path
    sys.argv = [""]
    try:
        function = loads(code)
        args, kwargs = loads(arguments)
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
    replace_file(os.path.join(os.path.dirname(file), RESULT), marshal.dumps((how, data)))
    if how == RAISED:
        print(marshal.loads(data)[2], file=sys.stderr, end="")
    return 0 if how == RETURNED else 1


def read_result(folder_fd: int) -> tuple[str, bytes]:
    """Return how a call ended, and its result; raise `FileNotFoundError` before it has ended."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(RESULT, flags, dir_fd=folder_fd), "rb") as file:
        how, data = marshal.loads(file.read())
    return how, data
