"""The state of a pool and what follows from it, without any I/O.

A call waits in the line of its shape until a worker takes it. Methods change the state and return
what is to be done about it: which workers to stop, which calls to settle. Several threads share a
state, so all of it is used by the one who holds `lock`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gridhand.library.pool.shape import PendingCall, Shape, WorkerHandle
from gridhand.library.pool.worker_group import WorkerGroup
from gridhand.worker import wire

if TYPE_CHECKING:
    from gridhand.core.model.requests import Request
    from gridhand.library.functions.function_runner import FunctionCall
    from gridhand.library.pool.call_log import Notes

Answered = list[tuple[PendingCall, int, bytes]]

STUCK_S = 0.05  # calls that wait so long behind another are given to other workers
_TURN_S = 0.5
_REMEMBERED = 10_000
_NO_ALARM_S = 3600.0
_NO_SHAPE = (None, None, None)


class Answers(NamedTuple):
    """The answers that a worker has sent."""

    answered: Answered
    strays: list[tuple[int, bytes]]  # answers to no call that it has


@dataclass(slots=True)
class Due:
    """The workers to stop or recall, and the calls that are over, for whoever does the I/O."""

    alarm: float  # when to look again at the latest
    quit: list[WorkerHandle] = field(default_factory=list)
    kill: list[WorkerHandle] = field(default_factory=list)
    recall: list[WorkerHandle] = field(default_factory=list)
    late: list[PendingCall] = field(default_factory=list)  # their time limit is over
    short: bool = False  # some call waits, or some slot has not come


class PoolState:
    """The shapes of a pool, and its workers from when they connect until they are gone."""

    def __init__(self, linger_s: float) -> None:
        self.lock = threading.Lock()
        self.linger_s = linger_s
        self.closed = False
        self.workers: dict[int, WorkerHandle] = {}
        self._shapes: dict[tuple[str, WorkerGroup], Shape] = {}
        self._shape_count = self._worker_count = 0
        self._last: tuple[Request, WorkerGroup, Shape] | tuple[None, None, None] = _NO_SHAPE

    # ---- shapes

    def shapes(self) -> list[Shape]:
        return list(self._shapes.values())

    def shape_of(self, call: FunctionCall, group: WorkerGroup, notes: Notes) -> Shape:
        """Return the shape that the call belongs to, made if it is the first of its kind."""
        last = self._last
        usual = not (call.held or call.apart or call.priority)
        if usual and call.request is last[0] and group is last[1]:
            return last[2]
        request, held, apart, priority = call.request, call.held, call.apart, call.priority
        key = f"{held or request.key()} {apart} {priority or ''}", group
        shape = self._shapes.get(key)
        if shape is None:
            self._shape_count += 1
            shape = self._shapes[key] = Shape(
                self._shape_count, request, notes, group, held, apart, priority
            )
        if usual:
            self._last = request, group, shape
        return shape

    def take_waiting(self, shape: Shape | None = None) -> list[PendingCall]:
        """Remove and return the calls of a shape, or of all shapes that have no worker."""
        calls: list[PendingCall] = []
        for one in [shape] if shape is not None else self._shapes.values():
            if shape is not None or not one.workers:
                calls += one.waiting
                one.waiting.clear()
        return calls

    def close(self) -> list[PendingCall]:
        """Take no more calls; return those that are open."""
        self.closed = True
        calls = [call for shape in self._shapes.values() for call in self.take_waiting(shape)]
        return calls + [call for one in self.workers.values() for call in one.running.values()]

    def standing(self) -> tuple[dict[int, float], dict[Shape, str | None]]:
        """Return since when each call runs that does, and the slot that each shape waits for."""
        busy = [worker for worker in self.workers.values() if worker.running]
        running = {next(iter(worker.running)): worker.begun for worker in busy}
        return running, {shape: next(iter(shape.asked), None) for shape in self._shapes.values()}

    # ---- slots that are asked for

    def wants_slots(self, shape: Shape, now: float) -> bool:
        """Return whether the shape could use another worker that no other shape starves for."""
        shape.forget_cancelled()
        others = (one for one in self._shapes.values() if one is not shape)
        starved = bool(shape.workers) and any(one.starves(now) for one in others)
        return not starved and shape.missing(1 << 30, 1 << 30) > 0

    def ask_for_slots(self, shape: Shape, most: int, first: int) -> int:
        """Return how many more slots to ask for; they count as being asked for from now on."""
        count = shape.missing(most, first)
        shape.asking += count
        return count

    def slots_asked(self, shape: Shape, count: int, jobs: list[str], now: float) -> None:
        """Note that so many slots were asked for, and that these jobs came of it."""
        shape.asking -= count
        for job in jobs:
            if job in shape.early:
                shape.early.discard(job)
            else:
                shape.asked[job] = now

    def take_surplus(self, shape: Shape) -> list[str]:
        """Remove and return slots that have not come and for which there is nothing to do."""
        if shape.waiting or not shape.asked:
            return []
        jobs = list(shape.asked)
        shape.asked.clear()
        if len(shape.unwanted) > _REMEMBERED:  # the oldest are long gone
            shape.unwanted.clear()
        shape.unwanted.update(jobs)  # one that connects before it is cancelled is sent away
        return jobs

    def awaited_slots(self) -> list[tuple[Shape, str]]:
        """Return the slot of each shape that was asked for first and has not come."""
        found = [(shape, next(iter(shape.asked), "")) for shape in self._shapes.values()]
        return [(shape, job) for shape, job in found if job]

    def slot_failed(self, shape: Shape, job: str, most: int) -> bool:
        """Note that a slot will not come; return whether so many failed that there is no hope."""
        if shape.asked.pop(job, None) is None:
            return False  # it came after all
        shape.failures += 1
        if shape.failures < most:
            return False
        shape.failures = 0
        return True

    # ---- workers

    def welcome(self, shape_number: int, pid: int, told: list[str]) -> WorkerHandle | None:
        """Add a worker that has connected; None if it is not wanted any more."""
        numbered = (one for one in self._shapes.values() if one.number == shape_number)
        shape = next(numbered, None)
        if shape is None or told[0] in shape.unwanted:
            return None
        self._worker_count += 1
        worker = WorkerHandle(self._worker_count, pid, shape, told)
        self.workers[worker.number] = worker
        if shape.asked.pop(worker.job, None) is None and worker.attempt == 1:
            shape.early.add(worker.job)
        shape.failures = shape.helped = 0
        shape.no_room = False
        shape.workers.add(worker)
        return worker

    def take_answers(self, worker: WorkerHandle, bodies: list[bytes], now: float) -> Answers:
        """Take what the worker has answered; it is without those calls from now on.

        Calls that it gives back are first in line again.
        """
        found = Answers([], [])
        answered = found.answered
        running, shape, size = worker.running, worker.shape, wire.ANSWER.size
        unpack, load_s, seconds = wire.ANSWER.unpack_from, worker.load_s, 0.0
        taken_back: list[PendingCall] = []
        for body in bodies:
            offset, end = 0, len(body)
            while offset < end:
                number, how, seconds, length = unpack(body, offset)
                offset += size
                data = body[offset : offset + length]
                offset += length
                call = running.pop(number, None)
                if call is None:
                    found.strays.append((how, data))
                    continue
                load_s -= call.expected
                if how == wire.TAKEN_BACK:
                    taken_back.append(call)
                    continue
                call.function.took(seconds)
                call.started, call.ended = now - seconds, now
                answered.append((call, how, data))
        worker.load_s = load_s if running else 0.0
        worker.begun = now
        if answered:
            shape.took(seconds)
            worker.clears_up = answered[-1][1] == wire.FILE
        if taken_back:
            worker.recalled = bool(running)
            shape.put_back(sorted(taken_back, key=lambda call: call.number))
        return found

    def retire(self, worker: WorkerHandle, *, doomed: bool = False) -> None:
        """Give the worker no more calls; `doomed` if it is to be killed, whatever it does."""
        worker.retiring = True
        worker.doomed = worker.doomed or doomed
        worker.shape.leave(worker)

    def stop(self, worker: WorkerHandle, call: PendingCall, now: float) -> Due:
        """Take back one of the worker's calls, or end the worker if the call has begun.

        A worker may be further than it has said. So that no other call is ended, one that has
        only just got to this is looked at again in a moment.
        """
        due = Due(now)
        head = next(iter(worker.running)) == call.number
        call.started = worker.begun if head else None
        if head and now - worker.begun > STUCK_S:
            self._kill(worker, due)
        elif len(worker.running) > 1:
            self._recall(worker, due)
        return due

    def gone(self, worker: WorkerHandle, ran: int) -> PendingCall | None:
        """Remove a worker that has ended; return the call that it was at and took with it.

        Calls that it had not begun are first in line again.
        """
        self.workers.pop(worker.number, None)
        lost = None if worker.doomed else worker.running.pop(ran, None)
        shape = worker.shape
        shape.leave(worker)
        shape.put_back(list(worker.running.values()))
        worker.running.clear()
        if shape.alone and not (shape.waiting or shape.workers or shape.asked or shape.asking):
            self._shapes = {key: one for key, one in self._shapes.items() if one is not shape}
            self._last = _NO_SHAPE
        if lost is not None:
            lost.started = worker.begun
        return lost

    def release_idle(self, is_meant: Callable[[Shape], bool]) -> Due:
        """Retire the idle workers of these shapes."""
        due = Due(0.0)
        for shape in filter(is_meant, self._shapes.values()):
            for worker in list(shape.idle):
                self._let_go(worker, due)
        return due

    def jobs_in_use(self) -> set[str]:
        """Return the jobs of workers that may be given calls, or have some, and those to come."""
        used = {one.job for one in self.workers.values() if one.running or one in one.shape.workers}
        return used.union(*(shape.asked for shape in self._shapes.values()))

    # ---- as time passes

    def due(self, now: float) -> Due:
        """Retire idle workers, and those whose call is stopped or over its time limit."""
        shapes = self.shapes()
        due = Due(now + _NO_ALARM_S, short=any(shape.waiting or shape.asked for shape in shapes))
        starving = [shape for shape in shapes if shape.starves(now)]
        for worker in list(self.workers.values()):
            shape = worker.shape
            if worker.running:
                if not worker.doomed:
                    self._check_running(worker, now, due)
            elif not worker.retiring and (
                shape.apart
                or (now - worker.since >= self.linger_s and not shape.group.keeps_idle)
                or any(one is not shape for one in starving)
            ):
                self._let_go(worker, due)
        if starving:
            self._make_room(starving[0], shapes, now, due)
        return due

    def _check_running(self, worker: WorkerHandle, now: float, due: Due) -> None:
        call = next(iter(worker.running.values()))
        ran_s = now - worker.begun
        if call.limit_s is not None:
            if ran_s >= call.limit_s:
                call.started = worker.begun
                due.late.append(call)
                self._kill(worker, due)
                return
            due.alarm = min(due.alarm, worker.begun + call.limit_s)
        if ran_s > STUCK_S and call.future.done():  # it was stopped, and the worker is at it now
            self._kill(worker, due)
        elif ran_s > STUCK_S and len(worker.running) > 1:
            self._recall(worker, due)

    def _make_room(self, starving: Shape, shapes: list[Shape], now: float, due: Due) -> None:
        """Give back the oldest worker of the shape that has most, if that is of any use."""
        others = [
            one for one in shapes if one.workers and starving.helped < starving.would_help(one)
        ]
        if others:
            shape = max(others, key=lambda one: len(one.workers))
            worker = min(shape.workers, key=lambda one: one.number)
            if now - worker.born > _TURN_S:
                starving.helped += 1
                self._let_go(worker, due)

    def _let_go(self, worker: WorkerHandle, due: Due) -> None:
        """Give the slot back once the worker has done what it was given."""
        self.retire(worker)
        if not worker.running:
            due.quit.append(worker)

    def _kill(self, worker: WorkerHandle, due: Due) -> None:
        self.retire(worker, doomed=True)
        due.kill.append(worker)

    def _recall(self, worker: WorkerHandle, due: Due) -> None:
        if not worker.recalled:
            worker.recalled = True
            due.recall.append(worker)
