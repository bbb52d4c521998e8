"""Every error a caller may see.

    GridError
    ├── InvalidInput            what was given cannot be read; nothing was changed
    │   ├── InvalidAmount
    │   ├── InvalidName
    │   ├── InvalidRequest
    │   └── InvalidDependency   a job to run after one that is not there
    ├── UnknownResource         no node has a resource of that name
    ├── UnknownNode
    ├── UnknownAllocation
    ├── UnknownJob
    ├── UnknownCall
    ├── NoRoom                  not now; carries the Refusal that says why
    │   └── NeverFits           not ever, on the nodes there are
    ├── NotAssigned             functions that fit on no node, with the reasons
    ├── GraphError              functions that do not go together
    │   ├── DuplicateFunction
    │   ├── UnknownFunction
    │   ├── CircularDependency
    │   ├── CircularCollocation
    │   └── ImpossibleCollocation
    ├── FunctionFailed          a function of a graph, after all its tries
    ├── GraphTimeout            a graph that took too long, and was stopped
    ├── CallFailed              a call that did not end by itself
    │   ├── CallTimeout         it took longer than it was given
    │   └── WorkerLost          the process that ran it is gone
    │       └── OutOfMemory     … because it needed more memory than it had asked for
    ├── HolderBusy              the holder has something else already
    ├── NotYours                another owner's
    ├── NodeInUse               it cannot be removed while something is held on it
    ├── MoveRefused             an allocation cannot go from its state to that one
    │   ├── ReservationExpired
    │   ├── LeaseExpired
    │   └── AllocationBusy      a job runs in it already
    ├── JobRefused              a job cannot go from its state to that one
    ├── JobsFull                so many are open that no more are taken
    ├── JobsRunning             what was asked would take jobs from under their owners
    ├── ControllerUnavailable   none runs, or it does not answer
    ├── VersionMismatch         the controller is of another version
    ├── OperationReused         the same op id came with another body
    ├── GridClosed              used after close, or in a forked child
    └── StoreError
        ├── StoreUnavailable    not written; the same call may work later
        │   ├── OutcomeUnknown  … or written, and not told; the same call will tell
        │   └── StoreFull       no space; what gives something back still works
        ├── StoreOwned          another process has it
        ├── StoreFenced         another process took it over
        ├── StoreInvalid        not ours, or newer than this version
        └── StoreDamaged        part of it cannot be read; nothing more is written to it

`code` is what programs compare: it never changes.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

if TYPE_CHECKING:
    from gridhand.core.refusals import Refusal

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlong = 40


Error = TypeVar("Error", bound=BaseException)


def shown(value: object) -> str:
    """The value as it may appear in a message: short, on one line, whatever was given."""
    try:
        text = " ".join(_SHORT.repr(value).split())
    except Exception:  # an integer too long to print, a repr that fails
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


class GridError(Exception):
    """`str()` says what happened, `hint` what to do next, `code` never changes."""

    code: ClassVar[str] = "grid_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # nobody sets it
        """What a traceback shows below the message."""
        hint = [f"hint: {self.hint}"] if getattr(self, "hint", "") else []
        return [*hint, *vars(self).get("_notes", ())]

    def add_note(self, note: str) -> None:
        if not isinstance(note, str):
            raise TypeError(f"a note is a text, not a {type(note).__name__}")
        vars(self).setdefault("_notes", []).append(note)

    def about(self, what: str) -> Self:
        """The same error, saying which of several things it is about."""
        again = copy(self)
        again.args = (f"{what}: {self}",)
        return again

    def __reduce__(self) -> tuple[Callable[..., GridError], tuple[Any, ...]]:
        # Subclasses take other arguments than the message, so unpickling must not call __init__.
        return restored, (type(self), self.args, self.__dict__)


def restored(kind: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    """An error made of its parts, and not by its `__init__`."""
    error = kind.__new__(kind, *args)
    error.args = args  # which an OSError, such as a time-out, leaves to __init__
    error.__dict__.update(state)
    return error


class InvalidInput(GridError):
    """Names the field, the value and what is allowed."""

    code = "invalid_input"

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {shown(value)} is not allowed", hint=f"Give {allowed}.")
        self.field = field
        self.allowed = allowed


class InvalidAmount(InvalidInput):
    """An amount that cannot be read, or that no machine could have."""

    code = "invalid_amount"


class InvalidName(InvalidInput):
    """A name with characters, or of a length, that names do not have."""

    code = "invalid_name"


class InvalidRequest(InvalidInput):
    """Parts of a request that do not go together."""

    code = "invalid_request"


class InvalidDependency(InvalidInput):
    """Raised at submission: a job can only run after one that was submitted before it."""

    code = "invalid_dependency"

    def __init__(self, job: str, wanted: str) -> None:
        super().__init__("after", wanted, "the ids of jobs that were submitted before")
        self.args = (f"there is no job {shown(wanted)} to run after",)
        self.job = job
        self.wanted = wanted


class UnknownResource(GridError):
    """Raised at once: waiting for a resource that no node has would be for ever."""

    code = "unknown_resource"

    def __init__(self, name: str, nearest: str | None, known: Iterable[str]) -> None:
        meant = f"; did you mean {nearest}?" if nearest else ""
        super().__init__(
            f"no node has a resource named {shown(name)}{meant}",
            hint=f"The nodes have: {', '.join(known)}.",
        )
        self.name = name
        self.nearest = nearest


class UnknownNode(GridError):
    """Nothing is registered under that name."""

    code = "unknown_node"

    def __init__(self, name: str, nearest: str | None = None) -> None:
        meant = f"; did you mean {nearest}?" if nearest else ""
        super().__init__(
            f"there is no node named {shown(name)}{meant}",
            hint="Register it first, or see which nodes there are.",
        )
        self.name = name


class UnknownAllocation(GridError):
    """No allocation has that id, or it is so old that it has been forgotten."""

    code = "unknown_allocation"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no allocation {shown(id)}",
            hint="Give the id that allocate or reserve answered.",
        )
        self.id = id


class UnknownJob(GridError):
    """No job has that id, or it is so old that it has been forgotten."""

    code = "unknown_job"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no job {shown(id)}",
            hint="Give the id that was told at submission; `grid jobs` lists them.",
        )
        self.id = id


class UnknownCall(GridError):
    """No call has that id, or it is so old that it has been forgotten."""

    code = "unknown_call"

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no call {shown(id)}", hint="`grid calls` lists them.")
        self.id = id


class NoRoom(GridError):
    """No permitted node has room now. `refusal` says, node by node, what is missing."""

    code = "no_room"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence(), hint=refusal.hint())
        self.refusal = refusal


class NeverFits(NoRoom):
    """Raised at once: no node there is could hold it even if it were empty."""

    code = "never_fits"


class NotAssigned(GridError):
    """Raised when functions fit on no node. `reasons` says of each, node by node, what is missing.

    Functions that must go together are named together, and their costs counted together.
    """

    code = "not_assigned"

    def __init__(self, left: Mapping[tuple[str, ...], Mapping[str, Sequence[str]]]) -> None:
        told = [f"{' with '.join(ids[:_NAMED])}: {_by_node(why)}" for ids, why in left.items()]
        others = [id for ids in list(left)[_TOLD:] for id in ids]
        more = "".join(f", {id}" for id in others[:_NAMED])
        if len(others) > _NAMED:
            more += f" and {len(others) - _NAMED} more"
        super().__init__(
            f"no room for {'; nor for '.join(told[:_TOLD])}{more and f'; nor for {more[2:]}'}",
            hint="Ask for less, permit other nodes, or give larger ones; strict=False puts them"
            " on a node all the same."
            if any(left.values())
            else "Give at least one node.",
        )
        self.functions = [id for ids in left for id in ids]
        self.reasons = {
            id: {node: list(found) for node, found in why.items()}
            for ids, why in left.items()
            for id in ids
        }


def _by_node(reasons: Mapping[str, Sequence[str]]) -> str:
    """The first thing that each of a few nodes is short of."""
    shown = [f"{node}: {found[0]}" for node, found in list(reasons.items())[:_TOLD]]
    if len(reasons) > _TOLD:
        shown.append("and other nodes")
    return "; ".join(shown) or "there are no nodes"


_TOLD = 3
_NAMED = 20


class GraphError(GridError):
    """The functions were not looked at one by one: together they make no sense."""

    code = "graph_error"


class DuplicateFunction(GraphError):
    """An id stands for one function."""

    code = "duplicate_function"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there are two functions with the id {shown(id)}",
            hint="Give every function an id of its own.",
        )
        self.id = id


class UnknownFunction(GraphError):
    """A function refers to one that is not among those given."""

    code = "unknown_function"

    def __init__(self, id: str, wanted_by: str, nearest: str | None = None) -> None:
        meant = f"; did you mean {nearest}?" if nearest else ""
        super().__init__(
            f"function {wanted_by} refers to {shown(id)}, which is not there{meant}",
            hint="Add that function, or refer to one that is there.",
        )
        self.id = id
        self.wanted_by = wanted_by


class CircularDependency(GraphError):
    """Each of them needs the result of the one before it, so none of them can be first."""

    code = "circular_dependency"

    def __init__(self, ids: Sequence[str]) -> None:
        few = [*ids[:_NAMED], *(["…"] if len(ids) > _NAMED else []), ids[0]]
        super().__init__(
            f"functions need each other in a circle: {' → '.join(few)}",
            hint=f"Take {ids[0]} out of the args of {ids[1 % len(ids)]}, or another link.",
        )
        self.ids = list(ids)
        self.edge = ids[0], ids[1 % len(ids)]


class CircularCollocation(GraphError):
    """Each of them is to go where the next one goes, so none of them says where."""

    code = "circular_collocation"

    def __init__(self, ids: Sequence[str]) -> None:
        few = [*ids[:_NAMED], *(["…"] if len(ids) > _NAMED else []), ids[0]]
        super().__init__(
            f"functions are collocated in a circle: {' → '.join(few)}",
            hint="Pin one of them to a node, or leave it free.",
        )
        self.ids = list(ids)


class ImpossibleCollocation(GraphError):
    """Functions that are to share a node, and cannot."""

    code = "impossible_collocation"

    def __init__(self, ids: Sequence[str], because: str) -> None:
        few = [*ids[:_NAMED], *(["…"] if len(ids) > _NAMED else [])]
        super().__init__(
            f"function {' with '.join(few)}: {because}",
            hint="Leave one of them free, or pin it to a node that can have it.",
        )
        self.ids = list(ids)


class FunctionFailed(GridError):
    """A function of a graph failed, and nothing that needs it was started.

    `__cause__` is what it raised, or the `CallFailed` that says what became of it. `attempts`
    counts every try, also those that were lost with a worker or a node.
    """

    code = "function_failed"

    def __init__(self, function: str, cause: BaseException, attempts: int = 1) -> None:
        times = f" after {attempts} attempts" if attempts > 1 else ""
        said = " ".join(str(cause).split())
        kind = type(cause).__name__
        what = f"{kind}: {said if len(said) <= 400 else said[:397] + '...'}" if said else kind
        super().__init__(
            f"function {function} failed{times}: {what}",
            hint="Mend the function, or give it more retries; __cause__ has where it happened.",
        )
        self.function = function
        self.attempts = attempts
        self.__cause__ = cause


class GraphTimeout(GridError, TimeoutError):
    """The time given for a graph is over. What ran was stopped, and what was held given back."""

    code = "graph_timeout"

    def __init__(self, timeout_s: float, done: int, total: int, running: Sequence[str]) -> None:
        few = ", ".join(running[:_TOLD]) + (", …" if len(running) > _TOLD else "")
        super().__init__(
            f"the graph was not done within {timeout_s:g} s: {done} of {total} functions were"
            + (f", and {few} running or waiting for room" if few else ""),
            hint="Give it more time, or see with `explain` whether there is room for it.",
        )
        self.done = done
        self.running = list(running)


class CallFailed(GridError):
    """A call did not end by itself. `reason` is one of those that end jobs, such as `node_lost`.

    One that was `lost` may well succeed when it is tried again elsewhere; it had no part in it.
    """

    code = "call_failed"

    def __init__(self, name: str, reason: str, because: str, *, hint: str = "") -> None:
        super().__init__(
            f"{name or 'the call'}: {because}",
            hint=hint or "Try it again; look at its node and its worker's output if it recurs.",
        )
        self.reason = reason

    @property
    def lost(self) -> bool:
        """Whether what ran it went away under it."""
        return self.reason in _LOSSES


class CallTimeout(CallFailed):
    """Its worker was ended with it."""

    code = "call_timeout"

    def __init__(self, name: str, limit_s: float) -> None:
        super().__init__(
            name,
            "timeout",
            f"it took longer than its limit of {limit_s:g} s and was ended",
            hint="Give it a longer timeout, or less to do.",
        )
        self.limit_s = limit_s


class WorkerLost(CallFailed):
    """Only the call that it was running has failed; those that waited there run elsewhere."""

    code = "worker_lost"

    def __init__(self, name: str, reason: str, because: str, *, hint: str = "") -> None:
        known = reason if reason in _LOSSES else "worker_lost"
        super().__init__(name, known, because, hint=hint)


class OutOfMemory(WorkerLost):
    """The worker was ended: it used more memory than the call had asked for."""

    code = "out_of_memory"

    def __init__(
        self, name: str, because: str, limit_bytes: int | None, peak_bytes: int | None
    ) -> None:
        super().__init__(
            name,
            "oom",
            because,
            hint="Ask for more memory, or do it in parts. It needs room for what it makes and for"
            " what it returns, at once.",
        )
        self.reason = "oom"
        self.limit_bytes = limit_bytes
        self.peak_bytes = peak_bytes


_LOSSES = frozenset({"node_lost", "worker_lost", "agent_lost", "device_lost", "preempted"})


class HolderBusy(GridError):
    """A holder has one live allocation at a time, and this one asked for something else."""

    code = "holder_busy"

    def __init__(self, holder: str, id: str) -> None:
        super().__init__(
            f"{shown(holder)} already holds allocation {id}, which is for something else",
            hint=f"Release {id} first, or ask under another holder.",
        )
        self.holder = holder
        self.id = id


class NotYours(GridError):
    """Only its owner may confirm, renew or release an allocation, or cancel a job."""

    code = "not_yours"

    def __init__(self, id: str, owner: str, kind: str = "allocation") -> None:
        super().__init__(
            f"{kind} {id} does not belong to {shown(owner)}",
            hint="Ask its owner, or act as them.",
        )
        self.id = id


class NodeInUse(GridError):
    """Removing it would take resources from under those who hold them."""

    code = "node_in_use"

    def __init__(self, name: str, live: int) -> None:
        things = "1 live allocation" if live == 1 else f"{live} live allocations"
        super().__init__(
            f"node {name} has {things}",
            hint="Drain it and wait, or force: what is held there is then lost.",
        )
        self.name = name


class MoveRefused(GridError):
    """An allocation cannot make this move from the state it is in."""

    code = "move_refused"

    def __init__(self, move: str, id: str, because: str) -> None:
        super().__init__(f"cannot {move} allocation {id}: {because}", hint=self._next())
        self.id = id

    def _next(self) -> str:
        return "Look at its state, and allocate anew if it has ended."


class ReservationExpired(MoveRefused):
    """The reservation was not confirmed in time. It is never revived."""

    code = "reservation_expired"

    def _next(self) -> str:
        return "Reserve again, with a longer ttl if confirming takes that long."


class AllocationBusy(MoveRefused):
    """A job runs in it, and only one does at a time."""

    code = "allocation_busy"

    def _next(self) -> str:
        return "Wait until that job has ended, or cancel it."


class LeaseExpired(MoveRefused):
    """The lease was not renewed in time. It is never revived."""

    code = "lease_expired"

    def _next(self) -> str:
        return "Allocate again, and renew before the ttl is over."


class JobRefused(GridError):
    """A job cannot make this move from the state it is in."""

    code = "job_refused"

    def __init__(self, move: str, id: str, because: str) -> None:
        super().__init__(
            f"cannot {move} job {id}: {because}",
            hint="Look at its state, and submit it anew if it has ended.",
        )
        self.id = id


class JobsFull(GridError):
    """Raised at submission: what waits is in memory, and that has an end."""

    code = "jobs_full"

    def __init__(self, open_jobs: int, most: int) -> None:
        super().__init__(
            f"{open_jobs} jobs are queued or running, and at most {most} may be",
            hint="Submit more when some have ended, or run several commands in one job.",
        )


class JobsRunning(GridError):
    """Raised instead of ending something that jobs depend on."""

    code = "jobs_running"

    def __init__(self, count: int) -> None:
        jobs = "1 job is" if count == 1 else f"{count} jobs are"
        super().__init__(
            f"{jobs} queued or running",
            hint="Wait for them, or say what shall become of them: `grid stop --keep-jobs` lets"
            " them go on without a controller, `grid stop --kill-jobs` cancels them.",
        )
        self.count = count


class ControllerUnavailable(GridError):
    """There is no controller to ask, and none could be started."""

    code = "controller_unavailable"


class VersionMismatch(GridError):
    """The controller is of another version than the one who asks."""

    code = "version_mismatch"

    def __init__(self, ours: str, theirs: str) -> None:
        super().__init__(
            f"the controller is version {theirs}, and this is version {ours}",
            hint="Run `grid stop --keep-jobs` with this version: the next command starts a new"
            " controller, and running jobs are adopted.",
        )


class OperationReused(GridError):
    """An op id stands for one call; sent with another body it is a mistake of the caller."""

    code = "operation_reused"

    def __init__(self, op_id: str) -> None:
        super().__init__(
            f"op id {shown(op_id)} was used for another call",
            hint="Make a new op id for every call, and repeat it only to repeat that call.",
        )


class GridClosed(GridError):
    """The grid was closed, or belongs to the process this one was forked from."""

    code = "grid_closed"


class StoreError(GridError):
    """Something about the place where the ledger is kept."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The change could not be written, so it was not made."""

    code = "store_unavailable"

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"the store cannot be written: {cause if len(cause) <= 300 else cause[:297] + '...'}",
            hint="Nothing was changed. Mend the cause and try again.",
        )


class OutcomeUnknown(StoreUnavailable):
    """The store went away in the middle of a commit. It must be read again before it is used."""

    code = "store_outcome_unknown"

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.hint = (
            "It may have been written or not: repeat the call, with its op id if it has one."
        )


class StoreFull(StoreUnavailable):
    """There is no space left for new allocations. Releasing still works, from a reserve."""

    code = "store_full"


class StoreOwned(StoreError):
    """One process at a time owns a store."""

    code = "store_owned"

    def __init__(self, url: str, pid: int | None) -> None:
        by = f"process {pid}" if pid else "another process"
        super().__init__(
            f"{url} is owned by {by}",
            hint="Use Grid() to talk to its controller, wait= for it, or take_over= if it hangs.",
        )
        self.pid = pid


class StoreFenced(StoreError):
    """Another process has taken the store over; this one may not write any more."""

    code = "store_fenced"

    def __init__(self, epoch: int) -> None:
        super().__init__(
            f"the store was taken over by another process (this one's epoch was {epoch})",
            hint="Open the store again, if it is free.",
        )


class StoreInvalid(StoreError):
    """The store is not one of ours, is of another version, or is not there."""

    code = "store_invalid"


class StoreDamaged(StoreError):
    """What can still be read is shown; nothing is written, so that nothing gets worse."""

    code = "store_damaged"

    def __init__(self, url: str, damage: str) -> None:
        super().__init__(
            f"{url} is damaged: {damage}",
            hint="It is open for reading only. Restore a backup, or copy what can be read.",
        )
