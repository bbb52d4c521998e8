"""Call: something asked of whatever keeps the ledger, and the type of its answer."""

from __future__ import annotations

from typing import Generic, TypeVar

Reply = TypeVar("Reply")


class Call(Generic[Reply]):
    """What a backend builds and answers. Only the backend knows what is in it."""

    __slots__ = ()
