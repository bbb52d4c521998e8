"""The body of a submission, read strictly and turned into the core's `JobSpec`."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gridhand.api.schemas.ledger import RequestRow, Strict, Written
from gridhand.core.errors import InvalidInput
from gridhand.core.jobs.job import After, Condition, JobSpec, Priority
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import MOST_NODES
from gridhand.core.model.job_arrays import read_array
from gridhand.core.model.names import JobId
from gridhand.core.model.requests import Request, Tie

_Seconds = Annotated[float, Field(gt=0, le=10 * 366 * 86_400, allow_inf_nan=False)]
_Name = Annotated[str, Field(max_length=200)]


def _path(text: str) -> str:
    """Check a path without a pattern: that would refuse names of files that are not UTF-8."""
    if not text.startswith("/") or len(text) > 4096:
        raise ValueError("a path that begins with /, of at most 4096 characters")
    return text


_Path = Annotated[str, AfterValidator(_path)]


class AfterJob(Strict):
    id: str = Field(pattern=r"^[0-9]+(_[0-9]+)?$", max_length=40)
    condition: str = "afterok"


class Submission(Strict):
    """One command to run, or an array of them."""

    command: list[str] = Field(min_length=1, max_length=100_000)
    folder: _Path | None = None
    upload: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None  # instead of a folder
    environment: dict[str, str] = Field(default_factory=dict, max_length=100_000)
    request: Written = Field(default_factory=dict)
    request_row: RequestRow | None = None  # exact amounts instead, from our own library
    anywhere: bool = False  # it needs nothing of its folder, so other machines will do, too
    default_cpu: bool = False  # it has one core because nobody said otherwise
    name: _Name | None = None
    priority: _Name | None = None  # that of its queue, else medium
    task_type: _Name | None = None
    time_limit_s: _Seconds | None = None
    grace_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 10.0
    detached: bool = False
    retries: Annotated[int, Field(ge=0, le=999)] = 0
    retry_on: list[_Name] | None = Field(default=None, max_length=300)
    processes: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    within: _Name | None = None  # an allocation to run in, instead of a request
    queue: _Name | None = None
    expect_s: _Seconds | None = None  # for planning alone
    begin_s: _Seconds | None = None  # it starts so long after its submission, or later
    deadline_s: _Seconds | None = None  # it must have ended so long after its submission
    fallback_after_s: _Seconds | None = None  # its alternatives count after it has waited so long
    warn_signal: Annotated[int, Field(ge=1, le=64)] | None = None
    warn_s: _Seconds | None = None  # it gets that signal so long before its time limit
    stdin: _Path | None = None
    stdout: _Path | None = None
    stderr: _Path | None = None
    array: Annotated[str, Field(max_length=100_000)] | None = None
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] | None = None  # a gang: one process on each
    after: list[AfterJob] = Field(default_factory=list, max_length=10_000)

    def indices(self) -> tuple[tuple[int, ...], int | None]:
        """Return the indices of an array's tasks or a gang's ranks, and how many run at once."""
        if self.nodes is not None:
            if self.array is not None:
                raise InvalidInput("nodes", self.nodes, "nothing beside array")
            return tuple(range(self.nodes)), None
        if self.array is None:
            return (), None
        array = read_array(self.array)
        return tuple(array.indices), array.at_once

    def dependencies(self) -> tuple[After, ...]:
        return tuple(After(JobId(job.id), _condition(job.condition)) for job in self.after)

    def left_open(self) -> frozenset[str]:
        """Return which of its settings the named queue decides, as this does not."""
        named = not self.default_cpu if self.request_row is not None else _names_cpu(self.request)
        settings = {"priority": self.priority is not None, "cpu": named}
        return frozenset(name for name, given in settings.items() if not given)

    def _asked(self) -> Request:
        if self.within is not None:
            if self.request or self.request_row is not None:
                both = self.request or self.request_row
                raise InvalidInput("request", both, "nothing beside within: it has the allocation")
            return Request.of(cpu=1)  # until the allocation is looked up
        if self.request_row is None:
            return read_request(self.request)
        if self.request:
            raise InvalidInput("request", "beside request_row", "one of the two")
        return self.request_row.request()

    def _placed(self) -> Request:
        """Keep a job where its folder is, unless it says itself where it may go."""
        asked = self._asked()
        if self.folder is None or self.anywhere or asked.names_nodes:
            return asked
        return asked if asked.tied_to is not None else asked.tied(Tie.FOLDER)

    def work(self, owner: str, environment: str) -> JobSpec:
        """Return the job to submit; `environment` is the key of its stored environment."""
        _, at_once = self.indices()
        for field in ("folder", "stdin", "stdout", "stderr"):
            _check_encodable(field, getattr(self, field))
        _check_encodable("command", *self.command)
        return JobSpec(
            owner=owner,
            command=tuple(self.command),
            folder=self.folder or "/",  # until it is made
            request=self._placed(),
            name=self.name,
            priority=Priority.read(self.priority or "medium"),
            task_type=self.task_type,
            time_limit_ms=_ms(self.time_limit_s),
            grace_ms=round(self.grace_s * 1000),
            detached=self.detached,
            retry=RetryPolicy.of(self.retries, self.retry_on),
            at_once=at_once,
            environment=environment,
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            processes=self.processes,
            within=self.within,
            queue=self.queue,
            expect_ms=_ms(self.expect_s),
            begin_ms=_ms(self.begin_s),
            deadline_ms=_ms(self.deadline_s),
            fallback_after_ms=_ms(self.fallback_after_s),
            warn_signal=self.warn_signal,
            warn_ms=_ms(self.warn_s),
            nodes=self.nodes,
        )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def _condition(word: str) -> Condition:
    if word not in list(Condition):
        raise InvalidInput("after", word, f"one of {', '.join(Condition)}")
    return Condition(word)


def check_environment(variables: dict[str, str]) -> None:
    """Raise `InvalidInput` for variables that a process cannot have."""
    for name, text in variables.items():
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise InvalidInput("environment", name, "names without =, and no zero bytes")
        _check_encodable("environment", name, text)


def _check_encodable(field: str, *words: str | None) -> None:
    """Refuse text that the system cannot take: a surrogate that does not stand for a byte."""
    for word in words:
        try:
            os.fsencode(word or "")
        except UnicodeEncodeError as error:
            raise InvalidInput(field, word, "text, or the bytes of a file name") from error


def _names_cpu(request: dict[str, Any]) -> bool:
    resources = request.get("resources")
    return "cpu" in request or (isinstance(resources, dict) and "cpu" in resources)


def read_request(given: dict[str, Any]) -> Request:
    """Read a request as people write it. It asks for one core unless it says otherwise."""
    fields = {"cpu": 1, **given}
    resources = fields.pop("resources", None)
    if resources is not None and not isinstance(resources, dict):
        raise InvalidInput("resources", resources, 'an object such as {"fpga": 1}')
    for name, amount in (resources or {}).items():
        if name in _WISHES:
            raise InvalidInput("resources", name, "names of resources")
        fields[name] = amount
    try:
        return Request.of(**fields)
    except TypeError as error:
        raise InvalidInput("request", sorted(fields), "what `grid run --help` lists") from error


_WISHES = frozenset(
    {"node", "prefer", "exclude", "labels", "quality", "alternatives", "fallback", "strategy"}
)
