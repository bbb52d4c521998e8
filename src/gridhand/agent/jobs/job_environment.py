"""The environment variables of a job: those of its caller, and over them what it is granted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gridhand.agent.gpu.visibility import visible_environment
from gridhand.core.model.gpus import Gpu
from gridhand.core.model.names import AllocationId, JobId, NodeName
from gridhand.core.model.resources import UNIT

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MEMORY, _GPU_MEMORY = "GRIDHAND_MEMORY_BYTES", "GRIDHAND_GPU_MEMORY_BYTES"


def job_environment(
    given: Mapping[str, str],
    *,
    mark: str,
    job: JobId,
    attempt: int,
    node: NodeName,
    fence: AllocationId,
    cores: int,
    memory_bytes: int | None,
    devices: Iterable[Gpu],
    gpu_memory: Mapping[str, int],
) -> dict[str, str]:
    """Return the caller's variables with ours; the caller's own thread counts win."""
    gpus = sorted(devices, key=lambda gpu: gpu.index)
    amounts = [str(gpu_memory[gpu.id]) for gpu in gpus if gpu.id in gpu_memory]
    threads = str(max(1, cores // UNIT))
    env = {**dict.fromkeys(_THREADS, threads), **given, **visible_environment(gpus)}
    env |= {
        "GRIDHAND_STARTER": mark,
        "GRIDHAND_JOB_ID": job,
        "GRIDHAND_ATTEMPT": str(attempt),
        "GRIDHAND_NODE": node,
        "GRIDHAND_ALLOCATION_ID": fence,
        "GRIDHAND_CPUS": f"{cores / UNIT:g}",
        _MEMORY: "" if memory_bytes is None else str(memory_bytes),
        _GPU_MEMORY: ",".join(amounts),
    }
    # A caller that is a job itself has its own values of these, which do not hold for this job.
    return {name: text for name, text in env.items() if text or name not in (_MEMORY, _GPU_MEMORY)}


def granted_gpus(ids: Iterable[str], known: Mapping[str, Gpu]) -> list[Gpu]:
    """Return the devices with these ids."""
    return [known.get(id) or _declared_gpu(id) for id in ids]


def _declared_gpu(id: str) -> Gpu:
    """Return a device that was declared by hand: its index is the number at the end of its id."""
    number = id.rpartition("/")[2]
    return Gpu(id, int(number) if number.isdecimal() else 0)
