"""Checks jobs, and that each running job holds exactly its allocation (I6).

The attempt of a running job names its allocation, but an allocation does not name its job. So both
directions are checked: each running job has a live allocation, and each live allocation with the
lifetime `job` has a running job. Tasks of one array may share an allocation: their node runs them
one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gridhand.audit.gangs import check_gangs
from gridhand.audit.rows import AuditedAllocation, Reader, Violation, label, show

OPEN = ("queued", "running")
OVER = ("succeeded", "failed", "cancelled", "lost")
REASONS = (
    "exit", "signal", "oom", "timeout", "start_failed", "preempted", "returned", "node_lost",
    "agent_lost", "device_lost", "gang", "client_gone", "dependency", "released", "deadline",
    "expired", "cancelled",
)  # fmt: skip
# The final state for each reason; any other reason leads to `failed`.
_LEADS_TO = {
    "node_lost": "lost", "agent_lost": "lost", "client_gone": "cancelled",
    "dependency": "cancelled", "released": "cancelled", "deadline": "cancelled",
    "expired": "cancelled", "cancelled": "cancelled", "gang": "cancelled",
}  # fmt: skip


@dataclass(frozen=True)
class AuditedAttempt:
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
class AuditedRequest:
    """The amounts and number of devices of one choice of a request."""

    amounts: dict[str, int]
    devices: int


@dataclass(frozen=True)
class AuditedJob:
    """The row of a job. The row of an event may lack its work."""

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
    attempts: tuple[AuditedAttempt, ...]
    choices: tuple[AuditedRequest, ...] | None
    within: str | None  # the allocation it must run in, if it was submitted with one
    nodes: int | None = None  # of its gang

    @property
    def attempt(self) -> AuditedAttempt | None:
        """The running attempt, if any."""
        return self.attempts[-1] if self.state == "running" and self.attempts else None


def read_job(
    row: object, place: str, found: list[Violation], *, with_work: bool = True
) -> AuditedJob | None:
    read = Reader(row, "I6", label(row, "id", place))
    attempts = tuple(_read_attempt(attempt, read) for attempt in read.items("attempts"))
    for after in read.items("after"):
        if not _is_after(after):
            read.note(f"after must be ids and conditions, not {show(after)}")
    choices, within = _read_work(row, read) if with_work else (None, None)
    work = row.get("work") if isinstance(row, Mapping) else None
    nodes = work.get("nodes") if isinstance(work, Mapping) else None
    if nodes is not None and (type(nodes) is not int or nodes < 1):
        read.note(f"nodes must be a whole number of at least 1, not {show(nodes)}")
    job = AuditedJob(
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
        within=within,
        nodes=nodes,
    )
    read.maybe_text("name")
    found += read.found
    return None if read.found else job


_NO_END = dict.fromkeys(
    ("started", "stopping", "ended", "exit_code", "signal", "reason", "peak_bytes")
)


def _read_attempt(row: object, of: Reader) -> AuditedAttempt:
    read = Reader({**_NO_END, **row} if isinstance(row, Mapping) else row, "I6", of.subject)
    attempt = AuditedAttempt(
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


def _is_after(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(isinstance(part, str) and part for part in value)


def _read_work(row: object, of: Reader) -> tuple[tuple[AuditedRequest, ...] | None, str | None]:
    """Return the choices of the current request, and the allocation the job must run in."""
    work = of.get("work", None, "a table", lambda value: isinstance(value, Mapping))
    if work is None or not isinstance(row, Mapping):
        return None, None
    read = Reader({"within": None, **work}, "I6", of.subject)
    if read.text("owner", empty=True) != row.get("owner"):
        read.note(f"belongs to {show(row.get('owner'))}, but its work to {show(work.get('owner'))}")
    if (command := read.items("command")) and not all(isinstance(word, str) for word in command):
        read.note(f"command must be texts, not {show(command)}")
    request = row.get("request")
    choices = _read_choices(work.get("request") if request is None else request, read)
    within = read.maybe_text("within")
    of.found += read.found
    return choices, within


def _read_choices(row: object, of: Reader) -> tuple[AuditedRequest, ...]:
    read = Reader(
        {"alternatives": [], **row} if isinstance(row, Mapping) else row, "I6", of.subject
    )
    choices = [AuditedRequest(read.amounts("amounts", low=1), _devices(row, read))]
    for other in read.items("alternatives"):
        reader = Reader(other, "I6", of.subject)
        choices.append(AuditedRequest(reader.amounts("amounts", low=1), _devices(other, reader)))
        read.found += reader.found
    of.found += read.found
    return tuple(choices)


def _devices(row: object, of: Reader) -> int:
    """Return the number of devices a request asks for."""
    if not isinstance(row, Mapping) or row.get("gpu") is None:
        return 0
    read = Reader(row["gpu"], "I6", of.subject)
    devices = read.count("devices")
    of.found += read.found
    return devices


def check_ended_job(row: object) -> list[Violation]:
    """Return the violations in the row of an ended job."""
    found: list[Violation] = []
    job = read_job(row, "a job", found)
    if job is None:
        return found
    if job.state not in OVER:
        found.append(Violation("I6", job.id, f"is {job.state}, but is stored as ended"))
    return found + check_job(job)


def check_job(job: AuditedJob) -> list[Violation]:
    """Return the violations in one job, without its allocation."""
    wrong = _wrong_name(job) + _wrong_state(job) + _wrong_attempts(job)
    return [Violation("I6", job.id, message) for message in wrong]


def _wrong_name(job: AuditedJob) -> list[str]:
    if (job.array is None) is not (job.array_index is None):
        return [f"is number {job.array_index} of the array {job.array}"]
    if job.array is None:
        return [] if job.id == str(job.number) else [f"has the number {job.number}"]
    wrong = []
    if job.id != f"{job.array}_{job.array_index}":
        wrong.append(f"is number {job.array_index} of the array {job.array}")
    first = int(job.array) if job.array.isascii() and job.array.isdecimal() else 0
    if not 1 <= first <= job.number:
        wrong.append(f"has the number {job.number}, but belongs to the array {job.array}")
    return wrong


def _wrong_state(job: AuditedJob) -> list[str]:
    wrong, over = [], job.state in OVER
    if (job.ended is not None) is not over:
        wrong.append(f"is {job.state}, but ended at {job.ended}")
    if (job.reason is not None) is not over:
        wrong.append(f"is {job.state}, for the reason {job.reason}")
    if job.not_before is not None and job.state != "queued":
        wrong.append(f"is {job.state}, but waits until {job.not_before}")
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


def _wrong_attempts(job: AuditedJob) -> list[str]:
    wrong = []
    numbers = [attempt.number for attempt in job.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        wrong.append(f"its attempts are numbered {show(numbers)}")
    running = [attempt.number for attempt in job.attempts if attempt.ended is None]
    expected = numbers[-1:] if job.state == "running" else []
    if running != expected:
        wrong.append(f"is {job.state}, but its attempts {show(running)} are running")
    wrong += [
        f"its attempt {attempt.number} ended at {attempt.ended} for {attempt.reason}"
        for attempt in job.attempts
        if (attempt.reason is None) is not (attempt.ended is None)
    ]
    held = Counter(attempt.allocation for attempt in job.attempts)
    wrong += [f"{times} of its attempts held {id}" for id, times in held.items() if times > 1]
    return wrong


def check_jobs(
    jobs: Iterable[AuditedJob], allocations: Iterable[AuditedAllocation]
) -> list[Violation]:
    """Return the violations in jobs and between jobs and allocations, in both directions."""
    live = {held.id: held for held in allocations if held.live}
    found: list[Violation] = []
    users: dict[str, AuditedJob] = {}
    jobs = list(jobs)
    found += check_gangs(jobs)
    for job in jobs:
        found += check_job(job)
        if (attempt := job.attempt) is None:
            continue
        id = attempt.allocation
        found += _check_held(job, attempt, live.get(id))
        if id in users and not _share_an_array(job, users[id]):
            found.append(Violation("I6", job.id, f"holds {id}, as does {users[id].id}"))
        users[id] = job
    unused = (held for held in live.values() if held.lifetime == "job" and held.id not in users)
    return found + [
        Violation("I6", held.id, "is held for a job that does not run") for held in unused
    ]


def _share_an_array(job: AuditedJob, other: AuditedJob) -> bool:
    return job.array is not None and job.array == other.array


def _check_held(
    job: AuditedJob, attempt: AuditedAttempt, held: AuditedAllocation | None
) -> list[Violation]:
    if held is None:
        return [Violation("I6", job.id, f"runs, but {attempt.allocation} is not held")]
    wrong = []
    if held.lifetime != "job" and held.id != job.within:
        wrong.append(f"holds {held.id}, whose lifetime is {held.lifetime}")
    if job.within not in (None, held.id):
        wrong.append(f"runs in {held.id} instead of {job.within}")
    if held.group is not None and job.within is None:
        wrong.append(f"holds {held.id}, which belongs to the group {held.group}")
    if held.node != attempt.node:
        wrong.append(f"runs on {attempt.node}, but {held.id} is on {held.node}")
    if held.owner != job.owner:
        wrong.append(f"belongs to {job.owner}, but {held.id} to {held.owner}")
    if job.choices is not None and attempt.choice >= len(job.choices):
        wrong.append(f"got choice {attempt.choice} of {len(job.choices)}")
    elif job.choices is not None:
        asked = job.choices[attempt.choice]
        if (asked.amounts, asked.devices) != (held.amounts, len(held.holds)):
            wrong.append(f"holds {held.id}, which is not what it asked for")
    return [Violation("I6", job.id, message) for message in wrong]
