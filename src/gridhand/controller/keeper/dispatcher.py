"""Dispatch: starts what waits, in the keeper's thread and in the transaction that made room.

A job that is submitted where there is room is written down, placed and granted in one commit; one
that ends gives its place to the next in the same commit. Whoever runs jobs hears of the changes
once they are durable, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gridhand.controller.commands import Desk, near
from gridhand.controller.job_commands import cancel, end_lost
from gridhand.controller.lanes import Lanes
from gridhand.core import jobs
from gridhand.core.allocations import Allocation, Lifetime
from gridhand.core.errors import GridError
from gridhand.core.jobs import After, Condition, Job, JobState, Reason
from gridhand.core.ledger import Change, Placement, Terms
from gridhand.core.placement import place
from gridhand.core.queue import Queue
from gridhand.core.refusals import Refusal
from gridhand.core.requests import Request

MOST_STARTS = 256  # in one commit: the first of them should not wait for the rest

Held = dict[str, Allocation]
Listener = Callable[[Sequence[Change], Held], None]
_FREEING = frozenset({"allocation.released", "allocation.expired", "allocation.lost"})


class Dispatch:
    """The queue of a keeper. All but `pause` and `resume` is called from the keeper's thread."""

    def __init__(
        self,
        listener: Listener = lambda changes, held: None,
        reloaded: Callable[[], None] = lambda: None,
    ) -> None:
        """`reloaded` is called when the ledger was read anew: it may have changed untold."""
        self.queue = Queue()
        self.listener = listener
        self.reloaded = reloaded
        self._lanes = Lanes()
        self._shared: Held = {}  # what those hold who were lined up by this batch
        self._paused = False
        self._more = False

    def pause(self) -> None:
        """Start nothing for now: the nodes are not reached yet, or the controller is to end."""
        self._paused = True

    def resume(self) -> None:
        self._paused, self._more = False, True

    def load(self, open_jobs: Iterable[Job]) -> None:
        """Begin anew with these.

        Whatever a queued job was to run after and is not among them has ended as it had to: had
        it not, the job would have been cancelled in the same transaction.
        """
        self.queue = Queue()
        self._more = True
        ordered = sorted(open_jobs, key=lambda job: (job.state is JobState.QUEUED, job.number))
        known = {job.id for job in ordered}
        for job in ordered:
            self.queue.put(job, {one.id: _met(one) for one in job.after if one.id not in known})

    # ---- time

    def due(self, now: int) -> bool:
        """Whether there is something to do though nobody asks for anything."""
        if self._paused:
            return False
        next_due = self.queue.next_due()
        return self._more or (next_due is not None and next_due <= now)

    def next_due(self) -> int | None:
        return None if self._paused else self.queue.next_due()

    # ---- a batch

    def run(self, desk: Desk, *, starting: bool = True, ahead: bool = True) -> None:
        """Take note of what the batch has changed so far, and start what there is room for.

        Nothing is lined up behind what runs unless it may go `ahead` of all others that wait.
        """
        seen = self._catch_up(desk, 0, begun=True)
        self._more = not starting and self._more
        if starting and not self._paused:
            self._start(desk, ahead)
        self._catch_up(desk, seen)

    def look_again(self) -> None:
        """Something became free of which the ledger does not know."""
        self.queue.freed()
        self._more = True

    def undo(self, desk: Desk) -> None:
        """What the batch has changed could not be written: take it back, here and in the ledger."""
        self._shared.clear()
        undone = [change for change in desk.ledger.changes if type(change.after) is Job]
        desk.ledger.rollback()
        if any(change.after.after for change in undone):
            self.load(desk.ledger.jobs.open.values())  # who waits for whom is not undone in steps
            return
        for _, _, before, after, _ in reversed(undone):
            self.queue.put(before or after._replace(state=JobState.CANCELLED))
        self.queue.freed()
        self._more = True

    def settled(self, changes: Sequence[Change]) -> None:
        """These are durable: whoever runs jobs may act on them."""
        shared, self._shared = self._shared, {}
        about_jobs = [change for change in changes if type(change.after) is Job]
        if about_jobs:
            granted = {
                change.subject: change.after
                for change in changes
                if change.before is None and type(change.after) is Allocation
            }
            self.listener(about_jobs, shared | granted)

    def _catch_up(self, desk: Desk, seen: int, *, begun: bool = False) -> int:
        """Tell the queue what has changed since; what follows from that is told, too.

        `begun` if some may have been started by commands, in what their owners hold.
        """
        changes = desk.ledger.changes
        end_lost(desk, seen)
        while seen < len(changes):
            kind, subject, _, after, _ = changes[seen]
            seen += 1
            if type(after) is Job:
                if kind != "job.started":  # those it was told of as they were started
                    self._put(desk, after)
                    self._has_ended(desk, after)
                elif begun:
                    self._began(desk, after)
            elif kind == "allocation.left":
                for job in desk.ledger.jobs.holding(subject):
                    cancel(desk, job, Reason.RELEASED)
            elif kind in _FREEING or kind.startswith("node."):
                self.queue.freed()
                self._more = True
        return seen

    def _began(self, desk: Desk, job: Job) -> None:
        """One was started in what its owner holds; it may have been given up by now."""
        self.queue.put(job)
        if job.attempt is not None and job.attempt.allocation in desk.ledger.live:
            held = desk.ledger.live[job.attempt.allocation]
            self._shared[held.id] = held

    def _put(self, desk: Desk, job: Job) -> None:
        ended = _ended(desk, job) if job.after else {}
        for id in self.queue.put(job, ended):
            doomed = desk.ledger.jobs.open.get(id)
            if doomed is not None:
                cancel(desk, doomed, Reason.DEPENDENCY)

    def _has_ended(self, desk: Desk, job: Job) -> None:
        """An attempt of it is over; if others are lined up behind it, that line is shorter now."""
        if job.attempt is None and job.attempts:
            self._lanes.ended(job)
            if desk.ledger.jobs.lined_up(job.attempts[-1].allocation):
                self.queue.freed()
                self._more = True

    def _start(self, desk: Desk, ahead: bool) -> None:
        """Start what there is room for; where there is none, line up what is over in no time.

        Not behind the back of one that comes first and was refused.
        """
        self._lanes.begin_pass()
        started = 0
        full: tuple[str, Request, Refusal | str] | None = None  # for the tasks of one array
        for job in self.queue.order(desk.now):
            if started == MOST_STARTS:
                self._more = True
                return
            if full is None or (job.array, job.request) != full[:2]:
                refusal = self._try(desk, job)
                if refusal is None:
                    started += 1
                    continue
                ahead = ahead and full is None
                full = (job.array or "", job.request, refusal)
            shared = self._lanes.find(job, desk.ledger) if ahead else None
            if shared is not None:
                self.queue.put(self._line_up(desk, job, shared))
                started += 1
            else:
                self.queue.refuse(job.id, full[2])

    def _try(self, desk: Desk, job: Job) -> Refusal | str | None:
        """Start it, or say why not."""
        try:
            asked = near(job.request, job.work.owner, desk.ledger)
            desk.snapshot.learn(asked)
            placed = place(asked, desk.snapshot, desk.strategy)
        except GridError as error:  # what it is to be near to, or on, is not there now
            return str(error)
        if isinstance(placed, Refusal):
            return placed
        started = self._grant(desk, job, placed)
        self._lanes.started(started)
        self.queue.put(started)
        return None

    def _line_up(self, desk: Desk, job: Job, allocation: str) -> Job:
        """Have it run where others of its array do, after them."""
        held = self._shared[allocation] = desk.ledger.live[allocation]
        started = jobs.start(job, node=held.node, allocation=held.id, now=desk.now)
        return desk.ledger.put_job("job.started", started)

    def _grant(self, desk: Desk, job: Job, placed: Placement) -> Job:
        ledger = desk.ledger
        terms = Terms(job.work.owner, lifetime=Lifetime.JOB)
        (held,) = ledger.grant([placed], terms, now=desk.now)
        started = jobs.start(
            job,
            node=held.node,
            allocation=held.id,
            now=desk.now,
            choice=_choice(job, placed),
        )
        return ledger.put_job("job.started", started)


def _ended(desk: Desk, job: Job) -> dict[str, JobState]:
    """How those have ended that it is to run after, of which the queue no longer knows."""
    known = desk.past_jobs | desk.ledger.jobs.over
    found = (known.get(after.id) for after in job.after)
    return {one.id: one.state for one in found if one is not None and not one.open}


def _met(after: After) -> JobState:
    """A state that lets those run that were to wait for it."""
    return JobState.FAILED if after.condition is Condition.NOT_OK else JobState.SUCCEEDED


def _choice(job: Job, placed: Placement) -> int:
    """Which of the request's choices it got."""
    if not job.request.alternatives:
        return 0
    wanted = (placed.asked.amounts, placed.asked.gpu, placed.asked.quality)
    for index, one in enumerate(job.request.choices()):
        if (one.amounts, one.gpu, one.quality) == wanted:
            return index
    return 0
