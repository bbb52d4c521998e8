"""Discover what this machine has for jobs: CPUs, memory, disk and GPUs, as a `Node`.

Only what this process may use counts: an agent in a container, under a CPU mask or behind a quota
must not promise the whole machine. What cannot be read is reported as a problem and not counted.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from gridhand.agent.gpu.nvml import Nvml
from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.agent.hardware.own_limits import Bounds, read_bounds
from gridhand.core.model.nodes import Node
from gridhand.core.model.resources import MOST, UNIT, Resources
from gridhand.posix import procfs

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.@:-]+", re.ASCII)
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Discovery:
    """A node as it was found, and what was wrong with it.

    `cpus` are the numbers of the CPUs that jobs may be pinned to: a quota may allow less than all
    of them. `boot_id` changes whenever the machine boots, and is empty if it cannot be read.
    """

    node: Node
    cpus: frozenset[int]
    boot_id: str
    bounds: Bounds
    disk_total_bytes: int
    problems: tuple[MachineProblem, ...]
    gpu_problems: tuple[MachineProblem, ...] = ()  # those of `problems` that are about GPUs


def discover(folder: Path, *, nvml: Nvml | None = None, root: Path = Path("/")) -> Discovery:
    """Return what this machine has; its disk is what is free in `folder`.

    `nvml` is used and stays open; without it the driver is opened and closed again.
    """
    problems: list[MachineProblem] = []
    bounds = read_bounds(root)
    problems += bounds.problems
    name = node_name(socket.gethostname(), problems)
    cpus = usable_cpus(bounds, problems)
    free_bytes, total_bytes = disk(folder, problems)
    driver = nvml or Nvml()
    try:
        found = driver.devices(name)
    finally:
        if nvml is None:
            driver.close()
    problems += found.problems
    capacity = Resources(
        {"cpu": cpu_parts(cpus, bounds), "memory": memory_bytes(bounds, root), "disk": free_bytes}
    )
    return Discovery(
        node=Node.of(name, capacity, gpus=found.gpus),
        cpus=cpus,
        boot_id=boot_id(root, problems),
        bounds=bounds,
        disk_total_bytes=total_bytes,
        problems=tuple(problems),
        gpu_problems=found.problems,
    )


def virtual_node(found: Discovery, name: str, capacity: str) -> Discovery:
    """Return a virtual node on this machine, which may have several.

    It pins nobody, because its cores are not this machine's, and it has no devices.
    """
    node = Node.of(name, Resources.parse(capacity))
    return replace(found, node=node, cpus=frozenset(), problems=(), gpu_problems=())


def usable_cpus(bounds: Bounds, problems: list[MachineProblem]) -> frozenset[int]:
    """Return the CPUs that this process may run on."""
    allowed = frozenset(os.sched_getaffinity(0))
    if bounds.cpus is None or allowed & bounds.cpus:
        return allowed & (bounds.cpus or allowed)
    problems.append(
        MachineProblem(
            f"this process runs on CPUs {sorted(allowed)}, its control group has only"
            f" {sorted(bounds.cpus)}",
            "The former are used. Start it again in the group that it belongs to.",
        )
    )
    return allowed


def cpu_parts(cpus: frozenset[int], bounds: Bounds) -> int:
    """Return the cores in ten-thousandths: a quota may leave a fraction."""
    whole = UNIT * len(cpus)
    return whole if bounds.cpu is None else min(whole, bounds.cpu)


def memory_bytes(bounds: Bounds, root: Path = Path("/")) -> int:
    physical = procfs.memory(root).total_bytes
    return physical if bounds.memory_bytes is None else min(physical, bounds.memory_bytes)


def disk(folder: Path, problems: list[MachineProblem]) -> tuple[int, int]:
    """Return the free and the total bytes of the disk of `folder`.

    The free part is the capacity: what is filled already cannot be promised.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        problems.append(
            MachineProblem(
                f"the disk of {folder} cannot be measured: {error.strerror or error}",
                "The node has no disk to give. Make the folder, or name another one.",
            )
        )
        return 0, 0
    return min(usage.free, MOST), usage.total


def node_name(host: str, problems: list[MachineProblem]) -> str:
    """Return the host name, with characters replaced that a node's name cannot have.

    >>> node_name("gpu box.example.org", [])
    'gpu-box.example.org'
    """
    name = _NOT_IN_A_NAME.sub("-", host).lstrip("-.@:")[:_LONGEST_NAME] or "node"
    if name != host:
        problems.append(
            MachineProblem(
                f"the host name {host[:300]!r} cannot be a node's name, so the node is {name}",
                "Change the host name if another node may get the same name.",
            )
        )
    return name


def boot_id(root: Path, problems: list[MachineProblem]) -> str:
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        problems.append(
            MachineProblem(
                f"the boot id cannot be read: {error.strerror or error}",
                "A restart of the machine will be noticed only by its jobs being gone.",
            )
        )
        return ""
