"""`grid simulate`: what would become of these tasks on those nodes, by one strategy or another."""

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

_SHOW_AFTER_S = 1.0
_MOST_SEEDS = 1000
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_seeds(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    """Numbers as people list them: `7`, `1-5` or `1,4,9`."""
    seeds: dict[int, None] = {}
    for part in value.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part, re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not 0 <= last - first < _MOST_SEEDS:
            raise click.BadParameter(f"{value!r} is not a list of seeds such as 7, 1-5 or 1,4,9")
        seeds.update(dict.fromkeys(range(first, last + 1)))
    if len(seeds) > _MOST_SEEDS:
        raise click.BadParameter(f"{value!r} is more than {_MOST_SEEDS} seeds")
    return list(seeds)


def read_load(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if value != value:  # only nan does not equal itself, and no range keeps it out
        raise click.BadParameter("nan is not a load")
    return value


@click.command()
@click.option("--nodes", required=True, type=_FILE, help="The nodes: CSV, YAML or openb.")
@click.option("--tasks", required=True, type=_FILE, help="The tasks: CSV, YAML or openb.")
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME",
    help="How nodes are ranked; may be repeated, and `all` is every one there is.",
)
@click.option(
    "--load",
    type=click.FloatRange(0, 100, min_open=True),
    callback=read_load,
    default=1.3,
    show_default=True,
    help="How much is asked for in all, 1 being all there is.",
)
@click.option(
    "--seeds",
    callback=read_seeds,
    default="1-5",
    show_default=True,
    metavar="LIST",
    help="Orders of arrival to average over: 7, 1-5 or 1,4,9.",
)
@click.option("--departures", is_flag=True, help="Let tasks come and go, and average over time.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw the allocation and, of a small cluster, who has what at the end.",
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
    """Replay tasks, and compare strategies.

    The very code that places real jobs decides. Tasks arrive in an order that each seed shuffles
    anew, more of them are drawn until the load is reached, and one that fits nowhere is dropped.
    Nothing leaves, unless --departures lets tasks come and go.

    Files are lists of what a node has and of what a task asks for, in the names and units that are
    used everywhere (name, cpu, memory, gpu, gpu_memory, gpu_model, count, ...), or those of the
    openb traces.
    """
    from gridhand.simulate.compare import chosen, compare
    from gridhand.simulate.inputs import read_nodes, read_tasks
    from gridhand.simulate.report import Setting, summary, text

    _check_plot(plot)
    cluster = read_nodes(nodes)
    asking = read_tasks(tasks, cluster)
    setting = Setting(cluster, asking, load, seeds, departures)
    with Progress() as progress:
        runs = compare(
            cluster, asking, chosen(strategies, cluster), load=load, seeds=seeds,
            departures=departures, progress=progress.show,
        )  # fmt: skip
    if plot is not None:
        from gridhand.simulate.plot import draw

        plot.write_bytes(draw(runs, setting))
    found = summary(runs, setting)
    click.echo(json.dumps(found, indent=2) if as_json else text(found))


def _check_plot(plot: Path | None) -> None:
    """What would fail at the end fails now."""
    from gridhand.core.errors import GridError, InvalidInput

    if plot is None:
        return
    if plot.suffix.lower() != ".png":
        raise InvalidInput("--plot", str(plot), "a file name that ends in .png")
    if not plot.absolute().parent.is_dir():
        raise InvalidInput("--plot", str(plot), "a file in a folder that is there")
    if find_spec("matplotlib") is None:
        raise GridError(
            "--plot needs matplotlib, which is not installed",
            hint="Install it with `pip install 'gridhand[plot]'`.",
        )


class Progress:
    """A bar on the terminal, for those who have waited for a second."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def show(self, done: int, total: int) -> None:
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._start < _SHOW_AFTER_S:
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
