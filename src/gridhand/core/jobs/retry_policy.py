"""Retries: whether a job that did not succeed is tried again, when, and with what.

What the job did and what was done to it are counted apart: a lost node must not use up the tries
that are there for the job's own failures. Only what ran out is asked for more of, from what was
measured; blind growth after preemptions has ended in requests for a terabyte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gridhand.core.attempts import Attempt, Reason
from gridhand.core.errors import InvalidInput
from gridhand.core.requests import Request
from gridhand.core.resources import MOST, Resources, nearest_name

MARGIN_BYTES = 100 * 2**20
MOST_TRIES = 1_000
DAY_MS = 86_400_000

# Of what a node, a device or whatever stands on a node did to the job; counted apart.
LOSSES = frozenset({Reason.NODE_LOST, Reason.AGENT_LOST, Reason.DEVICE_LOST})
# Others came first; neither is anybody's failure.
_UNCOUNTED = LOSSES | {Reason.PREEMPTED, Reason.RETURNED}
# Nobody wants it to run any more.
FINAL = frozenset({Reason.CANCELLED, Reason.CLIENT_GONE, Reason.DEPENDENCY, Reason.RELEASED})
# Left out: after a time-out it would time out again, after a lost agent it may have succeeded,
# and jobs on a lost device end, unless they say otherwise.
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
_CAUSES = frozenset(Reason) - FINAL - {Reason.RETURNED}  # what a policy may name
_CODES = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a job is tried again. The default: only when its node is lost or it is preempted.

    `tries` counts the job's own, the first included; `losses` how often it may lose its node,
    because a job that brings down every node it gets must come to an end. Preemptions are not
    counted. With `exit_codes`, exits and signals (128+n) are retried for those alone.
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
        """As people write it: how often again, and for what: `oom,node_lost,75,100-109`."""
        _check_count("retries", retries, 0, MOST_TRIES - 1)
        if on is None:
            return cls(tries=retries + 1)
        words = on.replace(",", " ").split() if isinstance(on, str) else list(on)
        causes: set[Reason] = set()
        codes: set[int] = set()
        for word in words:
            found = _CODES.fullmatch(word) if isinstance(word, str) else None
            if found:
                codes |= _codes(word, int(found[1]), int(found[2] or found[1]))
            else:
                causes.add(_cause(word))
        if codes:
            causes |= {Reason.EXIT, Reason.SIGNAL}
        return cls(tries=retries + 1, on=frozenset(causes), exit_codes=frozenset(codes))

    def covers(self, last: Attempt) -> bool:
        """Whether what ended the attempt is among what is retried."""
        if last.reason is None or last.reason not in self.on or last.reason in FINAL:
            return False
        by_code = last.reason in (Reason.EXIT, Reason.SIGNAL)
        return not (by_code and self.exit_codes) or last.status in self.exit_codes

    def wait_ms(self, failed: int, jitter: float = 0.0) -> int:
        """How long to wait after so many failures: twice as long each time, up to the most.

        `jitter`, from 0 to 1, takes up to half off, so that many do not come back together.
        """
        whole = min(self.most_delay_ms, self.delay_ms << min(failed - 1, 40))
        return whole - int(whole / 2 * min(max(jitter, 0.0), 1.0))


class Again(NamedTuple):
    """A job is to be tried again: with this request, after so long."""

    request: Request
    wait_ms: int


def again(
    policy: RetryPolicy,
    attempts: Sequence[Attempt],
    request: Request,
    *,
    most: Resources | None = None,
    jitter: float = 0.0,
) -> Again | None:
    """What follows an attempt that did not succeed: another, or None if it was the last.

    `most` is the memory and gpu_memory that the largest permitted node and device have.
    """
    last = attempts[-1]
    if last.reason is Reason.RETURNED:
        return Again(request, 0)
    if last.succeeded or not policy.covers(last):
        return None
    if last.reason is Reason.PREEMPTED:
        return Again(request, 0)
    if last.reason in LOSSES:
        lost = sum(one.reason in LOSSES for one in attempts)
        return Again(request, 0) if lost <= policy.losses else None
    failed = sum(one.reason not in _UNCOUNTED for one in attempts)
    if failed >= policy.tries:
        return None
    wanted = with_more(request, last, most) if last.reason is Reason.OOM else request
    return None if wanted is None else Again(wanted, policy.wait_ms(failed, jitter))


def with_more(request: Request, last: Attempt, most: Resources | None = None) -> Request | None:
    """The request with more of what ran out, or None if no node has more of it.

    Only the choice that ran is changed: what a fallback used says nothing about the others.
    """
    choices = list(request.choices())
    ran = choices[last.choice]
    on_device = last.short_of == "gpu_memory"
    if on_device and ran.gpu is None:
        return request
    had = (ran.gpu.memory_bytes or 0) if on_device and ran.gpu else ran.amounts["memory"]
    peak = (last.gpu_peak_bytes if on_device else last.peak_bytes) or 0
    if not had and not peak:  # nothing is known to start from
        return request
    limit = MOST if most is None else most["gpu_memory" if on_device else "memory"]
    if limit <= max(had, peak):
        return None
    if on_device and ran.gpu is not None and ran.gpu.exclusive:
        return request  # a whole device is whole: only a larger one helps, and that may come
    needed = min(limit, enough(had, peak))
    if on_device and ran.gpu is not None:
        choices[last.choice] = replace(ran, gpu=ran.gpu.scaled(needed))
    else:
        amounts = Resources({**ran.amounts.parts(), "memory": needed})
        choices[last.choice] = replace(ran, amounts=amounts)
    others = tuple(choices[1:])
    return replace(choices[0], alternatives=others)


def enough(had: int, peak: int) -> int:
    """How much to ask for after `had` bytes were too few and `peak` were used."""
    margin = peak + MARGIN_BYTES if peak else 0
    return max(margin, _fifth_more(peak), _fifth_more(had))


def _fifth_more(amount: int) -> int:
    return (amount * 6 + 4) // 5


def _codes(word: str, first: int, last: int) -> set[int]:
    if not 1 <= first <= last <= 255:
        raise InvalidInput("retry", word, "exit codes from 1 to 255, the lower one first")
    return set(range(first, last + 1))


def _cause(word: object) -> Reason:
    if isinstance(word, str) and word in _CAUSES:
        return Reason(word)
    close = nearest_name(word, _CAUSES) if isinstance(word, str) else None
    meant = f" (did you mean {close}?)" if close else ""
    raise InvalidInput("retry", word, f"{_allowed()}{meant}")


def _allowed() -> str:
    names = ", ".join(one for one in Reason if one in _CAUSES)
    return f"any of {names}, or exit codes such as 75 or 100-109"


def _check_count(field: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, value, f"a whole number from {least} to {most}")


ONLY_LOSSES = RetryPolicy()
