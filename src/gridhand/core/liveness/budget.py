"""The time budget of a node that cannot be reached: every number of it, in one place.

The controller counts silence from the arrival of the last heartbeat that it acknowledged, and the
agent from the moment at which it sent that heartbeat. The agent's count is never behind, so its
jobs have stopped before the controller gives their resources to somebody else:

     0 s   the last acknowledged heartbeat
    10 s   SUSPECT_MS: the controller marks the node as suspect; it gets no new work
    15 s   SELF_FENCE_MS: the agent, if it is alive, begins to stop its jobs
   +10 s   KILL_MS: the longest time until they are killed
    +3 s   MARGIN_MS: for clocks that run at slightly different speeds, and for late timers
   =28 s   DOWN_MS: the controller marks the node as down; its resources are free, its jobs requeued
    30 s   PROMISED_MS: promised to users, so there are two seconds for the next tick and the commit
"""

from __future__ import annotations

HEARTBEAT_MS = 3_000  # between two heartbeats: three may be lost before a node is suspect
SUSPECT_MS = 10_000
SELF_FENCE_MS = 15_000
KILL_MS = 10_000
MARGIN_MS = 3_000
DOWN_MS = SELF_FENCE_MS + KILL_MS + MARGIN_MS
PROMISED_MS = 30_000

TICK_MS = 1_000  # how often the controller looks for silent nodes
DEAF_MS = 5_000  # a tick this late means that the controller itself could not listen
RECOVERY_GRACE_MS = 10_000  # added after a start or a deaf time, in which agents reconnect
STORE_GRACE_MS = 120_000  # how long heartbeats are acknowledged without an answer of the store

# After the take-over of a shared store the controller before may be alive, cut off from the store,
# and acknowledge heartbeats for as long as that. Who has not been heard yet is not silent before.
TAKE_OVER_GRACE_MS = STORE_GRACE_MS + RECOVERY_GRACE_MS

MOST_UNANSWERED = 3  # orders in a row, after which a node that is heard is suspect all the same

FIRST_HOLD_MS = 10_000  # of steady heartbeats before a node that went away twice is up again
LONGEST_HOLD_MS = 600_000  # the hold doubles each time, up to this
CALM_MS = 600_000  # after this time up, a node's earlier absences are forgotten


def hold_ms(absences: int) -> int:
    """Return for how long a node must be heard before it is up again; 0 after its first absence.

    >>> [hold_ms(absences) // 1000 for absences in (1, 2, 3, 4, 100)]
    [0, 10, 20, 40, 600]
    """
    doublings = min(absences - 2, 30)
    return 0 if doublings < 0 else min(LONGEST_HOLD_MS, FIRST_HOLD_MS << doublings)
