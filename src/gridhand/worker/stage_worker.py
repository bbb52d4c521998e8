"""The worker of a stage of a stream: one long call, which takes items and answers them.

It holds the resources of its function for as long as the stream lasts, and keeps what `init` made.
A worker process speaks with the stream over a socket, a worker thread over queues.
"""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from gridhand.worker.encoded_values import Folders, Packed, dumps_known, load
from gridhand.worker.errors import failure

_TOGETHER_S = 0.005  # answers to short calls are sent together

Item = tuple[int, list[Any]]  # its number, and the arguments of the function
SETUP = -1  # in the place of a number: `init` has ended; the error says how, if it failed


class StageWork(NamedTuple):
    """The function of a stage, its extra arguments, and whether it takes batches."""

    code: Callable[..., Any]
    extra_args: tuple[Any, ...] = ()
    init: Callable[[], Any] | None = None
    batches: bool = False


class Answer(NamedTuple):
    number: int
    value: Any
    error: Any = None
    seconds: float = 0.0


class StageChannel(Protocol):
    """The connection of a worker to the stream."""

    def take(self) -> Sequence[Item]:
        """Wait for the next items and return them; none when the stream has ended."""

    def waiting(self) -> bool:
        """Return whether more items are there already."""

    def answer(self, answers: list[Answer]) -> None: ...

    def failure(self, error: BaseException) -> Any:
        """Return an error as it is sent."""


def serve(work: StageWork, port: StageChannel) -> None:
    """Answer items until the stream has ended."""
    first: tuple[Any, ...] = ()
    if work.init is not None:
        try:
            first = (work.init(),)
        except BaseException as error:
            port.answer([Answer(SETUP, None, port.failure(error))])
            return
    port.answer([Answer(SETUP, None)])
    run = _batch if work.batches else _one_by_one
    kept: list[Answer] = []
    since = perf_counter()
    while items := port.take():
        for answer in run(work, first, items, port):
            kept.append(answer)
            now = perf_counter()
            if now - since >= _TOGETHER_S:
                port.answer(kept)
                kept, since = [], now
        if kept and not port.waiting():
            port.answer(kept)
            kept, since = [], perf_counter()


def _one_by_one(
    work: StageWork, first: tuple[Any, ...], items: Sequence[Item], port: StageChannel
) -> Iterable[Answer]:
    for number, values in items:
        begin = perf_counter()
        try:
            value = work.code(*first, *values, *work.extra_args)
        except Exception as error:
            yield Answer(number, None, port.failure(error), perf_counter() - begin)
        else:
            yield Answer(number, value, None, perf_counter() - begin)


def _batch(
    work: StageWork, first: tuple[Any, ...], items: Sequence[Item], port: StageChannel
) -> Iterable[Answer]:
    """All at once: each argument is a list, and so is what is returned, in the same order."""
    begin = perf_counter()
    columns = [list(column) for column in zip(*(values for _, values in items), strict=True)]
    try:
        results = work.code(*first, *columns, *work.extra_args)
        listed = isinstance(results, Sequence) or hasattr(results, "__len__")
        if not listed or len(results) != len(items):
            got = f"{len(results)} results" if listed else f"a {type(results).__name__}"
            raise ValueError(f"{len(items)} items were given, and {got} returned")
        values = list(results)
    except Exception as error:
        seconds = (perf_counter() - begin) / len(items)
        told = port.failure(error)
        return [Answer(number, None, told, seconds) for number, _ in items]
    seconds = (perf_counter() - begin) / len(items)
    pairs = zip(items, values, strict=True)
    return [Answer(number, value, None, seconds) for (number, _), value in pairs]


# ---- in a process


class _Socket:
    """Items come as packed values, and answers go so."""

    def __init__(self, connection: Any, folders: Folders) -> None:
        self._connection = connection
        self._folders = folders

    def take(self) -> Sequence[Item]:
        with contextlib.suppress(EOFError, OSError):
            listed: list[tuple[int, list[Packed]]] = marshal.loads(self._connection.recv_bytes())
            return [(number, [load(*one) for one in values]) for number, values in listed]
        return []

    def waiting(self) -> bool:
        with contextlib.suppress(EOFError, OSError):
            return bool(self._connection.poll())
        return False

    def answer(self, answers: list[Answer]) -> None:
        listed = [self._packed(one) for one in answers]
        with contextlib.suppress(OSError):
            self._connection.send_bytes(marshal.dumps(listed))

    def _packed(self, one: Answer) -> tuple[int, Packed | None, bytes | None, float]:
        if one.error is None:
            try:
                packed = self._folders.pack(one.value, dumps_known)
            except Exception as error:
                told = failure(error, "what it returned cannot be pickled: ")
                return one.number, None, told, one.seconds
            return one.number, packed, None, one.seconds
        return one.number, None, one.error, one.seconds

    def failure(self, error: BaseException) -> bytes:
        return failure(error)


def connect(address: str, secret: bytes, stage: str, folders: list[str], work: StageWork) -> None:
    """Connect to the stream, and serve it until it ends."""
    from multiprocessing.connection import Client

    connection = Client(address, family="AF_UNIX", authkey=secret)
    where = {name: os.environ.get(f"GRIDHAND_{name}", "") for name in ("NODE", "ALLOCATION_ID")}
    connection.send_bytes(marshal.dumps((stage, os.getpid(), where)))
    with connection:
        serve(work, _Socket(connection, Folders(folders, f"s{os.getpid()}")))
