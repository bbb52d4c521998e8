"""The messages that an agent sends to a controller.

`AttemptReport` has one encoder, used by the agent, and one decoder, used by the engine. An older
agent may leave fields out and a newer one may add some, so the decoder takes what it knows.

The clocks of machines differ, so a message says how long ago something was, never when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NotRequired, TypedDict

from gridhand.core.model.names import AllocationId, JobId
from gridhand.posix.boot_clock import boot_ms

Key = tuple[JobId, int]  # a job and the number of its attempt


@dataclass(slots=True)
class EndReport:
    """How an attempt ended, with all its processes. `reason` is a word of `Reason`."""

    reason: str
    message: str = ""
    code: int | None = None
    signal: int | None = None
    peak_bytes: int | None = None
    ran_ms: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stopping: str | None = None  # the reason for which it was being stopped
    # When, on the boot clock of this machine.
    at_boot_ms: int = field(default_factory=boot_ms, compare=False)

    @property
    def ago_ms(self) -> int:
        return boot_ms() - self.at_boot_ms

    def encode(self) -> dict[str, Any]:
        encoded = {name: getattr(self, name) for name in _END}
        return encoded | {"ago_ms": self.ago_ms}

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> EndReport:
        at_boot_ms = boot_ms() - (raw.get("ago_ms") or 0)
        return cls(**{name: raw[name] for name in _END if name in raw}, at_boot_ms=at_boot_ms)


@dataclass(slots=True)
class AttemptReport:
    """The state of one attempt: running, ended, or refused (it was not started, and may be)."""

    job: JobId
    attempt: int
    fence: AllocationId | None
    state: str = "ended"
    pid: int | None = None
    begun_ms: int | None = None  # on the node's wall clock
    ran_ms: int | None = None  # so far
    stopping: str | None = None
    message: str | None = None  # why it is refused
    end: EndReport | None = None

    @property
    def key(self) -> Key:
        return self.job, self.attempt

    def encode(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        encoded: dict[str, Any] = {name: getattr(self, name) for name in _ALWAYS}
        for name in _IF_SET:
            if (value := getattr(self, name)) is not None:
                encoded[name] = value
        if self.end is not None:
            encoded["end"] = self.end.encode()
        return encoded

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> AttemptReport:
        """Return the report that an agent, of this or another version, has encoded."""
        fence = raw.get("fence")
        report = cls(
            JobId(str(raw["job"])),
            int(raw["attempt"]),
            None if fence is None else AllocationId(str(fence)),
            raw["state"],
        )
        for name in _OPTIONAL:
            setattr(report, name, raw.get(name))
        if (end := raw.get("end")) is not None:
            report.end = EndReport.decode(end)
        return report


_END = tuple(one.name for one in fields(EndReport) if one.name != "at_boot_ms")
_ALWAYS = ("job", "attempt", "fence", "state", "pid", "begun_ms")
_IF_SET = ("ran_ms", "stopping", "message")
_OPTIONAL = ("pid", "begun_ms", *_IF_SET)


class ProblemReport(TypedDict):
    """Something wrong with a node, how to mend it, and the GPU that it is about, if any."""

    message: str
    hint: str
    device: str


class JobUsage(TypedDict):
    """The use by all processes of a running job: `cpu` in cores, since the previous sample."""

    attempt: int
    cpu: float
    memory_bytes: int
    peak_bytes: int
    cpu_seconds: NotRequired[float]  # since its start
    processes: NotRequired[int]


class NodeLoad(TypedDict, total=False):
    """The load of a whole node; what cannot be measured is left out.

    CPU is in cores, rates are in bytes per second, and `load` has the averages of 1, 5 and 15
    minutes.
    """

    cpu: float
    memory_bytes: int
    processes: int
    load: list[float]
    disk_bytes: int
    disk_total_bytes: int
    disk_read_per_s: int
    disk_written_per_s: int
    network_received_per_s: int
    network_sent_per_s: int


class ProcessLoad(TypedDict):
    """The use by one process, and whose it is."""

    pid: int
    name: str
    user: str
    cpu: float
    memory_bytes: int


class Share(TypedDict):
    """The part of a node's load that our jobs and daemons cause."""

    cpu: float
    memory_bytes: int


class OthersLoad(TypedDict):
    """The part of a node's load that everything else causes, and the largest of it.

    `machine_cpu` and `machine_bytes` are what there is to use: the node may be a part of it.
    """

    cpu: float
    memory_bytes: int
    machine_cpu: float
    machine_bytes: int
    processes: list[ProcessLoad]


class GpuProcess(TypedDict):
    """A process on a device; `job` is the one that it belongs to, if it is ours."""

    pid: int
    name: str
    user: str
    job: JobId | None
    memory_bytes: int | None


class GpuLoad(TypedDict):
    """The load of a device; None for what it cannot tell."""

    utilization: float | None  # percent
    memory_bytes: int
    temperature_c: float | None
    power_w: float | None
    processes: list[GpuProcess]


class AttemptsEvent(TypedDict):
    """Attempts that have begun after waiting for their turn, or that have ended."""

    event: Literal["begun", "ended"]
    attempts: list[dict[str, Any]]  # encoded reports


class UsageEvent(TypedDict):
    """A measurement over the last `over_ms`.

    `own` and `others` divide the load of the node; a virtual node has no others. `foreign` is the
    GPU memory that processes of others use, by device.
    """

    event: Literal["usage"]
    node: NodeLoad
    jobs: dict[JobId, JobUsage]
    foreign: dict[str, int]
    over_ms: NotRequired[int]
    own: NotRequired[Share]
    others: NotRequired[OthersLoad]
    gpus: NotRequired[dict[str, GpuLoad]]


class NodeEvent(TypedDict):
    """The node as it is found now: its row, and what is wrong with it."""

    event: Literal["node"]
    node: dict[str, Any]
    problems: list[ProblemReport]


AgentEvent = AttemptsEvent | UsageEvent | NodeEvent


class AgentGreeting(TypedDict):
    """The answer to `hello`."""

    version: str
    protocol: int
    pid: int
    start: int | None
    boot_id: str
    epoch: int
    mark: str
    node: dict[str, Any]
    cpus: list[int]
    problems: list[ProblemReport]
    enforced: dict[str, str]
    foreign: NotRequired[dict[str, int]]
