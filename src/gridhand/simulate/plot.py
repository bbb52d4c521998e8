"""Plots the runs: allocation against load and, for a small cluster, its final state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gridhand.core.model.nodes import Node
from gridhand.simulate.panels import INK, QUIET, Panel, legend_of
from gridhand.simulate.replay import SMALL, ReplayRun
from gridhand.simulate.report import Setting, mean
from gridhand.simulate.tally import MEASURED

DPI = 150
_WIDTH = 11.0  # inches, like all below
_CURVES = 3.6
_TOP, _BETWEEN, _BOTTOM, _LEFT, _RIGHT = 0.75, 0.95, 0.35, 0.75, 0.3
_ROW, _PANEL_HEAD, _PANEL_GAP, _LEGEND_LINE = 0.3, 0.62, 0.25, 0.24
_SECTION = 0.3  # the line over the panels
_LINES = (
    "#0b6e99", "#d1495b", "#2f8f4e", "#e09f3e", "#7b4b94", "#3d3d3d", "#56b4d3", "#a0522d",
)  # fmt: skip
_STYLES = ("-", "--", "-.", ":")
_TITLES = {"gpu": "GPU", "cpu": "CPU", "memory": "Memory"}


def draw(runs: Mapping[str, Sequence[ReplayRun]], setting: Setting) -> bytes:
    """Return the picture as PNG. The final state is that of the first seed."""
    small = len(setting.nodes) <= SMALL
    layout = _Layout(len(runs), len(setting.nodes) if small else 0, _legend(runs) if small else [])
    figure = Figure(figsize=(_WIDTH, layout.height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(
        _RIGHT / _WIDTH,
        1 - 0.38 / layout.height,
        _title(setting),
        size=14,
        weight="bold",
        color=INK,
    )
    _draw_curves(figure.add_axes(layout.curves()), runs, setting)
    if small:
        _draw_panels(figure, layout, runs, setting)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    return picture.getvalue()


class _Layout:
    """The positions from top to bottom, as fractions of the figure."""

    def __init__(self, strategies: int, nodes: int, legend: list[tuple[str, str]]) -> None:
        self.legend = legend
        self.columns = 1 if strategies == 1 else 2
        rows = -(-strategies // self.columns)
        self._panel = nodes * _ROW + _PANEL_HEAD
        below = _BETWEEN + _SECTION + rows * (self._panel + _PANEL_GAP) if nodes else 0.4
        lines = -(-len(legend) // 3)
        self.height = _TOP + _CURVES + below + lines * _LEGEND_LINE + _BOTTOM
        self._nodes = nodes

    def curves(self) -> tuple[float, float, float, float]:
        return self._at(_LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, _CURVES)

    def panel(self, index: int) -> tuple[float, float, float, float]:
        row, column = divmod(index, self.columns)
        width = (_WIDTH - 2 * _RIGHT - (self.columns - 1) * 0.3) / self.columns
        top = self._panels_top() + row * (self._panel + _PANEL_GAP) + _PANEL_HEAD
        return self._at(_RIGHT + column * (width + 0.3), top, width, self._nodes * _ROW)

    def below_curves(self) -> float:
        """Return the height of the line above the panels."""
        return 1 - (self._panels_top() - _SECTION + 0.05) / self.height

    def legend_entry(self, index: int) -> tuple[float, float, float, float]:
        line, column = divmod(index, 3)
        top = self.height - _BOTTOM - (-(-len(self.legend) // 3) - line) * _LEGEND_LINE + 0.1
        width = (_WIDTH - 2 * _RIGHT) / 3
        return self._at(_RIGHT + column * width, top, width, 0.16)

    def _panels_top(self) -> float:
        return _TOP + _CURVES + _BETWEEN + _SECTION

    def _at(
        self, left: float, top: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        bottom = self.height - top - height
        return left / _WIDTH, bottom / self.height, width / _WIDTH, height / self.height


def _title(setting: Setting) -> str:
    nodes, gpus = len(setting.nodes), sum(len(node.gpus) for node in setting.nodes)
    of = f" with {gpus:,} GPUs" if gpus else ""
    seeds = f"mean of {len(setting.seeds)} seeds" if len(setting.seeds) > 1 else "one seed"
    what = "tasks that come and go" if setting.departures else "filled with tasks"
    return f"{nodes:,} node{'s' * (nodes != 1)}{of}, {what}, {seeds}"


# ---- the curves


def _draw_curves(axes: Axes, runs: Mapping[str, Sequence[ReplayRun]], setting: Setting) -> None:
    resource = _main_resource(runs)
    curves = {
        name: [
            100 * (mean(levels) or 0.0) for levels in zip(*_curves(found, resource), strict=True)
        ]
        for name, found in runs.items()
    }
    count = len(next(iter(curves.values())))
    # By load there is a level for 0 % and every percent; over time, for the end of each interval.
    xs = [100 * (n + 1) / count for n in range(count)] if setting.departures else range(count)
    for index, (name, levels) in enumerate(curves.items()):
        style = _STYLES[index % len(_STYLES)]
        color = _LINES[index % len(_LINES)]
        axes.plot(xs, levels, style, color=color, label=name, linewidth=2, alpha=0.9)
    if setting.departures:
        axes.axvspan(0, 100 / 3, color=QUIET, alpha=0.35, label="warm-up, not counted")
        axes.set_xlim(0, 100)
        axes.margins(y=0.2)  # room for the legend
        axes.set_xlabel(f"time, % of the run (load {100 * setting.load:g} %)")
    else:
        axes.plot(xs, xs, color="#9aa5ad", linewidth=1, linestyle=(0, (1, 2)), label="all placed")
        start = _interesting(curves)
        least = min(levels[start] for levels in curves.values())
        most = max(max(levels) for levels in curves.values())
        axes.set_xlim(start, max(count - 1, start + 1))
        axes.set_ylim(max(0.0, least - 2), min(101.0, most + max(2.0, 0.08 * (most - least))))
        axes.set_xlabel("load: asked for so far, % of what there is")
    axes.set_ylabel(f"{_TITLES[resource]} allocated, %")
    axes.grid(color=QUIET, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=True, framealpha=0.95, edgecolor=QUIET, fontsize=9)


def _main_resource(runs: Mapping[str, Sequence[ReplayRun]]) -> str:
    """Return GPUs if there are some, else CPU, else memory."""
    end = next(iter(runs.values()))[0].end
    return next((name for name in MEASURED if end[name] is not None), "cpu")


def _curves(runs: Sequence[ReplayRun], resource: str) -> list[list[float | None]]:
    return [run.curve[resource] for run in runs]


def _interesting(curves: Mapping[str, Sequence[float]]) -> int:
    """Return where to begin: up to there every strategy placed everything."""
    levels = list(zip(*curves.values(), strict=True))
    kept = (percent for percent, here in enumerate(levels) if percent - min(here) > 1)
    first = next(kept, len(levels) - 1)
    return max(0, (first - 15) // 10 * 10)


# ---- the cluster


def _legend(runs: Mapping[str, Sequence[ReplayRun]]) -> list[tuple[str, str]]:
    return legend_of([held for found in runs.values() for held in found[0].held])


def _draw_panels(
    figure: Figure, layout: _Layout, runs: Mapping[str, Sequence[ReplayRun]], setting: Setting
) -> None:
    numbers = "" if setting.departures else ". Numbers: the tasks in the order they arrived"
    figure.text(
        _RIGHT / _WIDTH,
        layout.below_curves(),
        f"What is held at the end, seed {setting.seeds[0]}{numbers}",
        size=11,
        weight="bold",
        color=INK,
    )
    colors = {what: color for color, what in layout.legend}
    for index, (name, found) in enumerate(runs.items()):
        panel = Panel(figure.add_axes(layout.panel(index)), _sorted(setting.nodes), colors)
        panel.draw(name, found[0], numbered=not setting.departures)
    for index, (color, what) in enumerate(layout.legend):
        axes = figure.add_axes(layout.legend_entry(index))
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.axvspan(0, 0.045, color=color)
        axes.text(0.06, 0.45, what, size=8, va="center", color=INK)


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.name)
