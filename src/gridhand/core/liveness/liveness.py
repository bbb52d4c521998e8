"""Liveness: decides from heartbeats which nodes elsewhere are up, suspect or down.

It is pure: time is an argument, heartbeats stay in memory, and only changes of health are returned,
to be recorded in the ledger. They are computed anew from what is known until the ledger has them:
a change that could not be written is simply returned again.

The rules, with the times of `budget`:

- A silent node is suspect and then down.
- So is a node whose boot id has changed, because what ran there is lost. It is down once an agent
  of the earlier boot has certainly stopped its jobs (it may be another machine that took over the
  name), and once nothing runs there that was ordered before the change was noticed.
- A node that is down owns nothing, because the ledger has lost all its allocations. It is up again
  after a heartbeat which says that nothing runs there; until then it is told what to stop.
- A node that leaves orders unanswered is suspect, however often it is heard.
- A node that was away before must be heard steadily for a while, longer each time, to be up again.
- Nobody is blamed for silence while the controller could not listen: after a start, or a late tick,
  silence is counted from a grace later.
- The health that an administrator sets is a ceiling: silence lowers it, heartbeats do not raise it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gridhand.core.liveness.budget import (
    CALM_MS,
    DEAF_MS,
    DOWN_MS,
    MOST_UNANSWERED,
    RECOVERY_GRACE_MS,
    STORE_GRACE_MS,
    SUSPECT_MS,
    hold_ms,
)
from gridhand.core.liveness.heartbeats import BeatAnswer, HealthChange, Heartbeat, Receipt, Recorded
from gridhand.core.liveness.remote_nodes import RANK
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Health


class Liveness:
    """The nodes that are served from elsewhere, and when each was heard."""

    def __init__(self, now: int, *, grace_ms: int = RECOVERY_GRACE_MS) -> None:
        """The silence of nodes that are not heard at all is counted from `grace_ms` later."""
        self._nodes: dict[NodeName, _RemoteNode] = {}
        self._first_heard = now + grace_ms
        self._listening_from = now  # silence counts from here at the earliest
        self._ticked = now
        self._store_answered = now

    def __contains__(self, name: NodeName) -> bool:
        return name in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    # ---- what is known

    def follow(self, recorded: Mapping[NodeName, Recorded], now: int) -> None:
        """Take over which nodes the ledger has, and what it says of them."""
        for name in self._nodes.keys() - recorded.keys():
            del self._nodes[name]
        for name, record in recorded.items():
            self.note_recorded(name, record, now)

    def note_recorded(self, name: NodeName, recorded: Recorded, now: int) -> None:
        """Take over what the ledger says of one node. A new node counts as heard now."""
        node = self._nodes.get(name)
        if node is None:
            self._nodes[name] = _RemoteNode(recorded, max(now, self._first_heard))
        elif node.recorded != recorded:
            node.note_recorded(recorded, now)

    def heartbeat(self, beat: Heartbeat, now: int) -> BeatAnswer:
        """Take a heartbeat of a node that is followed; the answer says whether it counts."""
        node = self._nodes[beat.node]
        receipt = node.check(beat)
        if now - self._store_answered > STORE_GRACE_MS:
            receipt = Receipt.UNCONFIRMED
        if receipt is Receipt.TAKEN:
            node.take(beat, now)
        return BeatAnswer(receipt, node.incarnation, tuple(sorted(node.owes)))

    def order_unanswered(self, name: NodeName) -> None:
        """Record that an order to the node timed out or failed on the way."""
        if name in self._nodes:
            self._nodes[name].unanswered += 1

    def order_answered(self, name: NodeName, now: int) -> None:
        """Record that the node has answered an order."""
        if name in self._nodes:
            self._nodes[name].note_answer(now)

    def store_answered(self, now: int) -> None:
        """Record that the store has answered a question that was asked at `now`."""
        self._store_answered = max(self._store_answered, now)

    def last_heard(self, name: NodeName) -> int | None:
        """Return when the last heartbeat of a node was taken; None if none was."""
        node = self._nodes.get(name)
        return node.last_taken if node is not None else None

    def takes_work(self, name: NodeName, now: int) -> bool:
        """Return whether a node was heard, and is up in the ledger and by its heartbeats."""
        node = self._nodes.get(name)
        if node is None or node.last_taken is None or node.recorded.health is not Health.UP:
            return False
        change = self.change(name, now)
        return change is None or change.health is Health.UP

    # ---- what follows from it

    def tick(self, now: int) -> None:
        """Take note of the time. A late call means that the controller could not listen."""
        if now - self._ticked > DEAF_MS:
            self._listening_from = now + RECOVERY_GRACE_MS
        self._ticked = now

    def changes(self, now: int) -> list[HealthChange]:
        """Return the changes that the ledger does not have yet."""
        self.tick(now)
        changes = [self.change(name, now) for name in self._nodes]
        return [change for change in changes if change is not None]

    def change(self, name: NodeName, now: int) -> HealthChange | None:
        """Return the change of one node that the ledger does not have yet."""
        return self._nodes[name].change(name, now, self._listening_from)


class _RemoteNode:
    """One node: what the ledger says of it, and what its heartbeats say."""

    __slots__ = (
        "absences",
        "boot_id",
        "heard",
        "incarnation",
        "last_taken",
        "lost_at",
        "owes",
        "recorded",
        "returned",
        "sequence",
        "steady_from",
        "unanswered",
        "up_from",
    )

    def __init__(self, recorded: Recorded, heard: int) -> None:
        """`heard` may be later than now, to give the node more time."""
        self.recorded = recorded
        self.heard = self.steady_from = self.up_from = heard
        self.last_taken: int | None = None
        self.incarnation = self.sequence = -1
        self.boot_id = recorded.boot_id
        self.lost_at: int | None = None  # when whatever ran before another boot has ended
        self.returned = False  # heard since the ledger has it as suspect or down
        self.owes: frozenset[str] = frozenset()  # what it ran when it owned nothing
        self.unanswered = 0
        self.absences = 0

    def note_recorded(self, recorded: Recorded, now: int) -> None:
        before, self.recorded = self.recorded.health, recorded
        if recorded.health is not before:
            self.returned = False
        if recorded.health is Health.DOWN:
            self.lost_at = None
        if before is Health.UP and recorded.health is not Health.UP and not _by_hand(recorded):
            self.absences += 1
        if recorded.health is Health.UP and before is not Health.UP:
            self.up_from = now
            if now - self.heard >= SUSPECT_MS:  # an administrator vouches for it
                self.heard = now

    def check(self, beat: Heartbeat) -> Receipt:
        if beat.incarnation < self.incarnation:
            return Receipt.SUPERSEDED
        if beat.incarnation == self.incarnation:
            if beat.boot_id != self.boot_id:  # two agents that count alike: the first one stays
                return Receipt.SUPERSEDED
            if beat.sequence <= self.sequence:
                return Receipt.OLD
        return Receipt.TAKEN

    def take(self, beat: Heartbeat, now: int) -> None:
        is_down = self.recorded.health is Health.DOWN
        if beat.boot_id == (self.recorded.boot_id or self.boot_id or beat.boot_id):
            self.lost_at = None  # the boot that runs what the ledger has there
        elif not is_down and (self.lost_at is None or beat.boot_id != self.boot_id):
            self.lost_at = self.heard + DOWN_MS  # of the boot that was heard until now
        if self.last_taken is None or now - self.heard >= SUSPECT_MS:
            self.steady_from = now
        self.heard = self.last_taken = now
        self.incarnation, self.sequence, self.boot_id = beat[1:4]
        self.returned = self.recorded.health is not Health.UP
        owns_nothing = is_down or self.lost_at is not None
        self.owes = beat.running if owns_nothing else self.owes & beat.running

    def note_answer(self, now: int) -> None:
        if self.unanswered >= MOST_UNANSWERED:
            self.steady_from = now
        self.unanswered = 0

    def change(self, name: NodeName, now: int, listening_from: int) -> HealthChange | None:
        recorded = self.recorded
        if recorded.health is Health.UP and now - self.up_from >= CALM_MS:
            self.absences = 0
        health, why = self._judge(now, now - max(self.heard, listening_from))
        if RANK[health] < RANK[recorded.ceiling]:
            health, why = recorded.ceiling, "an administrator lets it be no better"
        # The boot id is recorded together with the loss of what ran before, never ahead of it.
        early = self.lost_at is not None and health is not Health.DOWN
        boot_id = recorded.boot_id if early else self.boot_id
        if (health, boot_id) == (recorded.health, recorded.boot_id):
            return None
        why = why or "its boot id is known now"
        return HealthChange(name, recorded.health, health, why, boot_id)

    def _judge(self, now: int, silent_ms: int) -> tuple[Health, str]:
        """Return the health that follows from what was heard, and why."""
        if self.lost_at is not None and now >= self.lost_at and self.returned and not self.owes:
            return Health.DOWN, "it was booted again: what ran there is lost"
        if silent_ms >= DOWN_MS:
            return Health.DOWN, f"no heartbeat for {silent_ms // 1000} s"
        doubt = self._doubt(silent_ms)
        if self.recorded.health is Health.UP:
            return (Health.SUSPECT, doubt) if doubt else (Health.UP, "")
        if doubt or not self.returned or now - self.heard >= SUSPECT_MS:
            return self.recorded.health, doubt
        return Health.UP, "it is heard again"

    def _doubt(self, silent_ms: int) -> str:
        """Return why the node gets no new work; "" if nothing speaks against it."""
        if self.lost_at is not None:
            return "its boot id has changed"
        if silent_ms >= SUSPECT_MS:
            return f"no heartbeat for {silent_ms // 1000} s"
        if self.unanswered >= MOST_UNANSWERED:
            return f"{self.unanswered} orders in a row were not answered"
        if self.owes:
            return f"it still runs {len(self.owes)} that it no longer owns"
        away = self.recorded.health is not Health.UP
        if away and self.heard - self.steady_from < hold_ms(self.absences):
            return f"it was away {self.absences} times"
        return ""


def _by_hand(recorded: Recorded) -> bool:
    return recorded.health is recorded.ceiling
