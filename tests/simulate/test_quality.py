"""That strategies do what they are for, on a cluster drawn once: one against another, no more."""

from __future__ import annotations

import random

import pytest

from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.placement.strategies import STRATEGIES
from gridhand.simulate.compare import compare
from gridhand.simulate.inputs import SimulatedTask


@pytest.fixture(scope="module")
def runs():
    draw = random.Random(7)
    nodes = []
    for index in range(60):
        gpus = draw.choice([1, 2, 4, 8])
        nodes.append(
            Node.of(
                f"n{index:02}",
                cpu=gpus * draw.choice([6, 8, 12, 16]),
                memory=f"{gpus * draw.choice([32, 64])}GB",
                gpus=[{"model": draw.choice(["T4", "T4", "V100"])}] * gpus,
            )
        )
    shapes = [
        (40, {"cpu": 4, "memory": "16GB", "gpu": 0.5}),
        (30, {"cpu": 2, "memory": "8GB", "gpu": 0.25}),
        (30, {"cpu": 8, "memory": "32GB", "gpu": 1}),
        (5, {"cpu": 32, "memory": "128GB", "gpu": 4}),
        (3, {"cpu": 48, "memory": "256GB", "gpu": 8}),
        (10, {"cpu": 8, "memory": "32GB", "gpu": 1, "gpu_model": "V100"}),
        (15, {"cpu": 10, "memory": "20GB"}),
    ]
    tasks = [
        SimulatedTask(f"t{kind}-{number:03}", Request.of(**asked))
        for kind, (count, asked) in enumerate(shapes)
        for number in range(count)
    ]
    found = compare(nodes, tasks, list(STRATEGIES), load=1.3, seeds=[1, 2, 3])
    return {name: sum(run.end["gpu"] for run in each) / len(each) for name, each in found.items()}


def test_fragmentation_fills_the_gpus_best(runs):
    best = max(runs, key=runs.__getitem__)
    assert best == "fragmentation", runs


def test_what_spreads_leaves_less_room_than_what_packs(runs):
    assert runs["pack"] > runs["round_robin"]
    assert runs["best_fit"] > runs["spread"]
