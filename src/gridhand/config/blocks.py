"""The blocks of `cluster_config.yaml`, one model for each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gridhand.config.fields import (
    Amounts,
    AnySeconds,
    Block,
    Cores,
    Count,
    Gigabytes,
    LabelText,
    Memory,
    NodeText,
    Percent,
    Port,
    Price,
    Seconds,
)

Priority = Literal["urgent", "high", "medium", "low"]
Reclaim = Literal["pause", "vacate", "keep"]
QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]
OwnerName = Annotated[str, Field(min_length=1, max_length=200)]


class NodeBlock(Block):
    """A machine: how it is reached, what it has, and whether it lends what it does not use."""

    name: NodeText
    host: Annotated[str, Field(min_length=1, max_length=253)] = "localhost"
    port: Port = 22
    user: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    ssh_key_path: Annotated[str, Field(min_length=1)] | None = None
    tags: tuple[LabelText, ...] = ()
    labels: dict[LabelText, LabelText] = Field(default_factory=dict)
    cpu: Cores | None = None
    cpu_cores: Cores | None = None  # the seeds' spelling
    memory: Memory | None = None
    memory_gb: Gigabytes | None = None
    disk: Memory | None = None
    disk_gb: Gigabytes | None = None
    gpu_count: Annotated[int, Field(ge=0, le=1024)] | None = None
    gpu_memory: Memory | None = None
    gpu_memory_gb: Gigabytes | None = None
    gpu_model: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    gpu_capability: Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3})?$")] | None = None
    resources: Amounts = Field(default_factory=dict)
    price: Price = 0
    shared: bool = False
    respect_foreign_use: bool | None = None

    @model_validator(mode="after")
    def _one_spelling(self) -> NodeBlock:
        for name, other in (
            ("cpu", "cpu_cores"),
            ("memory", "memory_gb"),
            ("disk", "disk_gb"),
            ("gpu_memory", "gpu_memory_gb"),
        ):
            if getattr(self, name) is not None and getattr(self, other) is not None:
                raise ValueError(f"{name} or {other}, not both")
        return self


class Thresholds(Block):
    """How idle a machine is before it lends something."""

    gpu_utilization_max: Percent = 20.0
    gpu_memory_min_mb: Annotated[float, Field(ge=0)] = 1024.0
    memory_percent_max: Percent = 50.0
    memory_min_gb: Annotated[float, Field(ge=0)] = 2.0
    cpu_percent_max: Percent = 30.0
    cpu_min_cores: Annotated[float, Field(ge=0)] = 1.0


class SharingBlock(Block):
    """When idle machines lend what they do not use, and for how long."""

    enabled: bool = True
    check_interval: Annotated[Seconds, Field(ge=10)] = 60
    offer_expiry: Annotated[Seconds, Field(ge=60)] = 300
    max_offers_per_node: Annotated[int, Field(ge=1, le=1000)] = 5
    thresholds: Thresholds = Thresholds()
    owner_returns: Reclaim = "pause"
    grace: Seconds = 60


class QuotaBlock(Block):
    """How much may run and wait at once."""

    running: Amounts = Field(default_factory=dict)
    queued: Amounts = Field(default_factory=dict)
    max_running_jobs: Count | None = None
    max_queued_jobs: Count | None = None


Weight = Annotated[float, Field(gt=0, le=1_000_000)]


class OwnerBlock(QuotaBlock):
    """The quota of an owner, and their weight against others."""

    weight: Weight = 1


class QueueBlock(Block):
    """A named queue. `quota` is for all its jobs, and `owner_quota` for those of each owner."""

    priority: Priority | None = None
    owners: tuple[OwnerName, ...] = ()
    max_length: Count | None = None
    default_duration: Seconds | None = None
    expiry: Seconds | None = None
    defaults: Amounts = Field(default_factory=dict)
    limits: Amounts = Field(default_factory=dict)
    quota: QuotaBlock = QuotaBlock()
    owner_quota: QuotaBlock = QuotaBlock()
    weight: Weight = 1


class SchedulingBlock(Block):
    """How the queue weighs waiting against running."""

    half_life: Seconds = 7 * 86400
    class_patience: Seconds = 3600
    backfill_patience: AnySeconds = 10
    minimum_run: AnySeconds = 10
    most_preemptions: Count = 3
    # anyone on a controller of one user, admins on one for all users of the machine
    urgent: Literal["anyone", "admins"] | tuple[OwnerName, ...] | None = None


class AlertsBlock(Block):
    """The thresholds of alerts, and where they are sent."""

    cpu_percent: Percent = 90
    memory_percent: Percent = 85
    gpu_percent: Percent = 95
    queue_growing_for: Seconds = 600
    webhook: Annotated[str, Field(pattern=r"^https://[^\s/@]+(/\S*)?$")] | None = None


class RetentionBlock(Block):
    """For how long history is kept."""

    jobs: Seconds = 30 * 86400
    logs: Seconds = 30 * 86400
    samples: Seconds = 180 * 86400


class HttpBlock(Block):
    """Where the HTTP API listens."""

    host: Annotated[str, Field(min_length=1, max_length=253)] = "localhost"
    port: Port | None = None
    tls_cert: Annotated[str, Field(min_length=1)] | None = None
    tls_key: Annotated[str, Field(min_length=1)] | None = None
    insecure: bool = False
    hosts: tuple[Annotated[str, Field(min_length=1, max_length=253)], ...] = ()
    requests_per_s: Annotated[float, Field(gt=0, le=1_000_000)] = 1000

    @model_validator(mode="after")
    def _both_tls_files(self) -> HttpBlock:
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ValueError("tls_cert and tls_key together, or neither")
        return self


class EngineBlock(Block):
    """The engine, which starts jobs on nodes."""

    kind: Literal["local", "ray", "external"] = "local"
    ray_address: str | None = None
