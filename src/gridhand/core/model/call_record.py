"""CallRecord: the stored record of one call of a user's function."""

from __future__ import annotations

import re
from typing import NamedTuple

from gridhand.core.errors import InvalidInput
from gridhand.core.model.names import AllocationId, JobId, NodeName

OPEN = ("queued", "running")
OVER = ("succeeded", "failed", "cancelled", "lost")
LONGEST_RUN = 32
MOST_NUMBER = 2**53 - 1
_ID = re.compile(r"([0-9a-z]{1,32})\.([1-9][0-9]{0,15})", re.ASCII)


class CallRecord(NamedTuple):
    """One call. `run` is the id of a worker pool, `number` the call's number in that pool.

    `job` is the slot that ran the call or, while the call is queued, the slot it waits for. Times
    are milliseconds since 1970.
    """

    run: str
    number: int
    owner: str
    name: str
    state: str
    node: NodeName | None
    job: JobId | None
    allocation: AllocationId | None
    submitted: int
    started: int | None
    ended: int | None
    error: str | None

    @property
    def id(self) -> str:
        return f"{self.run}.{self.number}"


def read_call_id(id: str) -> tuple[str, int]:
    """Split the id of a call into its run and its number.

    >>> read_call_id("9f3a1c02b7de.17")
    ('9f3a1c02b7de', 17)
    """
    match = _ID.fullmatch(id)
    if match is None or int(match[2]) > MOST_NUMBER:
        raise InvalidInput("call", id, "the id of a call, such as 9f3a1c02b7de.17")
    return match[1], int(match[2])
