"""The cluster and the mix of requests that benchmarks of placement share.

Nodes are drawn with a fixed seed from 20 shapes. Requests are those of the openb default trace,
where its folder is at hand; else they are drawn, in the proportions that the trace has.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

from gridhand import Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT
from gridhand.simulate.inputs import read_tasks

SEED = 20
TRACE = "openb_pod_list_default.csv"

# CPUs, memory in GiB, GPUs and their model. As in openb the memory of a GPU is not told, so that
# it is shared by share alone.
SHAPES = (
    (16, 64, 0, ""), (32, 128, 0, ""), (64, 256, 0, ""), (128, 1024, 0, ""),
    (16, 64, 1, "T4"), (32, 192, 1, "A10"), (24, 128, 1, "P100"),
    (32, 128, 2, "T4"), (64, 256, 2, "T4"), (64, 256, 2, "P100"), (96, 384, 2, "P100"),
    (48, 192, 2, "A10"),
    (64, 256, 4, "V100M16"), (96, 384, 4, "V100M32"), (96, 512, 4, "T4"),
    (96, 384, 8, "G2"), (128, 768, 8, "G2"), (96, 512, 8, "V100M32"), (128, 768, 8, "G3"),
    (128, 1024, 8, "A100"),
)  # fmt: skip


def nodes_of(size: int) -> list[Node]:
    """So many nodes, in the order of their names, which is not that of their shapes."""
    chance = random.Random(SEED)
    shapes = [Node.of("shape", **_amounts(*shape)) for shape in SHAPES]
    assert len(set(SHAPES)) == len(shapes) == 20
    return [_named(f"n{number:06}", chance.choice(shapes)) for number in range(size)]


def _amounts(cpu: int, memory: int, gpus: int, model: str) -> dict[str, object]:
    return {
        "cpu": cpu,
        "memory": f"{memory}GiB",
        "gpus": [{"model": model}] * gpus,
        "price": cpu * 0.02 + gpus * (1 + len(model) / 4),
    }


def _named(name: str, shape: Node) -> Node:
    gpus = tuple(replace(gpu, id=f"{name}/{gpu.index}") for gpu in shape.gpus)
    return replace(shape, name=name, gpus=gpus)


def requests_of(openb: str | None, nodes: list[Node]) -> tuple[list[Request], str]:
    """The requests of the mix, each as often as it is made, and where they are from."""
    if openb:
        tasks = read_tasks(Path(openb) / TRACE, nodes)
        found, source = [task.asked for task in tasks], f"openb ({TRACE})"
    else:
        found, source = _drawn(), "drawn, after the make of openb's; give --openb for the trace"
    classes = Counter((asked.amounts, asked.gpu) for asked in found)
    return found, f"{source}: {len(found):,} requests of {len(classes)} classes"


def _drawn(count: int = 8000, classes: int = 150) -> list[Request]:
    """As in the default trace: 13 % want no GPU, 38 % a share of one, 48 % one, and 1 % more.

    How often a class comes falls off as one through its rank.
    """
    chance = random.Random(SEED)
    made: dict[str, Request] = {}
    while len(made) < classes:
        kind = chance.choices(("cpu", "share", "one", "many"), (13, 38, 48, 1))[0]
        cpu = chance.choice((2, 3.152, 4, 6, 8, 8.2, 9.81, 11.3, 11.9, 12, 14.2, 15.7, 16, 24.2))
        memory = chance.choice((4, 5.5, 8, 12, 15, 24, 30, 32, 41, 46, 48, 57, 63))
        wishes: dict[str, object] = {"cpu": cpu, "memory": f"{memory}GiB"}
        if kind == "many":
            gpus = chance.choice((2, 4, 8, 8))
            wishes = {"cpu": min(cpu * gpus, 88), "memory": f"{memory * gpus // 2}GiB", "gpu": gpus}
        elif kind == "one":
            wishes["gpu"] = 1
        elif kind == "share":
            wishes["gpu"] = chance.choice((16, 23, 32, 37, 46, 47, 55, 59, 65, 81)) / 100
        made.setdefault(repr(wishes), Request.of(**wishes))
    asked = list(made.values())
    return chance.choices(asked, [1 / rank for rank in range(1, classes + 1)], k=count)


def gpus_asked(asked: Request) -> int:
    """In parts of a device."""
    return asked.gpu.devices * asked.gpu.share if asked.gpu else 0


def gpus_of(nodes: list[Node]) -> int:
    return UNIT * sum(len(node.gpus) for node in nodes)
