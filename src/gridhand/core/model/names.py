"""What a name may look like: of nodes, owners, holders, labels and operations.

Names end up in messages, logs, file names and queries, so the rule is narrow and the same for all.
Only what a job is called is for people alone, and may be any words that can be shown.
"""

from __future__ import annotations

import re

from gridhand.core.errors import InvalidName

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,199}", re.ASCII)
_LONGEST = 200
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:/+=-]{0,199}", re.ASCII)


def check_node_name(value: object, field: str = "node") -> str:
    """The name of a node, or `InvalidName`. No slash: `node/0` is its first device."""
    if isinstance(value, str) and _NODE.fullmatch(value):
        return value
    raise InvalidName(field, value, "at most 200 letters, digits or any of _ . @ : -")


def check_title(value: object, field: str) -> str:
    """What a job is called, as in Slurm: words with spaces, too; or `InvalidName`."""
    if isinstance(value, str) and len(value) <= _LONGEST and value.strip() and value.isprintable():
        return value
    raise InvalidName(
        field,
        value,
        f"at most {_LONGEST} characters that can be shown on one line, not just spaces",
    )


def check_label(value: object, field: str) -> str:
    """The name of an owner, a holder, a label or an operation, or `InvalidName`."""
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    raise InvalidName(field, value, "at most 200 letters, digits or any of _ . @ : / + = -")
