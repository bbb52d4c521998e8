"""`grid simulate`: compare placement strategies on a simulated cluster."""

from __future__ import annotations

import json
import re
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option

_SHOW_AFTER_S = 1.0
_MOST_SEEDS = 1000
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_seeds(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    """Read a list of numbers: `7`, `1-5` or `1,4,9`."""
    seeds: dict[int, None] = {}
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < _MOST_SEEDS:
            raise click.BadParameter(f"{value!r} is not a list of seeds such as 7, 1-5 or 1,4,9")
        seeds.update(dict.fromkeys(range(first, last + 1)))
    if len(seeds) > _MOST_SEEDS:
        raise click.BadParameter(f"{value!r} is more than {_MOST_SEEDS} seeds")
    return list(seeds)


def read_load(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if value != value:  # only nan differs from itself, and a range lets it through
        raise click.BadParameter("nan is not a load")
    return value


@command(
    epilog="""
    grid simulate --nodes nodes.yaml --tasks tasks.csv --strategy all
    """
)
@option("--nodes", required=True, type=_FILE, help="File with the nodes: CSV, YAML or openb.")
@option("--tasks", required=True, type=_FILE, help="File with the tasks: CSV, YAML or openb.")
@option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME",
    help="Strategy to compare, or `all`. Repeatable.",
)
@option(
    "--load",
    type=click.FloatRange(0, 100, min_open=True),
    callback=read_load,
    default=1.3,
    show_default=True,
    metavar="N",
    help="Demand as a share of the capacity; 1 is all of it.",
)
@option(
    "--seeds",
    callback=read_seeds,
    default="1-5",
    show_default=True,
    metavar="LIST",
    help="Seeds to average over, each with its own order of tasks.",
)
@option("--departures", is_flag=True, help="Let tasks leave again, and average over time.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw the results and, for a small cluster, the final placement.",
)
def simulate(
    nodes: Path,
    tasks: Path,
    strategies: tuple[str, ...],
    load: float,
    seeds: list[int],
    departures: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Compare strategies on a simulated cluster.

    The code that places real jobs decides. Each seed shuffles the order in which tasks arrive; more
    tasks are drawn until the load is reached, and a task that fits nowhere is dropped. Tasks stay
    until the end, unless --departures is given.

    The files list the resources of nodes and the requests of tasks, with the usual names and units
    (name, cpu, memory, gpu, gpu_memory, gpu_model, count, ...), or are openb traces.
    """
    from gridhand.simulate.compare import chosen, compare
    from gridhand.simulate.inputs import read_nodes, read_tasks
    from gridhand.simulate.report import Setting, summary, text

    _check_plot(plot)
    cluster = read_nodes(nodes)
    asking = read_tasks(tasks, cluster)
    setting = Setting(cluster, asking, load, seeds, departures)
    with ReplayProgress() as progress:
        runs = compare(
            cluster, asking, chosen(strategies, cluster), load=load, seeds=seeds,
            departures=departures, progress=progress.show,
        )  # fmt: skip
    if plot is not None:
        from gridhand.simulate.plot import draw

        plot.write_bytes(draw(runs, setting))
    figures = summary(runs, setting)
    click.echo(json.dumps(figures, indent=2) if as_json else text(figures))


def _check_plot(plot: Path | None) -> None:
    """Raise now if the chart could not be written at the end."""
    from gridhand.core.errors import GridError, InvalidInput

    if plot is None:
        return
    if plot.suffix.lower() != ".png":
        raise InvalidInput("--plot", str(plot), "a file name that ends in .png")
    if not plot.absolute().parent.is_dir():
        raise InvalidInput("--plot", str(plot), "a file in a folder that exists")
    if find_spec("matplotlib") is None:
        raise GridError(
            "--plot needs matplotlib, which is not installed",
            hint="Install it with `pip install 'gridhand[plot]'`.",
        )


class ReplayProgress:
    """A progress bar on the terminal, shown after a second."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> ReplayProgress:
        return self

    def show(self, done: int, total: int) -> None:
        if self._bar is None:
            if not render.is_terminal(sys.stderr) or time.monotonic() - self._start < _SHOW_AFTER_S:
                return
            self._bar = click.progressbar(length=total, label="arrivals", file=sys.stderr)
            self._bar.__enter__()
        self._bar.length = total
        self._bar.update(done - self._bar.pos)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)
