"""The dispatcher starts waiting jobs, in the keeper's thread and the transaction that made room.

A job that is submitted where there is room is stored, placed and granted in one commit; a job that
ends gives its room to the next in the same commit. The runner of jobs is told of changes only once
they are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gridhand.controller.keeper.allocation_waits import AllocationWaits
from gridhand.controller.keeper.gang_starts import start_gang
from gridhand.controller.keeper.job_commands import cancel_job, end_lost_attempts
from gridhand.controller.keeper.ledger_commands import Context, resolve_neighbours
from gridhand.controller.keeper.prefetch import Prefetch
from gridhand.controller.keeper.tickets import Ticket
from gridhand.core.errors import GridError, NoRoom
from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import After, Condition, Job, JobState, Reason
from gridhand.core.ledger.allocations import Allocation, Lifetime, Terms
from gridhand.core.ledger.ledger import Change, Placement
from gridhand.core.model.names import AllocationId, JobId, NodeName
from gridhand.core.model.requests import Request
from gridhand.core.placement.room import could_fit_on
from gridhand.core.queue.delays import current_request, declared_ms, expected_ms
from gridhand.core.queue.named_queues import NO_QUEUES
from gridhand.core.queue.preemption import Preemption
from gridhand.core.queue.queue import Queue
from gridhand.core.queue.shares import Shares
from gridhand.core.queue.timeline import Caller, RoomClaim, Timeline, why_kept
from gridhand.store.base import PastShares

_MANY_NODES = 16  # beyond which all that waits is tried again
KEEP_SHARES_MS = 60_000
MOST_STARTS = 256  # in one commit: the first of them should not wait for the rest

Held = dict[AllocationId, Allocation]
Grant = Callable[[Ticket], NoRoom | None]
Listener = Callable[[Sequence[Change], Held], None]
_FREEING = frozenset({"allocation.released", "allocation.expired", "allocation.lost"})


class Dispatch:
    """The queue of a keeper. All methods but `pause` and `resume` run in the keeper's thread."""

    def __init__(
        self,
        listener: Listener = lambda changes, held: None,
        reloaded: Callable[[Context], None] = lambda context: None,
        startable: Callable[[Job], bool] = lambda job: True,
        committed: Callable[[Sequence[Change]], None] = lambda changes: None,
    ) -> None:
        """`reloaded` is called after the ledger was read again: it may have changed unnoticed.

        `listener` is told of durable changes to jobs, `committed` of all durable changes.
        """
        self._committed = committed
        self._startable = startable
        self.shares = Shares()
        self.timeline = Timeline()
        self.preemption = Preemption()
        self._rules = NO_QUEUES
        self.queue = self._new_queue()
        self._freed_on: set[NodeName] = set()  # nodes on which something was freed
        self.listener = listener
        self.reloaded = reloaded
        self.waits = AllocationWaits()
        self._shares_kept = 0
        self._seen = 0  # changes of the batch of which the queue was told
        self._prefetch = Prefetch()
        self._shared: Held = {}  # allocations that this batch lined jobs up behind
        self._paused = False
        self._more = False

    def pause(self) -> None:
        """Start nothing for now: the nodes are not connected yet, or the controller stops."""
        self._paused = True

    def resume(self) -> None:
        self._paused, self._more = False, True

    def _new_queue(self) -> Queue:
        queue = Queue(self._startable)
        queue.ready.owner_order = self.shares.order
        queue.ready.class_patience_ms = self._rules.times.class_patience_ms
        queue.use_rules(self._rules, ())
        return queue

    def load_shares(self, past: PastShares) -> None:
        """Take over what owners had before this start; a later reload knows less than we do."""
        if not self.shares.settled:
            self.shares.load(*past)

    def due_shares(self, now: int) -> dict[str, float]:
        """Return the past shares to store, once a minute; else nothing."""
        if now - self._shares_kept < KEEP_SHARES_MS:
            return {}
        self._shares_kept = now
        return self.shares.past()

    def load(self, open_jobs: Iterable[Job], now: int) -> None:
        """Build the queue again from these jobs.

        A dependency of a queued job that is not among them has ended as it had to: otherwise the
        job would have been cancelled in the same transaction.
        """
        self.queue = self._new_queue()
        self.timeline.clear()
        self.queue.advance(now)
        self._more = True
        ordered = sorted(open_jobs, key=lambda job: (job.state is JobState.QUEUED, job.number))
        known = {job.id for job in ordered}
        for job in ordered:
            self.queue.put(
                job,
                {
                    dependency.id: _met(dependency)
                    for dependency in job.after
                    if dependency.id not in known
                },
            )
        self.waits.rejoin_all(self.queue)

    # ---- time

    def due(self, now: int) -> bool:
        """Return whether there is something to do without any operation."""
        if self._paused:
            return False
        next_due = self.queue.next_due()
        return self._more or (next_due is not None and next_due <= now)

    def next_due(self) -> int | None:
        return None if self._paused else self.queue.next_due()

    # ---- a batch

    def run(self, context: Context, grant: Grant, *, starting: bool = True) -> None:
        """Tell the queue what the batch has changed so far, and start what there is room for.

        `grant` decides about an allocation that waits, and returns why it has to wait on.
        """
        self.queue.advance(context.now)
        self._follow_rules(context)
        self._catch_up(context, begun=True)
        for job, reason in self.queue.too_late(context.now):
            if job.id not in self.waits:
                cancel_job(context, job, reason)
        self._catch_up(context)
        self._free(context)
        self._more = not starting and self._more
        if starting and not self._paused:
            self._start(context, grant)
        self._catch_up(context)

    def _follow_rules(self, context: Context) -> None:
        """Apply named queues and quotas that were read again, also to what waits and runs."""
        if context.queues is self._rules:
            return
        self._rules = rules = context.queues
        self.timeline.expected_ms = lambda job: expected_ms(job, rules)
        self.shares.weight = rules.weight_of
        times = rules.times
        self.shares.half_life_ms = times.half_life_ms
        self.queue.ready.class_patience_ms = times.class_patience_ms
        self.timeline.patience_ms = times.patience_ms
        self.preemption.minimum_run_ms = times.minimum_run_ms
        self.preemption.most_times = times.most_preemptions
        self.queue.use_rules(rules, context.ledger.jobs.placed())

    def look_again(self) -> None:
        """Try waiting jobs again: something outside the ledger became free."""
        self.queue.freed()
        self._more = True

    def undo(self, context: Context) -> None:
        """Undo the batch in the queue and in the ledger: it could not be written."""
        self._shared.clear()
        self._seen = 0
        self.timeline.clear()
        undone = [change for change in context.ledger.changes if type(change.after) is Job]
        context.ledger.rollback()
        if any(change.after.after for change in undone):
            # Dependencies are not undone in steps.
            self.load(context.ledger.jobs.open.values(), context.now)
            return
        for _, _, before, after, _ in reversed(undone):
            self.queue.put(before or after._replace(state=JobState.CANCELLED))
        self.queue.freed()
        self._more = True

    def settled(self, changes: Sequence[Change]) -> None:
        """Tell the listener of changes to jobs, which are durable now."""
        self._seen = 0
        self._committed(changes)
        shared, self._shared = self._shared, {}
        about_jobs = [change for change in changes if type(change.after) is Job]
        if about_jobs:
            granted = {
                change.after.id: change.after
                for change in changes
                if change.before is None and type(change.after) is Allocation
            }
            self.listener(about_jobs, shared | granted)

    def _catch_up(self, context: Context, *, begun: bool = False) -> None:
        """Tell the queue of the changes since the last time, and of those that follow from them.

        `begun` if commands may have started jobs within allocations of their owners.
        """
        changes = context.ledger.changes
        end_lost_attempts(context, self._seen)
        while self._seen < len(changes):
            kind, _, _, after, _ = changes[self._seen]
            self._seen += 1
            if type(after) is Job:
                if kind != "job.started":  # the queue was told of these as they started
                    self._put(context, after)
                    self._note_end(context, after)
                    if after.attempt is not None:
                        self.timeline.look_again_at(after.attempt.node)
                elif begun:
                    self._note_start_within(context, after)
            elif kind == "allocation.left":
                for job in context.ledger.jobs.holding(after.id):
                    cancel_job(context, job, Reason.RELEASED)
            elif kind in _FREEING:
                self._freed_on.add(after.node)
                self._more = True
            elif kind.startswith("node."):
                self.timeline.drop_closed(context.ledger)
                self.queue.freed()
                self._more = True

    def _free(self, context: Context) -> None:
        """Have the queue try what could fit on the nodes on which something was freed."""
        names, self._freed_on = self._freed_on, set()
        self.timeline.sooner(names, context.ledger, context.now)
        if len(names) > _MANY_NODES:
            self.queue.freed()
            return
        nodes = context.ledger.nodes
        uses = [nodes[name] for name in names if name in nodes and nodes[name].open]
        if uses:
            self.queue.freed(lambda asked: could_fit_on(asked, uses, context.snapshot))

    def _note_start_within(self, context: Context, job: Job) -> None:
        """Note a job that started within an allocation, which may be released by now."""
        self.queue.put(job)
        if job.attempt is not None and job.attempt.allocation in context.ledger.live:
            held = context.ledger.live[job.attempt.allocation]
            self._shared[held.id] = held

    def _put(self, context: Context, job: Job) -> None:
        ended = _ended_dependencies(context, job) if job.after else {}
        for id in self.queue.put(job, ended):
            doomed = context.ledger.jobs.open.get(id)
            if doomed is not None:
                cancel_job(context, doomed, Reason.DEPENDENCY)

    def _note_end(self, context: Context, job: Job) -> None:
        """Note the end of an attempt: the line of jobs behind it is shorter now."""
        if job.attempt is None and job.attempts:
            self._prefetch.ended(job)
            if context.ledger.jobs.count(job.attempts[-1].allocation):
                self.queue.freed(lambda asked: asked == job.request)
                self._more = True

    def _start(self, context: Context, grant: Grant) -> None:
        """Start jobs that fit; line up short tasks behind running ones where there is no room.

        Nothing is lined up while an allocation waits, or once an earlier job was refused.
        """
        ahead = not self.waits
        self._prefetch.begin_pass()
        self.shares.follow(context.ledger, context.now)
        if self.timeline.keep(self.queue.is_ready):
            self.queue.freed()  # the room that was kept for them
        started = 0
        full: tuple[str, Request, Refusal | str] | None = None  # holds for alike tasks
        for job in self.queue.order(context.now):
            if started == MOST_STARTS:
                self._more = True
                return
            if job.id in self.waits:
                self._grant_waiting(context, job, grant)
                continue
            if job.work.nodes is not None:
                started += start_gang(self, context, job)
                continue
            if full is None or (job.array, job.request) != full[:2]:
                refusal = self._try(context, job)
                if refusal is None:
                    started += 1
                    continue
                if isinstance(refusal, RoomClaim):
                    self.queue.block(job.id, why_kept(refusal, context.now))
                    continue
                ahead = ahead and full is None and not self.queue.ready.has_refused_before(job)
                full = (job.array or "", job.request, refusal)
            shared = self._prefetch.find(job, context.ledger) if ahead else None
            if shared is not None:
                self.queue.put(self._line_up(context, job, shared))
                started += 1
            else:
                self.make_room_later(context, job, full[2])
                self.queue.refuse(job.id, full[2])

    def _grant_waiting(self, context: Context, entry: Job, grant: Grant) -> None:
        """Try an allocation that waits; it has left the queue if that was answered."""
        refused = grant(self.waits.ticket(entry.id))
        if refused is None:
            self.shares.follow(context.ledger, context.now)
        elif refused.refusal is None:
            self.queue.block(entry.id, str(refused))
        else:
            if entry.id not in self.queue.ready.apart:
                self.make_room_later(context, entry, refused.refusal)
            self.queue.refuse(entry.id, refused.refusal)

    def _try(self, context: Context, job: Job) -> Refusal | RoomClaim | str | None:
        """Start a job, or return why it cannot start."""
        now = context.now
        try:
            asked = resolve_neighbours(current_request(job, now), job.work.owner, context.ledger)
            rank = self.queue.ready.rank(job.work.priority)
            said_ms = declared_ms(job)
            caller = Caller(job.id, rank, None if said_ms is None else now + said_ms)
            placed = context.place(asked, caller)
        except GridError as error:  # its node or its neighbour does not exist now
            return str(error)
        if not isinstance(placed, Placement):
            return placed
        started = self.grant(context, job, placed)
        self._prefetch.started(started)
        self.queue.put(started)
        self.timeline.drop(job.id)
        self.shares.note_start(job.work.owner, now)
        self.shares.follow(context.ledger, now)
        if self.timeline.is_full:  # else those who are refused may have room kept
            self.queue.ready.close_filled()
        return None

    def make_room_later(self, context: Context, job: Job, refusal: Refusal | str) -> None:
        """Stop others for an urgent job that was refused, or keep room free from when some ends."""
        if isinstance(refusal, str):
            return
        asked, rank = refusal.asked, self.queue.ready.rank(job.work.priority)
        known = self.timeline.get(job.id)
        if self.preemption.may_preempt(job) and not (known is not None and known.preempts):
            if self._preempt(context, job, asked, rank):
                return
            chance = self.preemption.next_chance(rank, context.ledger, context.now)
            self.queue.look_again_at(job.id, chance)
        self.timeline.plan(job, rank, asked, context.snapshot, context.now)

    def _preempt(self, context: Context, job: Job, asked: Request, rank: int) -> bool:
        """Stop jobs of lower priorities, if that makes room for this one; return whether it does.

        The room is kept for it until it has started, or no longer waits.
        """
        now = context.now
        found = self.preemption.decide(job, asked, rank, context.snapshot, now)
        if found is None:
            return False
        grace_ms, stops = 0, list[JobId]()
        for victim in (one for freed in found.victims for one in freed.jobs):
            assert victim.attempt is not None
            stopped = jobs.stop(victim, victim.attempt.number, Reason.PREEMPTED, by=job.id)
            if stopped is not victim:  # it may have been told before a restart
                context.ledger.put_job("job.stopping", stopped, f"preempted by job {job.id}")
            grace_ms = max(grace_ms, victim.work.grace_ms)
            stops.append(victim.id)
        claim = RoomClaim(job.id, rank, found.node, found.asked, now + grace_ms, now, tuple(stops))
        self.timeline.put(claim)
        return True

    def _line_up(self, context: Context, job: Job, allocation: AllocationId) -> Job:
        """Start a job on the allocation of other tasks of its array, after them."""
        held = self._shared[allocation] = context.ledger.live[allocation]
        started = jobs.start(
            job,
            node=held.node,
            allocation=held.id,
            now=context.now,
            waited=self.queue.waited(job.id, context.now),
        )
        return context.ledger.put_job("job.started", started)

    def grant(self, context: Context, job: Job, placed: Placement, master: str = "") -> Job:
        """Start a job where it was placed."""
        ledger = context.ledger
        terms = Terms(job.work.owner, lifetime=Lifetime.JOB)
        (held,) = ledger.grant([placed], terms, now=context.now)
        claim = self.timeline.get(job.id)
        started = jobs.start(
            job,
            node=held.node,
            allocation=held.id,
            now=context.now,
            choice=_choice(job, placed),
            waited=self.queue.waited(job.id, context.now),
            master=master,
            preempts=() if claim is None else claim.stops,
        )
        return ledger.put_job("job.started", started)


def _ended_dependencies(context: Context, job: Job) -> dict[JobId, JobState]:
    """Return how the job's dependencies have ended that the queue no longer knows."""
    known = context.past_jobs | context.ledger.jobs.over
    found = (known.get(after.id) for after in job.after)
    return {one.id: one.state for one in found if one is not None and not one.open}


def _met(after: After) -> JobState:
    """Return a state that fulfils the dependency."""
    return JobState.FAILED if after.condition is Condition.NOT_OK else JobState.SUCCEEDED


def _choice(job: Job, placed: Placement) -> int:
    """Return the index of the alternative that was placed."""
    if not job.request.alternatives:
        return 0
    wanted = (placed.asked.amounts, placed.asked.gpu, placed.asked.quality)
    for index, one in enumerate(job.request.choices()):
        if (one.amounts, one.gpu, one.quality) == wanted:
            return index
    return 0
