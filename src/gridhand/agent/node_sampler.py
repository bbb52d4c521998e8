"""NodeSampler: measures a node, its jobs and its devices, and divides the load by whose it is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping

from gridhand.agent.agent import Agent
from gridhand.agent.gpu.nvml import DeviceLoad, DeviceMemory
from gridhand.agent.hardware.discovery import memory_bytes
from gridhand.agent.hardware.strangers import Division, Strangers, owner_name
from gridhand.agent.hardware.usage import Sampler, Usage
from gridhand.agent.jobs import limits
from gridhand.agent.jobs.running_attempt import RunningAttempt
from gridhand.agent.messages import GpuLoad, JobUsage, NodeLoad, OthersLoad, Share, UsageEvent
from gridhand.core.model.names import JobId
from gridhand.posix import procfs
from gridhand.posix.boot_clock import boot_ms
from gridhand.posix.procfs import ProcessIdentity

_SHORT_MS = 500
_WALK_MS = 9000  # between looks at all processes: with every usual sample
_WALK_RATIO = 200  # or later, so that they take half a percent of a core


class NodeSampler:
    """Takes samples of a whole node, each of the time since the previous one.

    It has a sampler of its own: the checks of limits come more often, and would cut its time short.
    """

    def __init__(self, agent: Agent, controllers: Callable[[], Collection[int]]) -> None:
        """`controllers` returns the pids of the controllers that are connected."""
        self._agent, self._controllers = agent, controllers
        self._sampler = Sampler(agent.found.cpus, agent.found.bounds)
        self._strangers = Strangers()
        self._virtual = not agent.found.cpus
        self._division = Division()
        self._known: set[int] = set()  # the daemons of the latest division
        self._next_walk_ms = 0
        self._sampling = asyncio.Lock()  # the parts are not safe for several threads
        self.sampled: frozenset[str] = frozenset()  # the trees of the latest sample

    async def sample(self, over_ms: int) -> UsageEvent:
        """Measure, and return the event about it; the time since the last one is `over_ms`."""
        agent = self._agent
        runs = {run.tree_name: run for run in agent.running.values() if run.alive}
        trees = {name: [run.identity] for name, run in runs.items() if run.identity}
        devices = agent.gpus.loads()
        owners = agent.device_jobs() if devices else {}
        unread = agent.host.problems
        async with self._sampling:
            usage, event = await asyncio.to_thread(self._measure, trees, devices, owners)
        if over_ms < _SHORT_MS and "others" in event:
            event["others"]["cpu"] = 0.0  # the clock of the kernel is too coarse to tell
        if agent.host.problems != unread:
            agent.tell_node()
        self.sampled = frozenset(trees)
        event["jobs"] = {
            run.job: _job_usage(run, usage) for name, run in runs.items() if name in usage.trees
        }
        event["foreign"] = agent.gpus.health.foreign
        event["over_ms"] = over_ms
        return event

    def _measure(
        self,
        trees: Mapping[str, list[ProcessIdentity]],
        devices: Mapping[str, tuple[DeviceLoad, DeviceMemory]],
        owners: Mapping[int, JobId],
    ) -> tuple[Usage, UsageEvent]:
        """Measure everything; called in a thread of its own."""
        usage = self._walk(trees)
        event: UsageEvent = {"event": "usage", "node": {}, "jobs": {}, "foreign": {}}
        if self._virtual:  # it has no machine of its own: its load is that of its jobs
            own = event["own"] = _added(usage)
            event["node"] = {"cpu": own["cpu"], "memory_bytes": own["memory_bytes"]}
            return usage, event
        division = self._division
        event["node"] = {**_node_load(usage), **self._agent.host.read()}
        event["own"] = _own(usage, division)
        event["others"] = self._others(usage, division)
        event["gpus"] = {id: _gpu_load(*read, owners) for id, read in devices.items()}
        return usage, event

    def _walk(self, trees: Mapping[str, list[ProcessIdentity]]) -> Usage:
        """Measure, and divide the processes; without jobs only as often as that costs little.

        Processes of others come and go slowly, and reading thousands of them takes a while. The
        first look has no rates, so the second one follows with the next sample.
        """
        daemons = self._daemons()
        walk = bool(trees) or daemons != self._known or boot_ms() >= self._next_walk_ms
        begun_s = time.thread_time()
        usage = self._sampler.sample(trees, walk=walk)
        if walk and not self._virtual:
            jobs = {pid for tree in usage.trees.values() for pid in tree.pids}
            self._division = self._strangers.divide(usage.processes, jobs, daemons)
            took_ms = round(1000 * (time.thread_time() - begun_s))
            pause_ms = max(_WALK_MS, _WALK_RATIO * took_ms) if self._known else 0
            self._next_walk_ms, self._known = boot_ms() + pause_ms, daemons
        return usage

    def _daemons(self) -> set[int]:
        return {os.getpid(), self._agent.starter.greeting["pid"], *self._controllers()}

    def _others(self, usage: Usage, division: Division) -> OthersLoad:
        """Return what is left of the node's load without ours.

        Pages of files can be had again, and are no part of the node's used memory: ours are left
        out too, else those of a job would hide the memory of others.
        """
        trees, found = usage.trees.values(), self._agent.found
        own_bytes = sum(tree.anonymous_bytes for tree in trees) + division.daemon_bytes
        own_cpu = sum(tree.cpu for tree in trees) + division.daemon_cpu
        return {
            "cpu": round(max(0.0, usage.node.cpu - own_cpu), 3),
            "memory_bytes": max(0, usage.node.memory_bytes - own_bytes),
            "machine_cpu": len(found.cpus),
            "machine_bytes": memory_bytes(found.bounds),
            "processes": list(division.largest),
        }


def _node_load(usage: Usage) -> NodeLoad:
    node = usage.node
    load: NodeLoad = {"cpu": round(node.cpu, 3), "memory_bytes": node.memory_bytes}
    if usage.processes:
        load["processes"] = node.processes
    return load


def _added(usage: Usage) -> Share:
    trees = usage.trees.values()
    return {
        "cpu": round(sum(tree.cpu for tree in trees), 3),
        "memory_bytes": sum(tree.memory_bytes for tree in trees),
    }


def _own(usage: Usage, division: Division) -> Share:
    jobs = _added(usage)
    return {
        "cpu": round(jobs["cpu"] + division.daemon_cpu, 3),
        "memory_bytes": jobs["memory_bytes"] + division.daemon_bytes,
    }


def _job_usage(run: RunningAttempt, usage: Usage) -> JobUsage:
    tree = usage.trees[run.tree_name]
    run.peak = max(run.peak, tree.memory_bytes)
    return {
        "attempt": run.number,
        "cpu": round(tree.cpu, 3),
        "memory_bytes": tree.memory_bytes,
        "peak_bytes": max(run.peak, limits.peak_bytes(run.groups) or 0),
        "cpu_seconds": round(tree.cpu_seconds, 2),
        "processes": tree.processes,
    }


def _gpu_load(load: DeviceLoad, memory: DeviceMemory, owners: Mapping[int, JobId]) -> GpuLoad:
    return {
        "utilization": load.utilization,
        "memory_bytes": memory.used_bytes,
        "temperature_c": load.temperature_c,
        "power_w": load.power_w,
        "processes": [
            {
                "pid": pid,
                "name": procfs.command_name(pid),
                "user": owner_name(pid),
                "job": owners.get(pid),
                "memory_bytes": used,
            }
            for pid, used in memory.by_pid.items()
        ],
    }
