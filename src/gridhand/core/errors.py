"""Every error that a caller may see.

    GridError
    ├── InvalidInput              an argument is not valid; nothing was changed
    │   ├── InvalidAmount
    │   ├── InvalidName
    │   ├── InvalidRequest
    │   ├── InvalidDependency     a job is to run after one that does not exist
    │   ├── OverLimit             more than a queue or a quota permits for one job
    │   ├── UnknownQueue
    │   └── StrategyFailed        a user's strategy raised, or its scores cannot be used
    ├── UnknownResource           no node has a resource of that name
    ├── UnknownNode
    ├── UnknownAllocation
    ├── UnknownJob
    ├── UnknownCall
    ├── UnknownFile               the folder of a job has no such file
    ├── UnknownToken
    ├── TokenRefused              a request over the network without a valid token
    ├── ScopeTooNarrow            the token may not be used for this
    ├── TooManyRequests           a token is used more often than the controller allows
    ├── NoRoom                    no node has room now; carries the Refusal that says why
    │   └── NeverFits             no node could ever hold it
    ├── NotAssigned               functions that fit on no node, with the reasons
    ├── GraphError                the functions of a graph do not fit together
    │   ├── DuplicateFunction
    │   ├── UnknownFunction
    │   ├── CircularDependency
    │   ├── CircularCollocation
    │   └── ImpossibleCollocation
    ├── FunctionFailed            a function of a graph failed in all its attempts
    ├── GraphTimeout              a graph took too long and was stopped
    ├── CallFailed                a call did not end by itself
    │   ├── CallTimeout           it ran longer than its time limit
    │   └── WorkerLost            its worker process is gone
    │       └── OutOfMemory       … because it used more memory than it asked for
    ├── HolderBusy                the holder already holds something else
    ├── NotYours                  it belongs to another owner
    ├── NodeElsewhere             a node of another machine, with something held on it
    ├── NodeSuperseded            a newer agent serves the node
    ├── NodeTaken                 a worker cannot serve a node of this name
    ├── WorkerUnknown             the worker of a node has to join again
    ├── NodeInUse                 a node cannot be removed while something is held on it
    ├── MoveRefused               an allocation cannot make that move from its state
    │   ├── ReservationExpired
    │   ├── LeaseExpired
    │   └── AllocationBusy        a job already runs in it
    ├── JobRefused                a job cannot make that move from its state
    ├── JobsFull                  too many jobs are queued or running
    ├── QueueNotAllowed           a named queue is not for this owner
    ├── QuotaExceeded             an owner or a queue has too much that waits
    │   └── QueueFull
    ├── JobsRunning               the operation would end jobs that are queued or running
    ├── ControllerUnavailable     no controller runs, or it does not answer
    ├── VersionMismatch           the controller has another version
    ├── OperationReused           the same op id came with another body
    ├── GridClosed                used after close, or in a forked child
    │   └── ControllerStopping    it decides nothing any more; the next controller can be asked
    └── StoreError
        ├── StoreUnavailable      nothing was written; the same operation may work later
        │   ├── OutcomeUnknown    … or it was written; repeating the operation tells
        │   ├── StoreFull         no space left; releasing still works
        │   └── StoreRemoved      its file was removed; `grid doctor --repair` writes it anew
        ├── StoreOwned            another process owns the store
        ├── StoreFenced           another process has taken the store over
        ├── StoreInvalid          not a store of ours, or of a newer version
        └── StoreDamaged          part of the store cannot be read; it is open for reading only

Programs compare `code`, which never changes. The message says what happened, and `hint` says what
to do next.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

if TYPE_CHECKING:
    from gridhand.core.explain.refusal import Refusal

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlong = 40
_MOST_REASONS = 3  # functions and nodes whose reasons a message has in full
_MOST_IDS = 20

Error = TypeVar("Error", bound=BaseException)


def short_repr(value: object) -> str:
    """Return the value as a message shows it: on one line and at most 100 characters long."""
    try:
        text = " ".join(_SHORT.repr(value).split())
    except Exception:  # an integer too long to print, or a repr that fails
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def _did_you_mean(nearest: str | None) -> str:
    return f"; did you mean {nearest}?" if nearest else ""


def _first_ids(ids: Sequence[str]) -> list[str]:
    return [*ids[:_MOST_IDS], *(["…"] if len(ids) > _MOST_IDS else [])]


class GridError(Exception):
    """The base of all our errors. `str()` says what happened, `hint` what to do next."""

    code: ClassVar[str] = "grid_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # nobody sets it
        """The lines that a traceback shows below the message."""
        hint = [f"hint: {self.hint}"] if getattr(self, "hint", "") else []
        return [*hint, *vars(self).get("_notes", ())]

    def add_note(self, note: str) -> None:
        if not isinstance(note, str):
            raise TypeError(f"a note must be a str, not {type(note).__name__}")
        vars(self).setdefault("_notes", []).append(note)

    def about(self, subject: str) -> Self:
        """Return the same error with the thing that it is about before its message."""
        again = copy(self)
        again.args = (f"{subject}: {self}",)
        return again

    def __reduce__(self) -> tuple[Callable[..., GridError], tuple[Any, ...]]:
        # Subclasses take other arguments than the message, so unpickling must not call __init__.
        return restored, (type(self), self.args, self.__dict__)


def restored(kind: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    """Rebuild an error from its parts, without its `__init__`."""
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError, such as a time-out, leaves them to __init__
    error.__dict__.update(state)
    return error


class InvalidInput(GridError):
    """An argument that is not valid. The message names the field and the value."""

    code = "invalid_input"

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {short_repr(value)} is not valid", hint=f"Use {allowed}.")
        self.field = field
        self.allowed = allowed


class InvalidAmount(InvalidInput):
    """An amount that cannot be read, or that no machine could have."""

    code = "invalid_amount"


class InvalidName(InvalidInput):
    """A name that is too long or contains characters that names may not have."""

    code = "invalid_name"


class InvalidRequest(InvalidInput):
    """Parts of a request that contradict each other."""

    code = "invalid_request"


class InvalidDependency(InvalidInput):
    """A submitted job names a job to run after that does not exist."""

    code = "invalid_dependency"

    def __init__(self, job: str, wanted: str) -> None:
        super().__init__("after", wanted, "the id of a job that was submitted before this one")
        self.args = (f"after: there is no job {short_repr(wanted)}",)
        self.job = job
        self.wanted = wanted


class OverLimit(InvalidInput):
    """One job asks for more than its queue, or a quota, ever permits."""

    code = "over_limit"

    def __init__(self, field: str, value: str, where: str, allowed: str) -> None:
        super().__init__(field, value, f"{allowed} in {where}")
        self.args = (f"{field}: {value} is more than {where} allows",)
        self.hint = f"{where[0].upper()}{where[1:]} allows {allowed}."
        self.value = value
        self.allowed = allowed


class UnknownQueue(InvalidInput):
    """The configuration has no queue of that name."""

    code = "unknown_queue"

    def __init__(self, name: str, nearest: str | None, allowed: Sequence[str]) -> None:
        names = ", ".join(allowed)
        super().__init__("queue", name, f"one of {names}" if names else "none: none is configured")
        self.args = (f"there is no queue {short_repr(name)}{_did_you_mean(nearest)}",)
        self.hint = _usable_queues(allowed)
        self.nearest = nearest


def _usable_queues(names: Sequence[str]) -> str:
    if not names:
        return "Leave the queue out: the configuration has none that you may use."
    return f"You may use {', '.join(names)}."


class StrategyFailed(InvalidInput):
    """A user's strategy raised an error or returned something other than a score for each node."""

    code = "strategy_failed"

    def __init__(self, strategy: str, what: str) -> None:
        super().__init__("strategy", strategy, "a function that returns a number for each row")
        self.args = (f"strategy: {short_repr(strategy)} {what}",)
        self.strategy = strategy


class UnknownResource(GridError):
    """No node has the resource. Raised at once, because waiting for it would never end."""

    code = "unknown_resource"

    def __init__(self, name: str, nearest: str | None, known: Iterable[str]) -> None:
        super().__init__(
            f"no node has a resource named {short_repr(name)}{_did_you_mean(nearest)}",
            hint=f"The nodes have: {', '.join(known)}.",
        )
        self.name = name
        self.nearest = nearest


class UnknownNode(GridError):
    """No node is registered under that name."""

    code = "unknown_node"

    def __init__(self, name: str, nearest: str | None = None) -> None:
        super().__init__(
            f"there is no node named {short_repr(name)}{_did_you_mean(nearest)}",
            hint="`grid list` shows the nodes, and `grid node register` adds one.",
        )
        self.name = name


class UnknownAllocation(GridError):
    """No allocation has that id, or it ended so long ago that its record was deleted."""

    code = "unknown_allocation"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no allocation {short_repr(id)}",
            hint="Use the id that allocate or reserve returned.",
        )
        self.id = id


class UnknownJob(GridError):
    """No job has that id, or it ended so long ago that its record was deleted."""

    code = "unknown_job"

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no job {short_repr(id)}", hint="`grid jobs --all` lists jobs.")
        self.id = id


class UnknownCall(GridError):
    """No call has that id, or it ended so long ago that its record was deleted."""

    code = "unknown_call"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no call {short_repr(id)}", hint="`grid calls --all` lists calls."
        )
        self.id = id


class UnknownFile(GridError):
    """The folder of a job has no file of that name."""

    code = "unknown_file"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"there is no file {short_repr(name)} in the folder of the job",
            hint="GET /api/v1/jobs/ID/files lists the files.",
        )
        self.name = name


class UnknownToken(GridError):
    """No token has that id, or it was revoked so long ago that its record was deleted."""

    code = "unknown_token"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no token {short_repr(id)}", hint="`grid token list` lists tokens."
        )
        self.id = id


class TokenRefused(GridError):
    """A request over the network needs a token that is valid."""

    code = "token_refused"

    def __init__(self, why: str) -> None:
        super().__init__(
            why,
            hint="Set $GRIDHAND_TOKEN, or $GRIDHAND_TOKEN_FILE; `grid token create` on the"
            " controller's machine makes a token.",
        )


class ScopeTooNarrow(GridError):
    """The token is valid, but may not be used for this."""

    code = "scope_too_narrow"

    def __init__(self, scope: str, needed: str) -> None:
        super().__init__(
            f"this needs a token with the scope {needed}; yours has {scope}",
            hint=f"`grid token create --scope {needed}` on the controller's machine makes one.",
        )
        self.scope = scope
        self.needed = needed


class TooManyRequests(GridError):
    """A token is used more often, or by more clients at once, than the controller allows."""

    code = "too_many_requests"

    def __init__(self, what: str, retry_after_s: int) -> None:
        super().__init__(
            f"too many {what} with this token", hint=f"Try again in {retry_after_s} s."
        )
        self.retry_after_s = retry_after_s


class NoRoom(GridError):
    """No permitted node has room now. `refusal` says for each node what is missing.

    A tracker of one's own raises it with a text, and then there is no `refusal`.
    """

    code = "no_room"

    def __init__(self, refusal: Refusal | str) -> None:
        if isinstance(refusal, str):
            super().__init__(refusal)
            self.refusal: Refusal | None = None
        else:
            super().__init__(refusal.sentence(), hint=refusal.hint())
            self.refusal = refusal


class NeverFits(NoRoom):
    """No node could hold it, even if it were empty. Raised at once."""

    code = "never_fits"


class NotAssigned(GridError):
    """Functions that fit on no node. `reasons` says for each, node by node, what is missing.

    Functions that must share a node are named together, and their costs are added up.
    """

    code = "not_assigned"

    def __init__(self, left: Mapping[tuple[str, ...], Mapping[str, Sequence[str]]]) -> None:
        groups = [f"{' with '.join(ids[:_MOST_IDS])}: {_by_node(why)}" for ids, why in left.items()]
        others = [id for ids in list(left)[_MOST_REASONS:] for id in ids]
        more = ", ".join(others[:_MOST_IDS])
        if len(others) > _MOST_IDS:
            more += f" and {len(others) - _MOST_IDS} more"
        unplaced = [*groups[:_MOST_REASONS], *([more] if more else [])]
        super().__init__(
            f"no room for {'; nor for '.join(unplaced)}",
            hint="Lower their cost, permit other nodes, or use larger ones; strict=False assigns"
            " them to a node without room."
            if any(left.values())
            else "Give at least one node.",
        )
        self.functions = [id for ids in left for id in ids]
        self.reasons = {
            id: {node: list(reasons) for node, reasons in why.items()}
            for ids, why in left.items()
            for id in ids
        }


def _by_node(reasons: Mapping[str, Sequence[str]]) -> str:
    """Return the first reason of each of a few nodes."""
    parts = [f"{node}: {why[0]}" for node, why in list(reasons.items())[:_MOST_REASONS]]
    if len(reasons) > _MOST_REASONS:
        parts.append("and other nodes")
    return "; ".join(parts) or "there are no nodes"


class GraphError(GridError):
    """The functions of a graph do not fit together."""

    code = "graph_error"


class DuplicateFunction(GraphError):
    """Two functions have the same id."""

    code = "duplicate_function"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"two functions have the id {short_repr(id)}", hint="Give every function its own id."
        )
        self.id = id


class UnknownFunction(GraphError):
    """A function refers to one that is not in the graph."""

    code = "unknown_function"

    def __init__(self, id: str, wanted_by: str, nearest: str | None = None) -> None:
        super().__init__(
            f"function {wanted_by} refers to {short_repr(id)}, which is not in the graph"
            f"{_did_you_mean(nearest)}",
            hint=f"Add {short_repr(id)}, or refer to a function of the graph.",
        )
        self.id = id
        self.wanted_by = wanted_by


class CircularDependency(GraphError):
    """Functions that need each other's results, so that none of them can be first."""

    code = "circular_dependency"

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(
            f"functions depend on each other in a circle: {' → '.join([*_first_ids(ids), ids[0]])}",
            hint=f"Remove {ids[0]} from the args of {ids[1 % len(ids)]}, or remove another link.",
        )
        self.ids = list(ids)
        self.edge = ids[0], ids[1 % len(ids)]


class CircularCollocation(GraphError):
    """Functions that are collocated with each other, so that none of them names a node."""

    code = "circular_collocation"

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(
            f"functions are collocated in a circle: {' → '.join([*_first_ids(ids), ids[0]])}",
            hint="Pin one of them to a node, or remove its collocation.",
        )
        self.ids = list(ids)


class ImpossibleCollocation(GraphError):
    """Functions that are to share a node, but cannot."""

    code = "impossible_collocation"

    def __init__(self, ids: Sequence[str], because: str) -> None:
        super().__init__(
            f"function {' with '.join(_first_ids(ids))}: {because}",
            hint="Remove one collocation, or pin the functions to a node that can hold them.",
        )
        self.ids = list(ids)


class FunctionFailed(GridError):
    """A function of a graph failed, so nothing that needs its result was started.

    `__cause__` is the exception that it raised, or the `CallFailed` that says how it ended.
    `attempts` counts every attempt, including those lost with a worker or a node.
    """

    code = "function_failed"

    def __init__(self, function: str, cause: BaseException, attempts: int = 1) -> None:
        times = f" after {attempts} attempts" if attempts > 1 else ""
        text = " ".join(str(cause).split())
        kind = type(cause).__name__
        what = f"{kind}: {text if len(text) <= 400 else text[:397] + '...'}" if text else kind
        super().__init__(
            f"function {function} failed{times}: {what}",
            hint="Fix the function, or give it more retries; __cause__ shows where it failed.",
        )
        self.function = function
        self.attempts = attempts
        self.__cause__ = cause


class GraphTimeout(GridError, TimeoutError):
    """A graph ran longer than its timeout. Its calls were stopped and its resources released."""

    code = "graph_timeout"

    def __init__(self, timeout_s: float, done: int, total: int, running: Sequence[str]) -> None:
        few = ", ".join(running[:_MOST_REASONS]) + (", …" if len(running) > _MOST_REASONS else "")
        super().__init__(
            f"the graph did not finish within {timeout_s:g} s: {done} of {total} functions done"
            + (f"; running or waiting: {few}" if few else ""),
            hint="Use a longer timeout, or check with `explain` that there is room for it.",
        )
        self.done = done
        self.running = list(running)


class CallFailed(GridError):
    """A call did not end by itself. `reason` is that of a job, such as `node_lost`.

    A call that was `lost` is not to blame, and may well succeed when it is repeated.
    """

    code = "call_failed"

    def __init__(self, name: str, reason: str, because: str, *, hint: str = "") -> None:
        super().__init__(
            f"{name or 'the call'}: {because}",
            hint=hint or "Try again; if it recurs, look at the node and at the worker's output.",
        )
        self.reason = reason

    @property
    def lost(self) -> bool:
        """Whether the worker, the node or a device was lost while the call ran."""
        return self.reason in _LOSSES


class CallTimeout(CallFailed):
    """A call ran longer than its time limit. Its worker was killed with it."""

    code = "call_timeout"

    def __init__(self, name: str, limit_s: float) -> None:
        super().__init__(
            name,
            "timeout",
            f"killed: time limit exceeded (limit {limit_s:g} s)",
            hint="Use a longer timeout, or split the work.",
        )
        self.limit_s = limit_s


class WorkerLost(CallFailed):
    """A worker died. Only the call that it was running fails; the others run elsewhere."""

    code = "worker_lost"

    def __init__(self, name: str, reason: str, because: str, *, hint: str = "") -> None:
        known = reason if reason in _LOSSES else "worker_lost"
        super().__init__(name, known, because, hint=hint)


class OutOfMemory(WorkerLost):
    """A worker was killed because it used more memory than the call had asked for."""

    code = "out_of_memory"

    def __init__(
        self, name: str, because: str, limit_bytes: int | None, peak_bytes: int | None
    ) -> None:
        super().__init__(
            name,
            "oom",
            because,
            hint="Ask for more memory, or split the work. A call needs memory for what it computes"
            " and for a copy of what it returns.",
        )
        self.reason = "oom"
        self.limit_bytes = limit_bytes
        self.peak_bytes = peak_bytes


_LOSSES = frozenset({"node_lost", "worker_lost", "agent_lost", "device_lost", "preempted"})


class HolderBusy(GridError):
    """A holder has one live allocation at a time, and has asked for different resources."""

    code = "holder_busy"

    def __init__(self, holder: str, id: str) -> None:
        super().__init__(
            f"holder {short_repr(holder)} already has allocation {id}, with other resources",
            hint=f"Release {id} first, or use another holder.",
        )
        self.holder = holder
        self.id = id


class NotYours(GridError):
    """Only its owner may confirm, renew or release an allocation, or cancel a job."""

    code = "not_yours"

    def __init__(self, id: str, owner: str, kind: str = "allocation") -> None:
        super().__init__(
            f"{kind} {id} does not belong to {short_repr(owner)}",
            hint="Ask its owner to do this.",
        )
        self.id = id


class NodeInUse(GridError):
    """A node cannot be removed while allocations are held on it."""

    code = "node_in_use"

    def __init__(self, name: str, live: int) -> None:
        super().__init__(
            f"node {name} has {live} live allocation{'' if live == 1 else 's'}",
            hint="Drain the node and wait for them to end, or use force: they are then lost.",
        )
        self.name = name


class NodeElsewhere(GridError):
    """A node belongs to another machine that shares the store, and something is held there."""

    code = "node_elsewhere"

    def __init__(self, name: str, machine: str) -> None:
        super().__init__(
            f"node {name} belongs to the machine {machine}, which is not connected, and something"
            " is held on it",
            hint="Start the controller on that machine. If it is gone for good, `grid node remove"
            f" --force {name}`: what is held there is then lost.",
        )
        self.name = name


class NodeSuperseded(GridError):
    """Another agent with a higher incarnation serves the node; this one must stop its jobs."""

    code = "node_superseded"

    def __init__(self, name: str, incarnation: int, current: int) -> None:
        super().__init__(
            f"node {name} is served by another agent: incarnation {current} came after or instead"
            f" of {incarnation}",
            hint="Stop all jobs that this agent has started. Only a restart of it, with a higher"
            " incarnation, may serve the node again.",
        )
        self.name = name
        self.incarnation = current


class NodeTaken(GridError):
    """A worker cannot serve a node of this name."""

    code = "node_taken"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"node {name} cannot be served by this worker: {why}",
            hint="Give the worker another --name, with a token for it, or another --folder. `grid"
            " node remove` removes a node that is not needed.",
        )
        self.name = name


class WorkerUnknown(GridError):
    """The worker of a node has to join: the controller was restarted, or another one has joined."""

    code = "worker_unknown"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the worker of node {name} has not joined this controller",
            hint="Join again, with all attempts that the worker knows.",
        )
        self.name = name


class MoveRefused(GridError):
    """An allocation cannot make this move from the state it is in."""

    code = "move_refused"
    next_step: ClassVar[str] = "Check its state; if it has ended, allocate again."

    def __init__(self, move: str, id: str, because: str) -> None:
        super().__init__(f"cannot {move} allocation {id}: {because}", hint=self.next_step)
        self.id = id


class ReservationExpired(MoveRefused):
    """A reservation that was not confirmed in time. It is never revived."""

    code = "reservation_expired"
    next_step = "Reserve again, with a longer ttl if confirming takes that long."


class AllocationBusy(MoveRefused):
    """A job runs in the allocation already. It takes one job at a time."""

    code = "allocation_busy"
    next_step = "Wait until that job has ended, or cancel it."


class LeaseExpired(MoveRefused):
    """A lease that was not renewed in time. It is never revived."""

    code = "lease_expired"
    next_step = "Allocate again, and renew the lease before its ttl is over."


class JobRefused(GridError):
    """A job cannot make this move from the state it is in."""

    code = "job_refused"

    def __init__(self, move: str, id: str, because: str) -> None:
        super().__init__(
            f"cannot {move} job {id}: {because}",
            hint=f"`grid show {id}` shows its state; submit it again if it has ended.",
        )
        self.id = id


class JobsFull(GridError):
    """Too many jobs are open. Open jobs are kept in memory, which is limited."""

    code = "jobs_full"

    def __init__(self, open_jobs: int, most: int) -> None:
        super().__init__(
            f"{open_jobs} jobs are queued or running; the limit is {most}",
            hint="Submit more when some have ended, or run several commands in one job.",
        )


class QueueNotAllowed(GridError):
    """The named queue is for other owners."""

    code = "queue_not_allowed"

    def __init__(self, queue: str, owner: str, allowed: Sequence[str]) -> None:
        super().__init__(f"queue {queue} is not open to {owner}", hint=_usable_queues(allowed))
        self.queue = queue
        self.owner = owner


class QuotaExceeded(GridError):
    """An owner or a named queue may have no more that waits. Nothing of it was submitted."""

    code = "quota_exceeded"

    def __init__(
        self, scope: str, what: str, used: int | str, asked: int | str, most: int | str
    ) -> None:
        super().__init__(
            f"quota: {scope} has {used} of {most} {what}; {asked} more were submitted",
            hint="Submit them when some of those have started or ended, or submit less.",
        )
        self.scope = scope
        self.what = what
        self.used = used
        self.asked = asked
        self.most = most


class QueueFull(QuotaExceeded):
    """A named queue has as many jobs waiting as it takes."""

    code = "queue_full"

    def __init__(self, queue: str, used: int, asked: int, most: int) -> None:
        super().__init__(f"queue {queue}", "queued jobs", used, asked, most)
        self.queue = queue


class JobsRunning(GridError):
    """Jobs are queued or running, and the operation would end them."""

    code = "jobs_running"

    def __init__(self, count: int) -> None:
        jobs = "1 job is" if count == 1 else f"{count} jobs are"
        super().__init__(
            f"{jobs} queued or running",
            hint="Wait for them, or choose: `grid stop --keep-jobs` lets them run on without a"
            " controller, `grid stop --kill-jobs` cancels them.",
        )
        self.count = count


class ControllerUnavailable(GridError):
    """No controller answers, and none could be started."""

    code = "controller_unavailable"


class VersionMismatch(GridError):
    """The controller has another version than its client."""

    code = "version_mismatch"

    def __init__(self, ours: str, theirs: str) -> None:
        super().__init__(
            f"the controller has version {theirs}, but this is version {ours}",
            hint="Run `grid stop --keep-jobs`: the next command starts a controller of this"
            " version, which adopts the running jobs.",
        )


class OperationReused(GridError):
    """An op id that was used before came with another body."""

    code = "operation_reused"

    def __init__(self, op_id: str) -> None:
        super().__init__(
            f"op id {short_repr(op_id)} was already used for another operation",
            hint="Use a new op id for each operation, and the same one only to repeat it.",
        )


class GridClosed(GridError):
    """The grid was closed, or it belongs to the process that this one was forked from."""

    code = "grid_closed"


class ControllerStopping(GridClosed):
    """The controller is being stopped and decides nothing any more; nothing was changed."""

    code = "controller_stopping"

    def __init__(self) -> None:
        super().__init__(
            "the controller is being stopped",
            hint="Try again: the next controller goes on where this one has stopped.",
        )


class StoreError(GridError):
    """The store, where the ledger is kept, failed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The change could not be written, so it was not made."""

    code = "store_unavailable"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"the store cannot be written: {cause if len(cause) <= 300 else cause[:297] + '...'}",
            hint="Nothing was changed. Fix the cause and try again.",
        )


class OutcomeUnknown(StoreUnavailable):
    """The store failed in the middle of a commit. It must be read again before it is used."""

    code = "store_outcome_unknown"

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.hint = (
            "The change may or may not have been written. Repeat the operation, with the same op id"
            " if it has one."
        )


class StoreFull(StoreUnavailable):
    """No space is left for new allocations. Releasing still works, from reserved space."""

    code = "store_full"


class StoreRemoved(StoreUnavailable):
    """The file of the store was removed or replaced while it was in use. Nothing is written."""

    code = "store_removed"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was removed or replaced")
        self.hint = (
            "Nothing was changed. Put the file back, or let the controller write its state anew"
            " with `grid doctor --repair`."
        )


class StoreOwned(StoreError):
    """Another process owns the store. One process at a time does."""

    code = "store_owned"

    def __init__(self, url: str, pid: int | None) -> None:
        super().__init__(
            f"{url} is owned by {f'process {pid}' if pid else 'another process'}",
            hint="Use Grid() to talk to its controller, wait= to wait for it, or take_over= if it"
            " hangs.",
        )
        self.pid = pid


class StoreFenced(StoreError):
    """Another process has taken the store over, so this one may not write to it."""

    code = "store_fenced"

    def __init__(self, epoch: int) -> None:
        super().__init__(
            f"another process has taken over the store (our epoch was {epoch})",
            hint="Open the store again when it is free.",
        )


class StoreInvalid(StoreError):
    """The store is not one of ours, has another version, or does not exist."""

    code = "store_invalid"


class StoreDamaged(StoreError):
    """Part of the store cannot be read. Nothing is written to it, so nothing gets worse."""

    code = "store_damaged"

    def __init__(self, url: str, damage: str) -> None:
        super().__init__(
            f"{url} is damaged: {damage}",
            hint="It is open for reading only; `grid check` says what can be read. Stop the"
            " controller with `grid stop --keep-jobs`, and put a backup in place of the store.",
        )


# Nothing was written when one of exactly these is raised. After other errors that is not known.
NOTHING_WRITTEN = (StoreUnavailable, StoreFull, StoreRemoved, StoreDamaged)
