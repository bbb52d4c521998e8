"""What type checkers make of tasks: run by mypy, where every `type: ignore` must be needed."""

import asyncio
from typing import assert_type

from gridhand import Grid, TaskFuture, task
from gridhand.library.functions.detached import DetachedCall


@task
def plain(number: int) -> str:
    return str(number)


@task(cpu=2, memory="1GB", timeout="5m")
def add(a: int, b: int) -> int:
    return a + b


@task(cpu=1)
async def later(number: int) -> bytes:
    return bytes(number)


@task(cpu=1, detach=True)
def detached(number: int) -> float:
    return number / 2


def checked() -> None:
    assert_type(plain(3), str)
    assert_type(plain.submit(3), TaskFuture[str])
    assert_type(add.submit(1, b=2).result(), int)
    assert_type(later.submit(3), TaskFuture[bytes])
    assert_type(list(plain.map([1, 2])), list[str])
    assert_type(list(add.map([1, 2], [3, 4])), list[int])
    assert_type(list(later.map([1, 2])), list[bytes])
    assert_type(detached(3), float)
    assert_type(detached.submit(3), DetachedCall[float])
    assert_type(detached.submit(3).result(), float)
    assert_type(plain.options(detach=True).submit(3), DetachedCall[str])
    assert_type(later.options(detach=True).submit(3), DetachedCall[bytes])
    assert_type(add.options(cpu=4, timeout=None).submit(1, 2), TaskFuture[int])


def futures(one: TaskFuture[int], several: list[TaskFuture[int]]) -> None:
    assert_type(add.submit(one, 2), TaskFuture[int])
    assert_type(add.submit(1, one), TaskFuture[int])
    assert_type(plain.submit(several), TaskFuture[str])


async def awaited() -> None:
    assert_type(await plain.submit(3), str)
    assert_type(await asyncio.wait_for(later.submit(3), 5), bytes)
    assert_type(await detached.submit(3), float)


def wrong(grid: Grid) -> None:
    plain.submit("3")  # type: ignore[call-overload]
    plain.submit()  # type: ignore[call-overload]
    add.submit(1)  # type: ignore[call-overload]
    add.submit(1, c=2)  # type: ignore[call-overload]
    plain.map(["3"])  # type: ignore[list-item]
    detached.submit("3")  # type: ignore[arg-type]
