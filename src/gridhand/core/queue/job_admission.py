"""Admission: the rules of a named queue, and quotas, applied to a job that is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gridhand.core.errors import (
    OverLimit,
    QueueFull,
    QueueNotAllowed,
    QuotaExceeded,
    UnknownQueue,
)
from gridhand.core.jobs.job import JobSpec, Priority
from gridhand.core.jobs.scopes import Scope, charged, most_charged, scopes_of
from gridhand.core.ledger.job_tallies import JobTallies
from gridhand.core.model.gpus import read_gpu_request
from gridhand.core.model.request_checks import DEVICE_NAMES
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources, amount_text, nearest_name
from gridhand.core.queue.named_queues import (
    DEFAULT_QUEUE,
    MOST_OPEN_OF_OWNER,
    Amounts,
    NamedQueues,
    QueueRules,
)

LeftOpen = frozenset[str]  # of "priority" and "cpu": what a submission leaves to its queue
NOTHING_LEFT_OPEN: LeftOpen = frozenset()

_RANKS = list(Priority)


def complete(
    work: JobSpec, queues: NamedQueues, left_open: LeftOpen = NOTHING_LEFT_OPEN
) -> JobSpec:
    """Return the job as its named queue completes it, or raise an error if it may not use that.

    1. A job without a queue goes to the queue named `default`, if there is one.
    2. The queue must exist and be open to the owner.
    3. The job has the queue's priority unless it names one, which must not be higher.
    4. Amounts that it does not name are the queue's defaults.

    A job within an allocation keeps its amounts, and goes to no queue that it does not name.
    """
    name = work.queue
    if name is None and work.within is None and DEFAULT_QUEUE in queues.queues:
        name = DEFAULT_QUEUE
    if name is None:
        return work
    rules = _find_queue(name, work.owner, queues)
    work = replace(work, queue=name, priority=_priority(work, rules, left_open))
    if work.within is not None or not rules.defaults:
        return work
    return replace(work, request=_with_defaults(work.request, rules.defaults, left_open))


def _find_queue(name: str, owner: str, queues: NamedQueues) -> QueueRules:
    rules, allowed = queues.rules_of(name), queues.open_to(owner)
    if rules is None:
        raise UnknownQueue(name, nearest_name(name, allowed), allowed)
    if not rules.admits(owner):
        raise QueueNotAllowed(name, owner, allowed)
    return rules


def _priority(work: JobSpec, rules: QueueRules, left_open: LeftOpen) -> Priority:
    highest = rules.priority
    if highest is None or "priority" in left_open:
        return highest or work.priority
    if _RANKS.index(work.priority) < _RANKS.index(highest):
        raise OverLimit("priority", work.priority, f"queue {rules.name}", f"at most {highest}")
    return work.priority


# ---- amounts


def _with_defaults(request: Request, defaults: Amounts, left_open: LeftOpen) -> Request:
    """Return the request with amounts that it does not name.

    Devices are added only if no alternative has any: otherwise it was meant to do without them.
    """
    plain = {name: parts for name, parts in defaults.items() if name not in (*DEVICE_NAMES, "cpu")}
    first, *others = (
        replace(choice, amounts=Resources({**plain, **choice.amounts.parts()}), alternatives=())
        for choice in request.choices()
    )
    if "cpu" in left_open and "cpu" in defaults:
        first = replace(first, amounts=Resources({**first.amounts.parts(), "cpu": defaults["cpu"]}))
    filled = replace(first, alternatives=tuple(others))
    if any(choice.gpu is not None for choice in filled.choices()):
        return filled
    return _with_devices(filled, defaults)


def _with_devices(request: Request, defaults: Amounts) -> Request:
    gpu = read_gpu_request(defaults.get("gpu", 0), defaults.get("gpu_memory", 0), None, None)
    others = tuple(replace(other, gpu=gpu) for other in request.alternatives)
    return replace(request, gpu=gpu, alternatives=others)


def within_limits(work: JobSpec, queues: NamedQueues) -> JobSpec:
    """Return the job without the alternatives that its queue and the quotas never let run.

    Raise OverLimit if nothing is left. A job within an allocation is not limited by them.
    """
    if work.within is not None:
        return work
    _check_gang(work, queues)
    choices = list(work.request.choices())
    errors = [_over_limit(choice, work, queues) for choice in choices]
    kept = [choice for choice, error in zip(choices, errors, strict=True) if error is None]
    if len(kept) == len(choices):
        return work
    if not kept:
        assert errors[0] is not None
        raise errors[0]
    request = replace(kept[0], alternatives=tuple(kept[1:]))
    after_ms = work.fallback_after_ms if request.alternatives else None
    return replace(work, request=request, fallback_after_ms=after_ms)


def _check_gang(work: JobSpec, queues: NamedQueues) -> None:
    """Raise OverLimit if a quota never lets so many jobs run at once."""
    for scope in scopes_of(work) if work.nodes is not None else ():
        most = queues.quota_of(scope).max_running_jobs
        if most is not None and work.nodes is not None and work.nodes > most:
            where = f"the quota of {scope}"
            raise OverLimit("nodes", str(work.nodes), where, f"at most {most} running jobs")


def _over_limit(choice: Request, work: JobSpec, queues: NamedQueues) -> OverLimit | None:
    """Return why a request alone is more than its queue or a quota permits, if it is."""
    for where, asked, most in _bounds(choice, work, queues):
        for name, parts in asked.items():
            if parts > most.get(name, parts):
                texts = amount_text(name, parts), amount_text(name, most[name])
                return OverLimit(name, texts[0], where, f"at most {texts[1]}")
    return None


def _bounds(
    choice: Request, work: JobSpec, queues: NamedQueues
) -> Iterator[tuple[str, Amounts, Amounts]]:
    """Yield who bounds one job, the amounts that count for it, and what is allowed."""
    rules = queues.rules_of(work.queue)
    if rules is not None and rules.limits:
        yield f"queue {rules.name}", choice.resources.parts(), rules.limits
    for scope in scopes_of(work):
        if running := queues.quota_of(scope).running:
            asked = {name: parts * (work.nodes or 1) for name, parts in charged(choice).items()}
            yield f"the quota of {scope}", asked, running


# ---- how much waits


def check_quotas(work: JobSpec, count: int, queues: NamedQueues, tallies: JobTallies) -> None:
    """Raise QuotaExceeded if `count` more jobs are too many for their owner or their queue.

    A new job counts as one that waits, even if there is room for it. One within an allocation
    waits for nothing.
    """
    owner = Scope(work.owner)
    if (there := tallies[owner].open) + count > MOST_OPEN_OF_OWNER:
        raise QuotaExceeded(str(owner), "open jobs", there, count, MOST_OPEN_OF_OWNER)
    if work.within is not None:
        return
    rules = queues.rules_of(work.queue)
    if rules is not None and rules.max_length is not None:
        _check_length(rules.name, count, rules.max_length, tallies)
    for scope in scopes_of(work):
        _check_quota(scope, work, count, queues, tallies)


def _check_length(queue: str, count: int, most: int, tallies: JobTallies) -> None:
    there = tallies[Scope(None, queue)].queued
    if there + count > most:
        raise QueueFull(queue, there, count, most)


def _check_quota(
    scope: Scope, work: JobSpec, count: int, queues: NamedQueues, tallies: JobTallies
) -> None:
    quota, tally = queues.quota_of(scope), tallies[scope]
    most = quota.max_queued_jobs
    if most is not None and tally.queued + count > most:
        raise QuotaExceeded(str(scope), "queued jobs", tally.queued, count, most)
    if not quota.queued:
        return
    for name, parts in most_charged(work.request).items():
        there, asked = tally.asked.get(name, 0), parts * count
        if there + asked > quota.queued.get(name, there + asked):
            texts = (amount_text(name, amount) for amount in (there, asked, quota.queued[name]))
            raise QuotaExceeded(str(scope), f"{name} of queued jobs", *texts)
