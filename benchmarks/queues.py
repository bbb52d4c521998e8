"""The queue: waits, use of the cluster and fairness beside FIFO and FIFO with backfill, and speed.

Two streams are replayed on a fake clock through the real queue and placement: the pods of openb as
long as they ran, on some of its nodes and so close together that they have to wait, and a drawn
stream with heavy tails of run times, sizes and bursts. Neither says whose the jobs are, so owners
are drawn: some have many times the jobs of others. All three policies get the same stream and the
same expected times, which are one to three times the real ones.

Then the speed of one pass over a long queue: see `_queue_scale`. The script is not named `queue`,
because that is a module of Python which would be hidden from the other benchmarks.

    python benchmarks/queues.py [../shared/data/openb] [--jobs 1000] [--nodes 20] [--waiting 100000]
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from pathlib import Path

from _cluster import TRACE, gpus_asked
from _queue_replay import POLICIES, Outcome, Replay, StreamedJob
from _queue_scale import show_scale

from gridhand import Node, Request
from gridhand.core.model.resources import UNIT
from gridhand.simulate.inputs import read_nodes, read_tasks

SEED = 16
OWNERS = 12
LOAD = 5.0  # of what the cluster could do until the last job comes
NODES = "openb_node_list_gpu_node.csv"


def owners_of(chance: random.Random, count: int) -> list[str]:
    """Owners in bursts: each has half as many jobs as the one before, down to a small rest."""
    names = [f"user{number:02}" for number in range(OWNERS)]
    weights = [max(0.5**number, 0.02) for number in range(OWNERS)]
    found: list[str] = []
    while len(found) < count:
        found += chance.choices(names, weights) * chance.choice((1, 1, 2, 5, 20))
    return found[:count]


def openb_stream(folder: Path, count: int, nodes: list[Node]) -> list[StreamedJob]:
    """The last pods of the trace that fit on these nodes, closer together, as long as they ran."""
    chance = random.Random(SEED)
    with (folder / TRACE).open() as file:
        times = [
            (int(row["creation_time"]), int(row["deletion_time"])) for row in csv.DictReader(file)
        ]
    models = {gpu.model for node in nodes for gpu in node.gpus}
    tasks = zip(read_tasks(folder / TRACE, read_nodes(folder / NODES)), times, strict=True)
    found = [
        (begin, max(1, end - begin), task.asked)
        for task, (begin, end) in tasks
        if end > begin and _fits_somewhere(task.asked, nodes, models)
    ][-count:]
    work = sum(run * _part(asked, nodes) for _, run, asked in found)
    first, last = min(begin for begin, _, _ in found), max(begin for begin, _, _ in found)
    scale = work / LOAD / (last - first)
    owners = owners_of(chance, len(found))
    return [
        StreamedJob(
            int((begin - first) * scale * 1000), owner, asked, run * 1000, _said(chance, run)
        )
        for (begin, run, asked), owner in zip(found, owners, strict=True)
    ]


def _part(asked: Request, nodes: list[Node]) -> float:
    """The part of the cluster that a request takes of what it takes most of."""
    gpus = sum(len(node.gpus) for node in nodes)
    parts = [gpus_asked(asked) / UNIT / gpus] if gpus else []
    for name, amount in asked.amounts.pairs:
        parts.append(amount / sum(node.capacity[name] for node in nodes))
    return max(parts)


def _fits_somewhere(asked: Request, nodes: list[Node], models: set[str]) -> bool:
    wanted = asked.gpu.models() if asked.gpu is not None else ()
    return any(
        all(node.capacity[name] >= amount for name, amount in asked.amounts.pairs)
        and (asked.gpu is None or len(node.gpus) >= asked.gpu.devices)
        and (not wanted or any(gpu.model.lower() in wanted for gpu in node.gpus))
        for node in nodes
    )


def heavy_stream(count: int, nodes: list[Node]) -> list[StreamedJob]:
    """Pareto run times, sizes that double and get rarer, bursts; so many that they have to wait."""
    chance = random.Random(SEED)
    jobs = []
    for owner in owners_of(chance, count):
        run_s = min(36_000, 30 * chance.paretovariate(1.1))
        cpu = chance.choices((1, 2, 4, 8, 16), (16, 8, 4, 2, 1))[0]
        jobs.append((owner, Request.of(cpu=cpu, memory=f"{2 * cpu}GiB"), run_s))
    spread = sum(run_s * _part(asked, nodes) for _, asked, run_s in jobs) / LOAD
    at, found = 0.0, []
    for owner, asked, run_s in jobs:
        at += 0 if chance.random() < 0.6 else chance.expovariate(0.4 * count / spread)
        found.append(
            StreamedJob(int(at * 1000), owner, asked, int(run_s * 1000), _said(chance, run_s))
        )
    return found


def _said(chance: random.Random, run_s: float) -> int:
    return int(run_s * 1000 * chance.choice((1.0, 1.2, 1.5, 2.0, 3.0)))


def compare(what: str, nodes: list[Node], stream: list[StreamedJob]) -> dict[str, Outcome]:
    print(f"{what}: {len(stream):,} jobs on {len(nodes)} nodes")
    print("          mean wait   95 % wait  slowdown  use     Jain: shares  slowdowns")
    found: dict[str, Outcome] = {}
    for policy in POLICIES:
        begun = time.perf_counter()
        one = found[policy] = Replay(nodes, stream, policy).run()
        print(
            f"  {policy:6} {one.mean_wait:9,.0f} s {one.late_wait:9,.0f} s {one.slowdown:9,.1f}  "
            f"{one.utilisation:.3f}   {one.jain_share:10.3f} {one.jain_slowdown:10.3f}"
            f"   ({time.perf_counter() - begun:.0f} s)"
        )
    ours, easy = found["ours"], found["easy"]
    print(
        f"  ours / easy: mean wait {_ratio(ours.mean_wait, easy.mean_wait)},"
        f" use {_ratio(ours.utilisation, easy.utilisation)},"
        f" Jain {_ratio(ours.jain_share, easy.jain_share)} of shares,"
        f" {_ratio(ours.jain_slowdown, easy.jain_slowdown)} of slowdowns"
    )
    return found


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("openb", nargs="?", default="../shared/data/openb", type=Path)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--waiting", type=int, default=100_000)
    asked = parser.parse_args()
    if (asked.openb / TRACE).exists():
        every = read_nodes(asked.openb / NODES)
        nodes = random.Random(SEED).sample(every, asked.nodes)
        compare("openb", nodes, openb_stream(asked.openb, asked.jobs, nodes))
    else:
        print(f"openb: there is no trace in {asked.openb}")
    plain = [Node.of(f"n{number:02}", cpu=16, memory="64GiB") for number in range(20)]
    compare("heavy tails", plain, heavy_stream(asked.jobs, plain))
    if asked.waiting:
        show_scale(asked.waiting, 1000, 200, 100, 40)


if __name__ == "__main__":
    main()
