"""What a job finds in its environment: what its caller gave, and over it what it was granted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gridhand.agent.visible import visible_environment
from gridhand.core.gpus import Gpu
from gridhand.core.resources import UNIT

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MEMORY, _GPU_MEMORY = "GRIDHAND_MEMORY_BYTES", "GRIDHAND_GPU_MEMORY_BYTES"


def job_environment(
    given: Mapping[str, str],
    *,
    mark: str,
    job: str,
    attempt: int,
    node: str,
    fence: str,
    cores: int,
    memory_bytes: int | None,
    devices: Iterable[Gpu],
    gpu_memory: Mapping[str, int],
) -> dict[str, str]:
    """The caller's variables with ours; how many threads to use is the caller's if he says so."""
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
    # A caller that is a job itself has these of its own, and they say nothing of this one.
    return {name: text for name, text in env.items() if text or name not in (_MEMORY, _GPU_MEMORY)}


def granted(ids: Iterable[str], known: Mapping[str, Gpu]) -> list[Gpu]:
    """The devices of these ids; one that nobody has seen is known by the number in its id."""
    return [known.get(id) or _declared(id) for id in ids]


def _declared(id: str) -> Gpu:
    number = id.rpartition("/")[2]
    return Gpu(id, int(number) if number.isdecimal() else 0)
