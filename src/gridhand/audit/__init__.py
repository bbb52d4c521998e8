"""The independent checker behind `grid check`: it verifies a ledger from its rows alone.

A ledger with a counting bug would check itself with the same bug. So the checker shares no code
with it: it reads a plain dump (from memory, a store or a file), counts everything again in the
slow and obvious way, and reports each difference as a `Violation`. It trusts nothing it reads:
malformed data is a violation, too, never an exception.

The invariants: I1 the totals of a node, I2 allocations, I3 devices, I4 a refusal changes nothing,
I5 the life of an allocation (unique ids, deadlines, groups), I6 jobs and what they hold, I7
histories and rebuilds, I8 deterministic decisions, I9 correct decisions.
"""

from __future__ import annotations

from gridhand.audit.calls import check_call
from gridhand.audit.decisions import check_decision, check_determinism
from gridhand.audit.history import check_history, check_rebuild, replay, same_state
from gridhand.audit.jobs import check_ended_job
from gridhand.audit.rows import Violation
from gridhand.audit.state import check_state

__all__ = [
    "Violation",
    "check_call",
    "check_decision",
    "check_determinism",
    "check_ended_job",
    "check_history",
    "check_rebuild",
    "check_state",
    "replay",
    "same_state",
]
