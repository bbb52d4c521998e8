"""Reads of users' files: one user who never gets an answer does not hold up the others."""

import asyncio
import contextlib
import functools
import os
import threading

import pytest

from gridhand.engines import file_reads
from gridhand.engines.file_reads import MOST_AT_ONCE, FileReads
from gridhand.posix.unix_users import UnixUser

ANN, BOB = UnixUser(1000, 1000, ()), UnixUser(1001, 1001, ())


def in_loop(test):
    """Run the test in an event loop of its own."""

    @functools.wraps(test)
    def run(rights):
        asyncio.run(test(rights))

    return run


@pytest.fixture
def rights(monkeypatch):
    """The users whose rights were taken on, without taking them."""
    taken = []

    @contextlib.contextmanager
    def take(user):
        taken.append((user, threading.current_thread() is threading.main_thread()))
        yield

    monkeypatch.setattr(file_reads, "file_rights_of", take)
    return taken


@in_loop
async def test_a_read_has_the_rights_of_its_user_in_a_thread_of_its_own(rights):
    reads = FileReads()
    assert await reads.run(ANN, lambda: "text") == "text"
    assert await reads.run(None, lambda: "ours") == "ours"
    assert rights == [(ANN, False)]
    with pytest.raises(FileNotFoundError):
        await reads.run(ANN, lambda: os.stat("/none"))


@in_loop
async def test_reads_that_never_return_are_few_for_each_user(rights):
    reads, answer = FileReads(), threading.Event()
    stuck = [asyncio.ensure_future(reads.run(BOB, answer.wait)) for _ in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(BlockingIOError):
        await reads.run(BOB, lambda: "more")
    assert await reads.run(ANN, lambda: "text") == "text"
    assert await reads.run(None, lambda: "ours") == "ours"
    stuck[0].cancel()  # its client is gone, but its thread is not
    await asyncio.sleep(0)
    with pytest.raises(BlockingIOError):
        await reads.run(BOB, lambda: "more")
    answer.set()
    assert await asyncio.gather(*stuck[1:]) == [True] * (MOST_AT_ONCE - 1)
    while True:  # until the first thread has ended, too
        with contextlib.suppress(BlockingIOError):
            assert await reads.run(BOB, lambda: "again") == "again"
            break
        await asyncio.sleep(0.01)
