"""Named queues and quotas, read from the configuration."""

from __future__ import annotations

from gridhand.config.blocks import QueueBlock, QuotaBlock, SchedulingBlock
from gridhand.config.cluster_config import ClusterConfig
from gridhand.core.jobs.spec import Priority
from gridhand.core.model.resources import read_amounts
from gridhand.core.queue.named_queues import NamedQueues, QueueRules, Quota
from gridhand.core.queue.scheduling_times import SchedulingTimes


def named_queues(config: ClusterConfig) -> NamedQueues:
    return NamedQueues(
        {name: _rules(name, block) for name, block in config.queues.items()},
        {owner: _quota(block) for owner, block in config.quotas.items()},
        {owner: block.weight for owner, block in config.quotas.items()},
        _times(config.scheduling),
    )


def _times(block: SchedulingBlock) -> SchedulingTimes:
    return SchedulingTimes(
        round(block.half_life * 1000),
        round(block.class_patience * 1000),
        round(block.backfill_patience * 1000),
        round(block.minimum_run * 1000),
        block.most_preemptions,
    )


def _rules(name: str, block: QueueBlock) -> QueueRules:
    return QueueRules(
        name,
        priority=None if block.priority is None else Priority(block.priority),
        owners=frozenset(block.owners),
        max_length=block.max_length,
        default_duration_ms=_ms(block.default_duration),
        expiry_ms=_ms(block.expiry),
        defaults=read_amounts(block.defaults),
        limits=read_amounts(block.limits),
        quota=_quota(block.quota),
        owner_quota=_quota(block.owner_quota),
        weight=block.weight,
    )


def _quota(block: QuotaBlock) -> Quota:
    return Quota(
        read_amounts(block.running),
        read_amounts(block.queued),
        block.max_running_jobs,
        block.max_queued_jobs,
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))
