"""Reports the runs, averaged over the seeds: as data for JSON, and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gridhand.core.model.nodes import Node
from gridhand.simulate.inputs import SimulatedTask
from gridhand.simulate.replay import ReplayRun, percent_of
from gridhand.simulate.tally import MEASURED

_TITLES = {"gpu": "GPU", "cpu": "CPU", "memory": "memory"}
_MOST_COLUMNS = 14
_CAUSES = {
    "cpu": 0, "memory": 1, "disk": 2, "gpu": 3, "gpu_memory": 4, "gpu_model": 5, "node": 6
}  # fmt: skip


class Setting(NamedTuple):
    """The parameters of a simulation."""

    nodes: Sequence[Node]
    tasks: Sequence[SimulatedTask]
    load: float
    seeds: Sequence[int]
    departures: bool = False


def summary(runs: Mapping[str, Sequence[ReplayRun]], setting: Setting) -> dict[str, Any]:
    """Return everything that `--json` prints: fractions of 1, and means over the seeds."""
    return {
        "strategies": {name: _of_strategy(found, setting) for name, found in runs.items()},
        "nodes": len(setting.nodes),
        "gpus": sum(len(node.gpus) for node in setting.nodes),
        "tasks": len(setting.tasks),
        "load": setting.load,
        "seeds": list(setting.seeds),
        "departures": setting.departures,
    }


def _of_strategy(runs: Sequence[ReplayRun], setting: Setting) -> dict[str, Any]:
    allocation = _mean_level if setting.departures else _levels
    causes = {name for run in runs for name in run.failed_by}
    seconds = sum(run.seconds for run in runs)
    return {
        **{f"{name}_allocation": allocation(runs, name, setting.load) for name in MEASURED},
        "arrived": mean(run.arrived for run in runs),
        "failed": mean(run.failed for run in runs),
        "failed_by": {
            name: mean(run.failed_by[name] for run in runs)
            for name in sorted(causes, key=lambda name: (_CAUSES.get(name, 9), name))
        },
        "fragmentation": mean(run.fragmentation for run in runs),
        "decisions_per_second": sum(run.decisions for run in runs) / seconds if seconds else None,
    }


def _levels(runs: Sequence[ReplayRun], name: str, load: float) -> dict[str, Any]:
    last = percent_of(load)
    at = {percent: mean(run.curve[name][percent] for run in runs) for percent in _tens(last)}
    return {
        "at_100": at.get(100),
        "end": mean(run.end[name] for run in runs),
        "at": {str(percent): level for percent, level in at.items()},
    }


def _mean_level(runs: Sequence[ReplayRun], name: str, load: float) -> dict[str, Any]:
    return {"mean": mean(run.mean[name] for run in runs)}


def _tens(last: int) -> Iterable[int]:
    return range(10, last + 1, 10)


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# ---- tables


def text(found: Mapping[str, Any]) -> str:
    """Return the summary as a headline and tables."""
    parts = [_headline(found)]
    if not found["departures"]:
        parts.append(_by_load(found))
    parts.append(_by_strategy(found))
    notes = ["Failed: tasks that fitted nowhere, by what the node was short of that came nearest."]
    if any(one["fragmentation"] is not None for one in found["strategies"].values()):
        notes.append("Fragmented: idle GPU that a task of this mix cannot use, of all GPUs.")
    parts.append("\n".join(notes))
    return "\n\n".join(parts)


def _headline(found: Mapping[str, Any]) -> str:
    seeds = found["seeds"]
    runs = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    gpus = f" with {found['gpus']:,} GPUs" if found["gpus"] else ""
    how = "tasks come and go" if found["departures"] else "nothing leaves"
    return (
        f"{_counted(found['nodes'], 'node')}{gpus}, {_counted(found['tasks'], 'task')}, "
        f"load {100 * found['load']:g} %, {runs}; {how}"
    )


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _measured(found: Mapping[str, Any]) -> list[str]:
    """Return the resources that the cluster has."""
    key = "mean" if found["departures"] else "end"
    first = next(iter(found["strategies"].values()))
    return [name for name in MEASURED if first[f"{name}_allocation"][key] is not None]


def _by_load(found: Mapping[str, Any]) -> str:
    loads = _shown_loads(percent_of(found["load"]))
    rows = [["allocated, %", "at load", *map(str, loads), "end"]]
    for resource in _measured(found):
        title = _TITLES[resource]
        for name, one in found["strategies"].items():
            levels = one[f"{resource}_allocation"]
            at = [_percent(levels["at"][str(load)], 1) for load in loads]
            rows.append([title, name, *at, _percent(levels["end"], 1)])
            title = ""
    return _table(rows, left=2, gap=1)


def _shown_loads(last: int) -> list[int]:
    """Return every tenth percent, or fewer if a line has no room; always 100."""
    step = 10 * max(1, -(-last // 10 // _MOST_COLUMNS))
    loads = {*range(step, last + 1, step), *([100] if last >= 100 else [])}
    return sorted(loads)


def _by_strategy(found: Mapping[str, Any]) -> str:
    when = ["mean"] if found["departures"] else ["at_100", "end"]
    titles = {"mean": "mean", "at_100": "@100", "end": "end"}
    names = _measured(found) if found["departures"] else [*_measured(found)[:1]]
    columns = [(resource, moment) for resource in names for moment in when]
    heads = [f"{_TITLES[resource]} {titles[moment]}" for resource, moment in columns]
    rows = [["strategy", *heads, "failed", "fragmented", "decisions/s", "failed for want of"]]
    for name, one in found["strategies"].items():
        levels = [
            _percent(one[f"{resource}_allocation"][moment], 2) for resource, moment in columns
        ]
        speed = one["decisions_per_second"]
        causes = ", ".join(f"{cause} {_number(n)}" for cause, n in one["failed_by"].items())
        rows.append(
            [
                name, *levels, f"{_number(one['failed'])} of {_number(one['arrived'])}",
                _percent(one["fragmentation"], 2), "–" if speed is None else f"{speed:,.0f}",
                causes or "–",
            ]
        )  # fmt: skip
    return _table(rows, left=1, last_left=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _percent(level: float | None, decimals: int) -> str:
    return "–" if level is None else f"{100 * level:.{decimals}f}"


def _table(
    rows: Sequence[Sequence[str]], *, left: int, gap: int = 2, last_left: bool = False
) -> str:
    """Lay out columns of minimal width: text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width)
            if column < left or (last_left and column == len(row) - 1)
            else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join([*cells[:left], (" " * gap).join(cells[left:])]).rstrip())
    return "\n".join(lines)
