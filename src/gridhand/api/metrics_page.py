"""The page for Prometheus: what there is, what has happened, and how long it took.

Names and units follow the conventions of Prometheus: bytes and seconds, ratios from 0 to 1. No
label has the name of a job or of a user, as every value of a label is a series of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gridhand import __version__
from gridhand.api.json_views import amounts
from gridhand.api.load_views import used_json
from gridhand.api.request_meter import RequestMeter
from gridhand.controller.metrics.histogram import Histogram
from gridhand.controller.metrics.keeper_meter import KeeperMeter
from gridhand.controller.metrics.state_tally import StateTally
from gridhand.core.jobs.attempt import Reason
from gridhand.core.jobs.job import OPEN, JobState
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import OPEN as LIVE
from gridhand.core.ledger.status import NodeStatus
from gridhand.core.model.gpus import GpuHealth
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Health

MEDIA_TYPE = CONTENT_TYPE_LATEST

Samples = Mapping[NodeName, Mapping[str, Any]]  # the last measurement of each node
_CAUSES = ("expired", "node_lost")
_ENDS = tuple(state for state in JobState if state not in OPEN)


class MetricsView(NamedTuple):
    """Everything that the page shows, at one moment."""

    nodes: Sequence[NodeStatus]
    samples: Samples
    jobs: Mapping[str, int]
    tally: StateTally
    keeper: KeeperMeter
    http: RequestMeter
    streams: int


def render_metrics(view: MetricsView) -> bytes:
    """Return the page as text. It takes a while for many nodes: not for the event loop."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(view))
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, view: MetricsView) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        view = self._view
        yield _gauge("gridhand_build_info", "The version that runs.", "version", {__version__: 1})
        yield from _nodes(view.nodes)
        yield from _resources(view.nodes, view.samples)
        yield from _devices(view.nodes, view.samples)
        yield from _jobs(view.jobs, view.tally)
        yield from _keeper(view.keeper, view.tally)
        yield from _http(view.http, view.streams)
        yield from ProcessCollector(registry=None).collect()


def _nodes(nodes: Sequence[NodeStatus]) -> Iterator[Metric]:
    health = Counter(status.health for status in nodes)
    yield _gauge("gridhand_nodes", "Nodes by health.", "health", _all(Health, health))
    flags = {
        "draining": sum(status.draining for status in nodes),
        "overcommitted": sum(status.overcommitted for status in nodes),
    }
    yield _gauge("gridhand_nodes_flagged", "Nodes that take no new work.", "flag", flags)


def _resources(nodes: Sequence[NodeStatus], samples: Samples) -> Iterator[Metric]:
    labels = ("node", "resource")
    unit = "Bytes of memory and disk, units of everything else."
    held = {
        "capacity": f"Resources of each node. {unit}",
        "allocated": f"Resources that are held, reservations included. {unit}",
        "used": f"Resources that are used, as measured, by anybody. {unit}",
        "foreign": f"Resources that processes outside of the grid use, as measured. {unit}",
    }
    families = {
        name: GaugeMetricFamily(f"gridhand_resource_{name}", text, labels=labels)
        for name, text in held.items()
    }
    for status in nodes:
        sample = samples.get(status.name) or {}
        values: dict[str, Mapping[str, float]] = {
            "capacity": amounts(status.total),
            "allocated": {**dict.fromkeys(status.total, 0), **amounts(status.allocated)},
            "used": used_json(sample),
            "foreign": _foreign(sample),
        }
        for name, measured in values.items():
            for resource, amount in measured.items():
                families[name].add_metric((status.name, resource), amount)
    yield from families.values()


def _foreign(sample: Mapping[str, Any]) -> dict[str, float]:
    others = sample.get("others")
    found = {} if others is None else {"cpu": others["cpu"], "memory": others["memory_bytes"]}
    devices = sample.get("foreign")
    return found if not devices else {**found, "gpu_memory": sum(devices.values())}


def _devices(nodes: Sequence[NodeStatus], samples: Samples) -> Iterator[Metric]:
    health = Counter(device.gpu.health for status in nodes for device in status.gpus)
    yield _gauge("gridhand_gpus", "Devices by health.", "health", _all(GpuHealth, health))
    labels = ("node", "gpu_uuid")
    share = GaugeMetricFamily(
        "gridhand_gpu_allocated_ratio", "Part of each device that is held.", labels=labels
    )
    busy = GaugeMetricFamily(
        "gridhand_gpu_utilization_ratio", "How busy each device is, as measured.", labels=labels
    )
    memory = GaugeMetricFamily(
        "gridhand_gpu_memory_bytes", "Memory of each device.", labels=(*labels, "state")
    )
    for status in nodes:
        loads = (samples.get(status.name) or {}).get("gpus") or {}
        for device in status.gpus:
            key, load = (status.name, device.gpu.id), loads.get(device.gpu.id)
            share.add_metric(key, device.share)
            memory.add_metric((*key, "capacity"), device.gpu.memory_bytes)
            memory.add_metric((*key, "allocated"), device.memory_bytes)
            memory.add_metric((*key, "foreign"), device.foreign_bytes)
            if load is not None:
                memory.add_metric((*key, "used"), load["memory_bytes"])
            if load is not None and load["utilization"] is not None:
                busy.add_metric(key, load["utilization"] / 100)
    yield from (share, busy, memory)


def _jobs(jobs: Mapping[str, int], tally: StateTally) -> Iterator[Metric]:
    yield _gauge("gridhand_jobs", "Jobs that have not ended.", "state", jobs)
    queued = _all(Priority, tally.queued)
    yield _gauge("gridhand_queue_jobs", "Jobs without an allocation.", "priority", queued)
    yield _counter("gridhand_jobs_submitted", "Jobs that were submitted.", "", tally.submitted)
    ended = _all(_ENDS, tally.finished)
    yield _counter("gridhand_jobs_finished", "Jobs that have ended, by state.", "outcome", ended)
    waits = {str(priority): waited for priority, waited in tally.waits.items()}
    yield _histogram("gridhand_queue_wait_seconds", "From submission to placement.", waits)
    retries = {str(reason): count for reason, count in tally.retries.items()}
    yield _counter("gridhand_job_retries", "Jobs queued again, by why.", "reason", retries)
    text = f"Attempts that ended because of `{Reason.PREEMPTED}`."
    yield _counter("gridhand_preemptions", text, "", tally.preemptions)
    memory = _all(("host",), tally.out_of_memory)
    yield _counter("gridhand_oom", "Attempts that ran out of memory.", "kind", memory)


def _keeper(keeper: KeeperMeter, tally: StateTally) -> Iterator[Metric]:
    leases = _all(sorted(LIVE), tally.leases)
    yield _gauge("gridhand_leases", "Live allocations with a deadline.", "state", leases)
    reclaimed = _all(_CAUSES, tally.reclaimed)
    text = "Allocations that were not released by their holder."
    yield _counter("gridhand_reclaimed", text, "cause", reclaimed)
    text = "Time to decide one operation: its share of the batch."
    yield _histogram("gridhand_placement_decision_seconds", text, {"": keeper.decisions})
    text = "Time to write one batch of decisions."
    yield _histogram("gridhand_store_commit_seconds", text, {"": keeper.commits})
    errors = dict(keeper.store_errors)
    yield _counter("gridhand_store_errors", "Batches that were not written.", "code", errors)


def _http(http: RequestMeter, streams: int) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "gridhand_http_requests",
        "Requests by route and status class.",
        labels=("method", "route", "status"),
    )
    for key, count in sorted(http.requests.items()):
        requests.add_metric(key, count)
    yield requests
    text = "Time to answer a request whose reply does not last."
    yield _histogram("gridhand_http_request_seconds", text, {"": http.seconds})
    yield _gauge("gridhand_event_streams", "Open streams of events.", "", streams)


# ---- families


def _all(names: Iterable[str], counted: Mapping[Any, int]) -> dict[str, int]:
    """Return a count for each name: a series that appears late hides its first increase."""
    return {str(name): counted.get(name, 0) for name in names}


def _gauge(name: str, text: str, label: str, values: float | Mapping[str, float]) -> Metric:
    return _simple(GaugeMetricFamily(name, text, labels=[label] if label else []), values)


def _counter(name: str, text: str, label: str, values: float | Mapping[str, float]) -> Metric:
    return _simple(CounterMetricFamily(name, text, labels=[label] if label else []), values)


def _simple(
    family: GaugeMetricFamily | CounterMetricFamily, values: float | Mapping[str, float]
) -> Metric:
    if isinstance(values, Mapping):
        for label, value in values.items():
            family.add_metric([label], value)
    else:
        family.add_metric([], values)
    return family


def _histogram(name: str, text: str, values: Mapping[str, Histogram]) -> Metric:
    """Return histograms by priority, or the only one."""
    family = HistogramMetricFamily(name, text, labels=[] if "" in values else ["priority"])
    for label, values_seen in values.items():
        labels = [label] if label else []
        family.add_metric(labels, values_seen.buckets(), values_seen.total)
    return family
