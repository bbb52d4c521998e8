"""Jobs, and that each holds what it was given and nothing more (I6).

A running job's attempt names what it holds, and what is held for a job names nobody: so both ways
are followed, from each running job to a live allocation, and from each live allocation of that
lifetime to one running job. Of a gang the attempt names one allocation, and its group is held.
Tasks of one array may share what they hold: they run one after the other, which their node sees to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gridhand.core.check.rows import Allocation, Reader, Violation, label, show

OPEN = ("queued", "running")
OVER = ("succeeded", "failed", "cancelled", "lost")
REASONS = (
    "exit", "signal", "oom", "timeout", "start_failed", "preempted", "returned", "node_lost",
    "agent_lost", "device_lost", "client_gone", "dependency", "released", "cancelled",
)  # fmt: skip
# Where each leads a job that is not tried again, unless it succeeded.
_LEADS_TO = {
    "node_lost": "lost", "agent_lost": "lost", "client_gone": "cancelled",
    "dependency": "cancelled", "released": "cancelled", "cancelled": "cancelled",
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    number: int
    node: str
    allocation: str
    choice: int
    placed: int
    stopping: str | None
    ended: int | None
    exit_code: int | None
    signal: int | None
    reason: str | None


@dataclass(frozen=True)
class Asked:
    """What one choice of a request asks of a node."""

    amounts: dict[str, int]
    devices: int


@dataclass(frozen=True)
class Job:
    """A job as its row tells. The row of an event may tell nothing of its work."""

    id: str
    number: int
    owner: str
    state: str
    array: str | None
    array_index: int | None
    submitted: int
    ended: int | None
    reason: str | None
    not_before: int | None
    attempts: tuple[Attempt, ...]
    choices: tuple[Asked, ...] | None
    pieces: int
    within: str | None  # what it runs in, where that was held before

    @property
    def attempt(self) -> Attempt | None:
        """The attempt under way."""
        return self.attempts[-1] if self.state == "running" and self.attempts else None


def read_job(
    row: object, place: str, found: list[Violation], *, with_work: bool = True
) -> Job | None:
    read = Reader(row, "I6", label(row, "id", place))
    attempts = tuple(_read_attempt(one, read) for one in read.items("attempts"))
    for one in read.items("after"):
        if not _is_after(one):
            read.note(f"after must be ids and conditions, not {show(one)}")
    choices, pieces, within = _read_work(row, read) if with_work else (None, 1, None)
    job = Job(
        id=read.text("id"),
        number=read.count("number"),
        owner=read.text("owner", empty=True),
        state=read.choice("state", *OPEN, *OVER),
        array=read.maybe_text("array"),
        array_index=read.maybe_count("array_index"),
        submitted=read.count("submitted"),
        ended=read.maybe_count("ended"),
        reason=_reason(read, "reason"),
        not_before=read.maybe_count("not_before"),
        attempts=attempts,
        choices=choices,
        pieces=pieces,
        within=within,
    )
    read.maybe_text("name")
    found += read.found
    return None if read.found else job


_NO_END = dict.fromkeys(
    ("started", "stopping", "ended", "exit_code", "signal", "reason", "peak_bytes")
)


def _read_attempt(row: object, of: Reader) -> Attempt:
    read = Reader({**_NO_END, **row} if isinstance(row, Mapping) else row, "I6", of.subject)
    attempt = Attempt(
        number=read.count("number"),
        node=read.text("node"),
        allocation=read.text("allocation"),
        choice=read.count("choice"),
        placed=read.count("placed"),
        stopping=_reason(read, "stopping"),
        ended=read.maybe_count("ended"),
        exit_code=read.maybe_count("exit_code"),
        signal=read.maybe_count("signal"),
        reason=_reason(read, "reason"),
    )
    read.maybe_count("started")
    read.maybe_count("peak_bytes")
    of.found += read.found
    return attempt


def _reason(read: Reader, name: str) -> str | None:
    def fits(value: object) -> bool:
        return value is None or (isinstance(value, str) and value in REASONS)

    reason: str | None = read.get(name, None, "a reason or null", fits)
    return reason


def _is_after(one: object) -> bool:
    pair = isinstance(one, list | tuple) and len(one) == 2
    return pair and all(isinstance(part, str) and part for part in one)  # type: ignore[attr-defined]


def _read_work(row: object, of: Reader) -> tuple[tuple[Asked, ...] | None, int, str | None]:
    """What the job asks for now, how many pieces it has, and what it runs in."""
    work = of.get("work", None, "a table", lambda value: isinstance(value, Mapping))
    if work is None or not isinstance(row, Mapping):
        return None, 1, None
    read = Reader({"within": None, **work}, "I6", of.subject)
    if read.text("owner", empty=True) != row.get("owner"):
        read.note(f"is of {show(row.get('owner'))}, but its work of {show(work.get('owner'))}")
    if (command := read.items("command")) and not all(isinstance(word, str) for word in command):
        read.note(f"command must be texts, not {show(command)}")
    pieces = read.count("pieces")
    request = row.get("request")
    choices = _read_choices(work.get("request") if request is None else request, read)
    within = read.maybe_text("within")
    of.found += read.found
    return choices, pieces, within


def _read_choices(row: object, of: Reader) -> tuple[Asked, ...]:
    read = Reader(
        {"alternatives": [], **row} if isinstance(row, Mapping) else row, "I6", of.subject
    )
    choices = [Asked(read.amounts("amounts", low=1), _devices(row, read))]
    for other in read.items("alternatives"):
        one = Reader(other, "I6", of.subject)
        choices.append(Asked(one.amounts("amounts", low=1), _devices(other, one)))
        read.found += one.found
    of.found += read.found
    return tuple(choices)


def _devices(row: object, of: Reader) -> int:
    """How many devices it asks for."""
    if not isinstance(row, Mapping) or row.get("gpu") is None:
        return 0
    read = Reader(row["gpu"], "I6", of.subject)
    devices = read.count("devices")
    of.found += read.found
    return devices


def check_ended_job(row: object) -> list[Violation]:
    """What is wrong with the row of a job that is over."""
    found: list[Violation] = []
    job = read_job(row, "a job", found)
    if job is None:
        return found
    if job.state not in OVER:
        found.append(Violation("I6", job.id, f"is {job.state}, though it is over"))
    return found + check_job(job)


def check_job(job: Job) -> list[Violation]:
    """What is wrong with one job by itself."""
    wrong = _wrong_name(job) + _wrong_state(job) + _wrong_attempts(job)
    return [Violation("I6", job.id, message) for message in wrong]


def _wrong_name(job: Job) -> list[str]:
    if (job.array is None) is not (job.array_index is None):
        return [f"is number {job.array_index} of the array {job.array}"]
    if job.array is None:
        return [] if job.id == str(job.number) else [f"has the number {job.number}"]
    wrong = []
    if job.id != f"{job.array}_{job.array_index}":
        wrong.append(f"is number {job.array_index} of the array {job.array}")
    first = int(job.array) if job.array.isascii() and job.array.isdecimal() else 0
    if not 1 <= first <= job.number:
        wrong.append(f"has the number {job.number}, but is of the array {job.array}")
    return wrong


def _wrong_state(job: Job) -> list[str]:
    wrong, over = [], job.state in OVER
    if (job.ended is not None) is not over:
        wrong.append(f"is {job.state}, and ended at {job.ended}")
    if (job.reason is not None) is not over:
        wrong.append(f"is {job.state}, for the reason {job.reason}")
    if job.not_before is not None and job.state != "queued":
        wrong.append(f"is {job.state}, and waits until {job.not_before}")
    if job.state == "running" and not job.attempts:
        wrong.append("is running without an attempt")
    last = job.attempts[-1] if job.attempts else None
    well = last is not None and (last.reason, last.exit_code) == ("exit", 0)
    if (job.state == "succeeded") is not (over and well):
        wrong.append(f"is {job.state}, but its last attempt {'did' if well else 'did not'} succeed")
    if over and not well and job.state != _LEADS_TO.get(job.reason or "", "failed"):
        wrong.append(f"is {job.state} for the reason {job.reason}")
    if over and last is not None and job.reason != last.reason and job.state != "cancelled":
        wrong.append(f"ended for {job.reason}, its last attempt for {last.reason}")
    return wrong


def _wrong_attempts(job: Job) -> list[str]:
    wrong = []
    numbers = [one.number for one in job.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        wrong.append(f"its attempts are numbered {show(numbers)}")
    under_way = [one.number for one in job.attempts if one.ended is None]
    expected = numbers[-1:] if job.state == "running" else []
    if under_way != expected:
        wrong.append(f"is {job.state}, and its attempts {show(under_way)} are under way")
    wrong += [
        f"its attempt {one.number} ended at {one.ended} for {one.reason}"
        for one in job.attempts
        if (one.reason is None) is not (one.ended is None)
    ]
    held = Counter(one.allocation for one in job.attempts)
    wrong += [f"{times} of its attempts held {id}" for id, times in held.items() if times > 1]
    return wrong


def check_jobs(jobs: Iterable[Job], allocations: Iterable[Allocation]) -> list[Violation]:
    """What is wrong between jobs and what is held, both ways."""
    live = {held.id: held for held in allocations if held.live}
    groups: dict[str, list[str]] = {}
    for held in live.values():
        if held.group is not None:
            groups.setdefault(held.group, []).append(held.id)
    found: list[Violation] = []
    whose: dict[str, Job] = {}
    for job in jobs:
        found += check_job(job)
        if (attempt := job.attempt) is None:
            continue
        held_now = live.get(attempt.allocation)
        found += _check_held(job, attempt, held_now)
        group = None if held_now is None or job.within is not None else held_now.group
        members = [attempt.allocation] if group is None else groups[group]
        if held_now is not None and len(members) != job.pieces:
            found.append(Violation("I6", job.id, f"of {job.pieces} pieces holds {len(members)}"))
        for id in members:
            if id in whose and not _in_one_line(job, whose[id]):
                found.append(Violation("I6", job.id, f"holds {id}, as does {whose[id].id}"))
            whose[id] = job
    unclaimed = (one for one in live.values() if one.lifetime == "job" and one.id not in whose)
    return found + [
        Violation("I6", one.id, "is held for a job that does not run") for one in unclaimed
    ]


def _in_one_line(one: Job, other: Job) -> bool:
    alone = one.pieces == other.pieces == 1
    return alone and one.array is not None and one.array == other.array


def _check_held(job: Job, attempt: Attempt, held: Allocation | None) -> list[Violation]:
    if held is None:
        return [Violation("I6", job.id, f"runs, but {attempt.allocation} is not held")]
    wrong = []
    if held.lifetime != "job" and held.id != job.within:
        wrong.append(f"holds {held.id}, whose lifetime is {held.lifetime}")
    if job.within not in (None, held.id):
        wrong.append(f"runs in {held.id}, and not in {job.within}")
    if held.node != attempt.node:
        wrong.append(f"runs on {attempt.node}, but {held.id} is on {held.node}")
    if held.owner != job.owner:
        wrong.append(f"is of {job.owner}, but {held.id} of {held.owner}")
    if job.choices is not None and attempt.choice >= len(job.choices):
        wrong.append(f"got choice {attempt.choice} of {len(job.choices)}")
    elif job.choices is not None:
        asked = job.choices[attempt.choice]
        if (asked.amounts, asked.devices) != (held.amounts, len(held.holds)):
            wrong.append(f"holds {held.id}, which is not what it asked for")
    return [Violation("I6", job.id, message) for message in wrong]
