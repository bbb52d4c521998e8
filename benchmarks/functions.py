"""Functions through warm workers, beside Ray, Dask and the process pool of Python.

All of them on the same cores, with workers that are up already, and each call with a requirement
where that can be said: one core (`num_cpus=1` of Ray), one of a resource that workers have (Dask).
`ProcessPoolExecutor` knows of none, and is what a pool of processes can do in plain Python.

  submit  so many calls that do nothing, submitted at once, until the last result is here
  map     the same with the library's own map
  single  each call awaited before the next is sent, which is one round trip each
  chain   100 stages, each of which gets the result of the one before
  fan     1,000 calls, and one that gets all of their results
  arrays  100 MB arrays, made by one function, changed by a second, added up by a third

Rounds alternate and medians are shown, because other work on the machine comes and goes: what
counts is the ratio.

    python benchmarks/functions.py [--rounds 3] [--only gridhand,pool] [--quick]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

CORES = len(os.sched_getaffinity(0))
STAGES, WIDE, SINGLE = 100, 1000, 300
MEGABYTES, PASSES = 100, 3


def nothing(number: int) -> int:
    return number


def more(number: int) -> int:
    return number + 1


def total(numbers: list[int]) -> int:
    return sum(numbers)


def made(megabytes: int) -> Any:
    import numpy as np

    return np.ones(megabytes * 1_000_000 // 8)


def doubled(array: Any) -> Any:
    return array * 2


def summed(array: Any) -> float:
    return float(array.sum())


class Peer:
    """How one of them does what is measured."""

    def __init__(
        self,
        submit: Callable[..., Any],
        result: Callable[[Any], Any],
        together: Callable[[list[Any]], list[Any]],
        mapped: Callable[..., Any],
        futures_as_arguments: bool = True,
    ) -> None:
        self.submit, self.result, self.together = submit, result, together
        self.mapped = mapped
        self.graphs = futures_as_arguments

    def measure(self, name: str) -> float | None:
        """Calls in a second; for arrays, how many MB are made in one."""
        kind, _, count = name.partition(" ")
        number = int(count.replace(",", "")) if count else 0
        start = time.perf_counter()
        match kind:
            case "submit":
                results = self.together([self.submit(nothing, one) for one in range(number)])
                assert results == list(range(number))
            case "map":
                assert list(self.mapped(nothing, range(number))) == list(range(number))
            case "single":
                number = SINGLE
                for one in range(number):
                    assert self.result(self.submit(nothing, one)) == one
            case "chain":
                number = STAGES
                assert self.result(self.chained()) == STAGES
            case "fan":
                number = WIDE + 1
                assert self.result(self.fanned()) == WIDE * (WIDE + 1) // 2
            case "arrays":
                number = 2 * MEGABYTES * PASSES
                for _ in range(PASSES):
                    assert self.result(self.passed()) == MEGABYTES * 1_000_000 / 8 * 2
        return number / (time.perf_counter() - start)

    def chained(self) -> Any:
        found = self.submit(more, 0)
        for _ in range(STAGES - 1):
            found = self.submit(more, found if self.graphs else self.result(found))
        return found

    def fanned(self) -> Any:
        parts = [self.submit(more, one) for one in range(WIDE)]
        return self.submit(total, parts if self.graphs else self.together(parts))

    def passed(self) -> Any:
        def given(future: Any) -> Any:
            return future if self.graphs else self.result(future)

        array = self.submit(made, MEGABYTES)
        return self.submit(summed, given(self.submit(doubled, given(array))))


@contextmanager
def gridhand() -> Iterator[Peer]:
    from gridhand import Grid, task
    from gridhand.client import connect

    home = tempfile.mkdtemp(prefix="gridhand-bench-")
    os.environ["GRIDHAND_HOME"] = os.path.join(home, "home")
    os.environ["GRIDHAND_LINGER_S"] = "600"  # as the workers of the others, which never go
    codes = (nothing, more, total, made, doubled, summed)
    tasks = {code: task(cpu=1)(code) for code in codes}
    try:
        with Grid():
            yield Peer(
                lambda code, *args: tasks[code].submit(*args),
                lambda future: future.result(),
                lambda futures: [one.result() for one in futures],
                lambda code, numbers: tasks[code].map(numbers),
            )
    finally:
        with suppress(Exception), connect(start=False) as client:
            client.stop(jobs="kill")
        time.sleep(1.0)
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def pool() -> Iterator[Peer]:
    with ProcessPoolExecutor(CORES) as executor:
        yield Peer(
            executor.submit,
            lambda future: future.result(),
            lambda futures: [one.result() for one in futures],
            executor.map,
            futures_as_arguments=False,
        )


@contextmanager
def ray() -> Iterator[Peer]:
    import logging

    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    codes = (nothing, more, made, doubled, summed)
    tasks = {code: ray.remote(num_cpus=1)(code) for code in codes}

    @ray.remote(num_cpus=1)
    def total_of_references(references: list[Any]) -> int:
        return sum(ray.get(references))

    tasks[total] = total_of_references

    def submit(code: Callable[..., Any], *args: Any) -> Any:
        return tasks[code].remote(*args)

    try:
        yield Peer(
            submit,
            ray.get,
            ray.get,
            lambda code, numbers: ray.get([submit(code, one) for one in numbers]),
        )
    finally:
        ray.shutdown()


@contextmanager
def dask() -> Iterator[Peer]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=CORES,
            threads_per_worker=1,
            resources={"slot": 1},
            dashboard_address=None,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):

        def submit(code: Callable[..., Any], *args: Any) -> Any:
            return client.submit(code, *args, pure=False, resources={"slot": 1})

        def mapped(code: Callable[..., Any], numbers: Any) -> Any:
            return client.gather(client.map(code, numbers, pure=False, resources={"slot": 1}))

        yield Peer(submit, lambda future: future.result(), client.gather, mapped)


PEERS = {"gridhand": gridhand, "pool": pool, "ray": ray, "dask": dask}
MEASURES = (
    "submit 1,000", "submit 10,000", "map 1,000", "map 10,000", "single", "chain", "fan", "arrays",
)  # fmt: skip
SLOW = {("dask", "submit 10,000"), ("dask", "map 10,000")}  # once is enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--quick", action="store_true", help="without 10,000 calls at once")
    asked = parser.parse_args()
    names = [name for name in MEASURES if not (asked.quick and "10,000" in name)]
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as opened:
        peers: dict[str, Peer] = {}
        for name in asked.only.split(","):
            try:
                peers[name] = opened.enter_context(PEERS[name]())
            except ImportError:
                print(f"{name} is not installed: `make bench` does that")
                continue
            peers[name].measure("submit 200")
            with suppress(ImportError):
                peers[name].measure("arrays")
            found[name] = {}
        for number in range(asked.rounds):
            for measure in names:
                for name, peer in peers.items():
                    if number and (name, measure) in SLOW:
                        continue
                    time.sleep(0.05)
                    found[name].setdefault(measure, []).append(peer.measure(measure) or 0.0)
    show(found, names)


def show(found: dict[str, dict[str, list[float]]], names: list[str]) -> None:
    print(f"{'':14}" + "".join(f"{name:>12}" for name in found) + f"   {CORES} cores")
    middle = {
        (name, measure): statistics.median(found[name][measure])
        for name in found
        for measure in names
    }
    for measure in names:
        unit = "MB/s" if measure == "arrays" else "calls/s"
        rates = "".join(f"{middle[name, measure]:12,.0f}" for name in found)
        print(f"{measure:14}{rates}   {unit}")
    for name in found:
        if name != "gridhand" and "gridhand" in found:
            ratios = ", ".join(
                f"{measure} {middle['gridhand', measure] / middle[name, measure]:.1f} x"
                for measure in names
            )
            print(f"gridhand = {name}: {ratios}")


if __name__ == "__main__":
    sys.exit(main())
