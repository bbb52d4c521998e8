"""Memory that predictions waste on real workflows, beside simple rules on the same tasks.

The replay: task types with at least 34 tasks, in order of start. A task knows those of its type
that had ended when it started; with fewer than three it gets what its user asked for. A prediction
is capped at that and rounded up to 100 MB. If it is too little, the attempt is charged for its
whole run time and repeated with twice as much, up to 128 GB. Waste is (allocated - peak) x time and
all of failed attempts, in GB hours. Ratios are ours over "max so far x 1.1".

    python benchmarks/prediction.py [FILE.csv ...] [--json]

Files have the columns of Nextflow traces (process, start, complete, realtime, memory, peak_rss) or
of k-Segments (task, start_s, end_s, runtime_s, input_bytes, user_memory_b, peak_mem_mb).
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from gridhand.core.prediction.peak_model import PeakModel

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "prediction"
STEP = 100_000_000
MOST = 128_000_000_000
FEWEST = 34
ENOUGH = 3
TIMED = 100_000  # samples


class Task(NamedTuple):
    kind: str
    start: float
    end: float
    seconds: float
    preset: int
    peak: int
    size: int | None


class Model(Protocol):
    def add(self, peak: int, size: int | None = None) -> None: ...

    def predict(self, size: int | None = None) -> int | None: ...


class Rule:
    """A function of all peaks so far."""

    def __init__(self, predict: Callable[[Sequence[int]], float]) -> None:
        self._predict = predict
        self._peaks: list[int] = []

    def add(self, peak: int, size: int | None = None) -> None:
        self._peaks.append(peak)

    def predict(self, size: int | None = None) -> int | None:
        return None if len(self._peaks) < ENOUGH else math.ceil(self._predict(self._peaks))


def p95(peaks: Sequence[int]) -> float:
    ordered = sorted(peaks)
    index = 0.95 * (len(ordered) - 1)
    low, part = ordered[int(index)], index % 1
    return low + part * (ordered[min(int(index) + 1, len(ordered) - 1)] - low)


MODELS: dict[str, Callable[[], Model]] = {
    "gridhand": PeakModel,
    "max x 1.1": lambda: Rule(lambda peaks: max(peaks) * 1.1),
    "P95 x 1.2": lambda: Rule(lambda peaks: p95(peaks) * 1.2),
    "mean + 2 sd": lambda: Rule(
        lambda peaks: statistics.fmean(peaks) + 2 * statistics.stdev(peaks)
    ),
}


# ---- the replay


def read_tasks(path: Path) -> list[Task]:
    with path.open(newline="") as file:
        tasks = [task for row in csv.DictReader(file) if (task := _task(row)) is not None]
    count = Counter(task.kind for task in tasks)
    return sorted((task for task in tasks if count[task.kind] >= FEWEST), key=lambda one: one.start)


def _task(row: dict[str, str]) -> Task | None:
    if "task" in row:
        return Task(
            row["task"], float(row["start_s"]), float(row["end_s"]), float(row["runtime_s"]),
            int(float(row["user_memory_b"])), round(float(row["peak_mem_mb"]) * 1e6),
            int(float(row["input_bytes"])),
        )  # fmt: skip
    if (
        row["status"] != "COMPLETED"
        or not float(row["rss"] or 0)
        or not float(row["realtime"] or 0)
    ):
        return None
    return Task(
        row["process"], int(row["start"]) / 1000, int(row["complete"]) / 1000,
        float(row["realtime"]) / 1000, int(row["memory"]), int(row["peak_rss"]), None,
    )  # fmt: skip


def replay(tasks: Sequence[Task], make: Callable[[], Model]) -> tuple[float, int]:
    """Return the waste in GB hours, and how many attempts failed."""
    models: dict[str, Model] = {}
    running: list[tuple[float, int, Task]] = []
    wasted, failed = 0.0, 0
    for number, task in enumerate(tasks):
        while running and running[0][0] <= task.start:
            ended = heapq.heappop(running)[2]
            models[ended.kind].add(ended.peak, ended.size)
        model = models.setdefault(task.kind, make())
        predicted = model.predict(task.size)
        asked = task.preset if predicted is None else min(predicted, task.preset)
        for allocated in _attempts(-(-asked // STEP) * STEP, task.peak):
            failed += allocated < task.peak
            wasted += (allocated - task.peak * (allocated >= task.peak)) * task.seconds
        heapq.heappush(running, (task.end, number, task))
    return wasted / 1e9 / 3600, failed


def _attempts(asked: int, peak: int) -> Iterator[int]:
    while asked < min(peak, MOST):
        yield asked
        asked = min(2 * asked, MOST)
    yield max(asked, peak)


# ---- the report


def costs() -> tuple[float, float]:
    """Return the time of an update and of a prediction in ms, after many samples with sizes."""
    model = PeakModel()
    samples = [(10**9 + 7 * n % 10**6 + 40 * (n % 1000), n % 1000) for n in range(TIMED)]
    began = time.process_time()
    for peak, size in samples:
        model.add(peak, size)
    learned = time.process_time()
    for _, size in samples[:1000]:
        model.predict(size)
    return (learned - began) * 1e3 / TIMED, time.process_time() - learned


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    files = given.files or sorted(DATA.glob("*.csv"))
    if not files:
        sys.exit(f"error: there are no traces in {DATA}; name some files")
    found = {path.stem: _compare(read_tasks(path)) for path in files}
    ratios = {name: _ratios(figures) for name, figures in found.items()}
    if given.json:
        print(json.dumps({"files": ratios}))
        return
    _print(found, ratios)


def _compare(tasks: Sequence[Task]) -> dict[str, tuple[float, int]]:
    return {name: replay(tasks, make) for name, make in MODELS.items()}


def _ratios(figures: dict[str, tuple[float, int]]) -> dict[str, float]:
    (ours, failed), (plain, plain_failed) = figures["gridhand"], figures["max x 1.1"]
    # Where the plain rule never fails, each failure of ours counts as a whole.
    return {
        "waste_ratio": ours / plain,
        "failure_ratio": failed / plain_failed if plain_failed else 1.0 + failed,
    }


def _print(
    found: dict[str, dict[str, tuple[float, int]]], ratios: dict[str, dict[str, float]]
) -> None:
    print(
        "waste in GB h / failed attempts".ljust(34), *(name.rjust(16) for name in MODELS), "ratio"
    )
    for name, figures in found.items():
        cells = [f"{waste:.1f}/{failed}".rjust(16) for waste, failed in figures.values()]
        print(name.ljust(34), *cells, f"{ratios[name]['waste_ratio']:5.2f}")
    mean = statistics.geometric_mean(one["waste_ratio"] for one in ratios.values())
    failed, plain = (sum(one[name][1] for one in found.values()) for name in list(MODELS)[:2])
    print(f"\ngeometric mean of ratios {mean:.3f}; failed attempts {failed} against {plain}")
    update, predict = costs()
    print(f"after {TIMED:,} samples: update {update:.4f} ms, prediction {predict:.4f} ms")


if __name__ == "__main__":
    main()
