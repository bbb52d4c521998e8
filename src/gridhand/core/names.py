"""What a name may look like: of nodes, owners, holders, labels and operations.

Names end up in messages, logs, file names and queries, so the rule is narrow and the same for all.
"""

from __future__ import annotations

import re

from gridhand.core.errors import InvalidName

_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,199}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:/+=-]{0,199}", re.ASCII)


def check_node_name(value: object, field: str = "node") -> str:
    """The name of a node, or `InvalidName`. No slash: `node/0` is its first device."""
    if isinstance(value, str) and _NODE.fullmatch(value):
        return value
    raise InvalidName(field, value, "at most 200 letters, digits or any of _ . @ : -")


def check_label(value: object, field: str) -> str:
    """The name of an owner, a holder, a label or an operation, or `InvalidName`."""
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    raise InvalidName(field, value, "at most 200 letters, digits or any of _ . @ : / + = -")
