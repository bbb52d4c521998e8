"""CallRecord: one call of a function, as it is remembered."""

from __future__ import annotations

import re
from typing import NamedTuple

from gridhand.core.errors import InvalidInput

OPEN = ("queued", "running")
OVER = ("succeeded", "failed", "cancelled", "lost")
LONGEST_RUN = 32
MOST_NUMBER = 2**53 - 1
_ID = re.compile(r"([0-9a-z]{1,32})\.([1-9][0-9]{0,15})", re.ASCII)


class CallRecord(NamedTuple):
    """The calls of one pool of workers are a run, and are numbered in it.

    `job` is that of the slot that ran it; while it is queued, of the one it waits for. Times are
    milliseconds since 1970.
    """

    run: str
    number: int
    owner: str
    name: str
    state: str
    node: str | None
    job: str | None
    allocation: str | None
    submitted: int
    started: int | None
    ended: int | None
    error: str | None

    @property
    def id(self) -> str:
        return f"{self.run}.{self.number}"


def read_call_id(id: str) -> tuple[str, int]:
    """The run and the number that an id is made of.

    >>> read_call_id("9f3a1c02b7de.17")
    ('9f3a1c02b7de', 17)
    """
    found = _ID.fullmatch(id)
    if found is None or int(found[2]) > MOST_NUMBER:
        raise InvalidInput("call", id, "the id of a call, such as 9f3a1c02b7de.17")
    return found[1], int(found[2])
