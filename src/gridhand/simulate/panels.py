"""Draws a small cluster: a row for each node, devices as boxes, CPU and memory as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from gridhand.core.model.gpus import Gpu
from gridhand.core.model.nodes import Node
from gridhand.core.model.resources import UNIT
from gridhand.simulate.replay import Held, ReplayRun

INK = "#22303a"
QUIET = "#dfe5e9"
_IDLE = "#eef1f3"
_EDGE = "#b4bfc6"
_COLORS = (
    "#4477aa", "#e0703c", "#2e9e6b", "#cdb53a", "#a8518a", "#4bb3d1", "#b5493f", "#7f8fd0",
    "#8aa33b", "#8a7a66",
)  # fmt: skip
_SHADES = (0.0, 0.28, 0.5)  # towards white, in turn, to tell equal tasks apart
_NAME, _DEVICES, _BAR, _GAP = 2.0, 6.0, 2.4, 0.25
_HEIGHT = 0.74
_NARROW = 0.22  # too narrow for a number

Piece = tuple[Held, float, float]  # from and to, as parts of the whole


def legend_of(held: Sequence[Held]) -> list[tuple[str, str]]:
    """Return a colour for each distinct request, the largest first; none if there are too many."""
    amounts = {describe(one): one.asked for one in held}

    def size(what: str) -> tuple[int, int, str]:
        asked = amounts[what]
        gpus = asked.gpu.devices * (asked.gpu.share or 1) if asked.gpu else 0
        return -gpus, -asked.amounts["cpu"], what

    found = sorted(amounts, key=size)
    return list(zip(_COLORS, found, strict=False)) if len(found) <= len(_COLORS) else []


def describe(held: Held) -> str:
    """Return what the task requested, in words."""
    kind = held.asked.gpu.kind() if held.asked.gpu else ""
    return f"{held.asked.resources}{f' on {kind}' if kind else ''}"


class Panel:
    """Draw the cluster under one strategy."""

    def __init__(self, axes: Axes, nodes: Sequence[Node], colors: Mapping[str, str]) -> None:
        self._axes, self._nodes, self._colors = axes, nodes, colors
        most = max(len(node.gpus) for node in nodes)
        self._slot = min(_DEVICES / most, _DEVICES / 2) if most else 0.0
        self._bars: dict[str, float] = {}
        self._numbered = True
        left = _NAME + (most * self._slot + _GAP if most else 0.0)
        for name in ("cpu", "memory"):
            if any(node.capacity[name] for node in nodes):
                self._bars[name] = left
                left += _BAR + _GAP
        axes.set_xlim(0, max(left - _GAP, _NAME + 1) + 0.03)  # and half a line
        axes.set_ylim(len(nodes), 0)
        axes.set_axis_off()

    def draw(self, strategy: str, run: ReplayRun, *, numbered: bool) -> None:
        self._numbered = numbered
        level = run.end["gpu"] if run.end["gpu"] is not None else run.end["cpu"]
        what = "GPU" if run.end["gpu"] is not None else "CPU"
        ended = f"{what} {100 * (level or 0):.1f} % allocated, "
        ended += f"{run.failed} of {run.arrived} tasks failed"
        self._axes.text(0, -0.95, strategy, size=11, weight="bold", color=INK, va="bottom")
        right = self._axes.get_xlim()[1]
        self._axes.text(right, -0.95, ended, size=9, color=INK, va="bottom", ha="right")
        self._heads()
        for row, node in enumerate(self._nodes):
            held = [one for one in run.held if one.allocation.node == node.name]
            held.sort(key=lambda one: one.number)
            self._node(row, node, held)

    def _heads(self) -> None:
        heads = dict(self._bars)
        if self._slot:
            heads["GPUs"] = _NAME
        for name, left in heads.items():
            title = {"cpu": "CPU"}.get(name, name)
            self._axes.text(left, -0.12, title, size=7.5, color="#6b7a84", va="bottom")

    def _node(self, row: int, node: Node, held: Sequence[Held]) -> None:
        shown = node.name if len(node.name) <= 16 else f"{node.name[:15]}…"
        models = {gpu.model for gpu in node.gpus if gpu.model}
        middle = row + 0.5
        self._axes.text(0, middle, shown, size=8, color=INK, va="center")
        if len(models) == 1:
            model = min(models)[:9]
            self._axes.text(
                _NAME - 0.12, middle, model, size=6.5, color="#6b7a84", va="center", ha="right"
            )
        for index, gpu in enumerate(node.gpus):
            left = _NAME + index * self._slot
            self._bar(row, left, self._slot - 0.08, _on_device(gpu, held))
        for name, left in self._bars.items():
            if node.capacity[name]:
                self._bar(row, left, _BAR, _of_amount(node, name, held))

    def _bar(self, row: int, left: float, width: float, pieces: Sequence[Piece]) -> None:
        top = row + (1 - _HEIGHT) / 2
        self._axes.add_patch(Rectangle((left, top), width, _HEIGHT, facecolor=_IDLE, zorder=1))
        for held, start, end in pieces:
            at, wide = left + width * start, width * (end - start)
            color = self._color(held)
            self._axes.add_patch(
                Rectangle(
                    (at, top), wide, _HEIGHT, facecolor=color, edgecolor="white", lw=0.7, zorder=2
                )
            )
            if self._numbered and wide >= _NARROW * len(str(held.number)):
                ink = "white" if _dark(color) else INK
                self._axes.text(
                    at + wide / 2, row + 0.52, str(held.number), size=6.5, color=ink, ha="center",
                    va="center", zorder=3,
                )  # fmt: skip
        self._axes.add_patch(
            Rectangle((left, top), width, _HEIGHT, fill=False, edgecolor=_EDGE, lw=0.8, zorder=4)
        )

    def _color(self, held: Held) -> tuple[float, float, float]:
        base = self._colors.get(describe(held)) or _COLORS[held.number % len(_COLORS)]
        shade = _SHADES[held.number % len(_SHADES)]
        red, green, blue = (part + (1 - part) * shade for part in to_rgb(base))
        return red, green, blue


def _on_device(gpu: Gpu, held: Sequence[Held]) -> list[Piece]:
    """Return the part of a device that each task holds: its share, or else of its memory."""
    pieces: list[Piece] = []
    start = 0.0
    for one in held:
        for hold in one.allocation.devices:
            if hold.device == gpu.id:
                part = hold.share / UNIT or hold.memory_bytes / max(1, gpu.memory_bytes)
                pieces.append((one, start, start + part))
                start += part
    return pieces


def _of_amount(node: Node, name: str, held: Sequence[Held]) -> list[Piece]:
    pieces: list[Piece] = []
    start = 0.0
    for one in held:
        part = one.allocation.amounts[name] / node.capacity[name]
        if part:
            pieces.append((one, start, start + part))
            start += part
    return pieces


def _dark(color: tuple[float, float, float]) -> bool:
    red, green, blue = color
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.62
