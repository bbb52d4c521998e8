"""The one exit code of a gang: that of the member that failed first."""

from __future__ import annotations

from typing import Any


def gang_exit_code(ended: list[tuple[dict[str, Any], int]]) -> int:
    """Return the code of the first member that failed by itself; of any that failed; else 0.

    >>> first = {"reason": "exit", "ended_at": "2026-01-01T00:00:01+00:00", "array_index": 1}
    >>> other = {"reason": "gang", "ended_at": "2026-01-01T00:00:02+00:00", "array_index": 0}
    >>> gang_exit_code([(other, 125), (first, 7)])
    7
    """
    failed = [(job, code) for job, code in ended if code]
    by_itself = [one for one in failed if one[0].get("reason") != "gang"] or failed
    order = sorted(by_itself, key=lambda one: (one[0]["ended_at"] or "", one[0]["array_index"]))
    return order[0][1] if order else 0
