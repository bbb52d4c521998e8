"""The types of ids, and the rules for names of nodes, owners, holders, labels and jobs.

Names end up in messages, logs, file names and queries, so the rules are narrow. Only the name of
a job is shown to people alone, and may be any printable text.
"""

from __future__ import annotations

import re
from typing import NewType

from gridhand.core.errors import InvalidName

NodeName = NewType("NodeName", str)
"""The name of a node, which is also its id."""

JobId = NewType("JobId", str)
"""The id of a job: its number, or `<number of the array>_<index>` for a task of an array."""

AllocationId = NewType("AllocationId", str)
"""The id of an allocation: `a<epoch>-<number>`."""

AttemptKey = tuple[JobId, int]
"""A job and the number of its attempt."""

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,199}", re.ASCII)
_LONGEST = 200
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:/+=-]{0,199}", re.ASCII)


def check_node_name(value: object, field: str = "node") -> NodeName:
    """Return the name of a node, or raise InvalidName. No slash: `node/0` is its first device."""
    if isinstance(value, str) and _NODE.fullmatch(value):
        return NodeName(value)
    raise InvalidName(field, value, "at most 200 letters, digits or any of _ . @ : -")


def check_title(value: object, field: str) -> str:
    """Return the name of a job, which may contain spaces, or raise InvalidName."""
    if isinstance(value, str) and len(value) <= _LONGEST and value.strip() and value.isprintable():
        return value
    raise InvalidName(
        field,
        value,
        f"at most {_LONGEST} characters that can be shown on one line, not just spaces",
    )


def check_label(value: object, field: str) -> str:
    """Return the name of an owner, holder, label or operation, or raise InvalidName."""
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    raise InvalidName(field, value, "at most 200 letters, digits or any of _ . @ : / + = -")
