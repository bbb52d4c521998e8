"""Proof, from the rows alone, that a ledger keeps its promises.

A ledger that counts wrongly would check itself with the same wrong count. So the checker shares
no code with it: it reads a plain dump (from memory, from a store's rows or from a file), counts
everything again the slow and obvious way, and reports each difference as a `Violation`. It trusts
nothing it reads: what is malformed is a violation too, never an exception.

Which invariant a finding names: I1 a node and its totals, I2 what is held, I3 devices, I5 the life
of an allocation (unique, dated, grouped), I6 jobs and what they hold, I7 histories and rebuilds,
I8 and I9 decisions.
"""

from __future__ import annotations

from gridhand.core.check.calls import check_call
from gridhand.core.check.decisions import check_decision, check_determinism
from gridhand.core.check.history import check_history, check_rebuild, replay, same_state
from gridhand.core.check.jobs import check_ended_job
from gridhand.core.check.rows import Violation
from gridhand.core.check.state import check_state

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
