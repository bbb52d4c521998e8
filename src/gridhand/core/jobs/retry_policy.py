"""RetryPolicy: whether a failed job is retried, when, and with which request.

Failures of the job and losses of its node are counted separately: a lost node must not use up the
retries meant for the job's own failures. Memory grows only after the job ran out of it, starting
from the measured peak: growing after every preemption would end in requests for a terabyte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gridhand.core.errors import InvalidInput
from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import MOST, Resources, nearest_name

MARGIN_BYTES = 100 * 2**20
MOST_TRIES = 1_000
DAY_MS = 86_400_000

# Losses of a node, an agent or a device, counted separately.
LOSSES = frozenset({Reason.NODE_LOST, Reason.AGENT_LOST, Reason.DEVICE_LOST})
# Neither losses nor these count as failures of the job.
_UNCOUNTED = LOSSES | {Reason.PREEMPTED, Reason.RETURNED, Reason.GANG}
# The job is not wanted any more, so it is never retried.
FINAL = frozenset(
    {
        Reason.CANCELLED,
        Reason.CLIENT_GONE,
        Reason.DEPENDENCY,
        Reason.RELEASED,
        Reason.DEADLINE,
        Reason.EXPIRED,
    }
)
# Not included: after a time-out it would time out again, after a lost agent it may have succeeded,
# and a job on a lost device ends unless its policy says otherwise.
USUAL = frozenset(
    {
        Reason.EXIT,
        Reason.SIGNAL,
        Reason.OOM,
        Reason.START_FAILED,
        Reason.NODE_LOST,
        Reason.PREEMPTED,
    }
)
_CAUSES = (
    frozenset(Reason) - FINAL - {Reason.RETURNED, Reason.GANG}
)  # the reasons a policy may name
_CODES = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a job is retried. By default only when its node is lost or it is preempted.

    `tries` counts attempts that failed by themselves, the first included. `losses` limits how
    often the job may lose its node, because a job that crashes every node must end some time.
    Preemptions are not counted. With `exit_codes`, exits and signals (128+n) are retried only for
    those codes.
    """

    tries: int = 1
    on: frozenset[Reason] = USUAL
    exit_codes: frozenset[int] = frozenset()
    losses: int = 5
    delay_ms: int = 1_000
    most_delay_ms: int = 300_000

    def __post_init__(self) -> None:
        _check_count("tries", self.tries, 1, MOST_TRIES)
        _check_count("losses", self.losses, 0, MOST_TRIES)
        _check_count("delay_ms", self.delay_ms, 0, DAY_MS)
        _check_count("most_delay_ms", self.most_delay_ms, 0, DAY_MS)
        if self.on & FINAL:
            raise InvalidInput("retry", ", ".join(sorted(self.on & FINAL)), _allowed())

    @classmethod
    def of(cls, retries: int = 0, on: str | Iterable[str] | None = None) -> RetryPolicy:
        """Read a policy as users write it, with causes such as `oom,node_lost,75,100-109`."""
        _check_count("retries", retries, 0, MOST_TRIES - 1)
        if on is None:
            return cls(tries=retries + 1)
        words = on.replace(",", " ").split() if isinstance(on, str) else list(on)
        causes: set[Reason] = set()
        codes: set[int] = set()
        for word in words:
            match = _CODES.fullmatch(word) if isinstance(word, str) else None
            if match:
                codes |= _read_codes(word, int(match[1]), int(match[2] or match[1]))
            else:
                causes.add(_read_cause(word))
        if codes:
            causes |= {Reason.EXIT, Reason.SIGNAL}
        return cls(tries=retries + 1, on=frozenset(causes), exit_codes=frozenset(codes))

    def covers(self, last: Attempt) -> bool:
        """Return whether the policy retries the reason that ended the attempt."""
        if last.reason is None or last.reason not in self.on or last.reason in FINAL:
            return False
        by_code = last.reason in (Reason.EXIT, Reason.SIGNAL)
        return not (by_code and self.exit_codes) or last.status in self.exit_codes

    def wait_ms(self, failed: int, jitter: float = 0.0) -> int:
        """Return the back-off after so many failures; it doubles each time, up to the maximum.

        `jitter`, from 0 to 1, takes off up to half, so that jobs do not all come back at once.
        """
        whole = min(self.most_delay_ms, self.delay_ms << min(failed - 1, 40))
        return whole - int(whole / 2 * min(max(jitter, 0.0), 1.0))


class Retry(NamedTuple):
    """The request of the next attempt, and the back-off before it."""

    request: Request
    wait_ms: int


def next_retry(
    policy: RetryPolicy,
    attempts: Sequence[Attempt],
    request: Request,
    *,
    most_bytes: int | None = None,
    jitter: float = 0.0,
) -> Retry | None:
    """Return the retry after a failed attempt, or None if it was the last.

    `most_bytes` is the memory of the largest node.
    """
    last = attempts[-1]
    if last.reason is Reason.RETURNED:
        return Retry(request, 0)
    if last.succeeded or not policy.covers(last):
        return None
    if last.reason is Reason.PREEMPTED:
        return Retry(request, 0)
    if last.reason in LOSSES:
        lost = sum(attempt.reason in LOSSES for attempt in attempts)
        return Retry(request, 0) if lost <= policy.losses else None
    failed = sum(attempt.reason not in _UNCOUNTED for attempt in attempts)
    if failed >= policy.tries:
        return None
    if last.reason is Reason.OOM:
        larger = with_more_memory(request, last, most_bytes)
        return None if larger is None else Retry(larger, policy.wait_ms(failed, jitter))
    return Retry(request, policy.wait_ms(failed, jitter))


def with_more_memory(request: Request, last: Attempt, most_bytes: int | None) -> Request | None:
    """Return the request with more memory, or None if no node has more.

    Only the choice that ran is changed: the use of a fallback says nothing about the others.
    """
    choices = list(request.choices())
    ran = choices[last.choice]
    had, peak = ran.amounts["memory"], last.peak_bytes or 0
    if not had and not peak:  # there is nothing to start from
        return request
    limit = MOST if most_bytes is None else most_bytes
    if limit <= max(had, peak):
        return None
    amounts = Resources({**ran.amounts.parts(), "memory": min(limit, enough(had, peak))})
    choices[last.choice] = replace(ran, amounts=amounts)
    return replace(choices[0], alternatives=tuple(choices[1:]))


def enough(had: int, peak: int) -> int:
    """Return the memory to request after `had` bytes were too few and `peak` were used."""
    margin = peak + MARGIN_BYTES if peak else 0
    return max(margin, _fifth_more(peak), _fifth_more(had))


def _fifth_more(amount: int) -> int:
    return (amount * 6 + 4) // 5


def _read_codes(word: str, first: int, last: int) -> set[int]:
    if not 1 <= first <= last <= 255:
        raise InvalidInput("retry", word, "exit codes from 1 to 255, the lower one first")
    return set(range(first, last + 1))


def _read_cause(word: object) -> Reason:
    if isinstance(word, str) and word in _CAUSES:
        return Reason(word)
    close = nearest_name(word, _CAUSES) if isinstance(word, str) else None
    meant = f" (did you mean {close}?)" if close else ""
    raise InvalidInput("retry", word, f"{_allowed()}{meant}")


def _allowed() -> str:
    names = ", ".join(reason for reason in Reason if reason in _CAUSES)
    return f"any of {names}, or exit codes such as 75 or 100-109"


def _check_count(field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most}")


ONLY_LOSSES = RetryPolicy()
