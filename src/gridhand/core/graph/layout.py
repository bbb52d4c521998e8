"""GraphLayout: positions for drawing a graph in layers, each function below its arguments.

A link over several layers has a bend in each of them, so that it does not run behind boxes. The
items of a layer are ordered by the positions of their neighbours, in a few sweeps down and up:
this gives few crossings, not the fewest possible, and the same picture every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

_SWEEPS = 4
_MOST_BENDS = 5_000  # with more bends links are drawn straight: nobody can follow so many
_GAP = 24.0


class Bend(NamedTuple):
    """The point where a link between two functions passes through a layer."""

    above: str
    below: str
    layer: int


Item = str | Bend
Layers = list[list[Item]]


class GraphLayout(NamedTuple):
    """The layers from top to bottom, the x of the middle of each item, and the links."""

    layers: Layers
    middles: dict[Item, float]
    links: list[list[Item]]  # each a path from item to item


def layout(needs: Mapping[str, Sequence[str]], widths: Mapping[str, float]) -> GraphLayout:
    """Lay out functions, given the ids of the functions each takes results of."""
    levels = _levels(needs)
    layers: Layers = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for id, level in levels.items():
        layers[level].append(id)
    links = _links(needs, levels)
    for path in links:
        for item in path:
            if isinstance(item, Bend):
                layers[item.layer].append(item)
    near = _near(links)
    for sweep in range(_SWEEPS):
        _sort(layers, near, down=sweep % 2 == 0)
    return GraphLayout(layers, _middles(layers, near, widths), links)


def _levels(needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the layer of each function, below all its needs. A cycle starts with its first."""
    levels: dict[str, int] = {}
    for first in needs:
        path = [(first, iter(needs[first]))]
        entered = {first}
        while path:
            id, rest = path[-1]
            after = next((one for one in rest if one not in levels and one not in entered), None)
            if after is None:
                path.pop()
                entered.discard(id)
                above = [levels[one] for one in needs[id] if one in levels]
                levels.setdefault(id, max(above, default=-1) + 1)
            else:
                entered.add(after)
                path.append((after, iter(needs[after])))
    return levels


def _links(needs: Mapping[str, Sequence[str]], levels: Mapping[str, int]) -> list[list[Item]]:
    pairs = [(above, below) for below in needs for above in dict.fromkeys(needs[below])]
    bends = sum(max(0, levels[below] - levels[above] - 1) for above, below in pairs)
    if bends > _MOST_BENDS:
        return [[above, below] for above, below in pairs]
    return [
        [
            above,
            *(Bend(above, below, level) for level in range(levels[above] + 1, levels[below])),
            below,
        ]
        for above, below in pairs
    ]


class _Near(NamedTuple):
    above: dict[Item, list[Item]]
    below: dict[Item, list[Item]]


def _near(links: Sequence[Sequence[Item]]) -> _Near:
    near = _Near({}, {})
    for path in links:
        for upper, lower in pairwise(path):
            near.below.setdefault(upper, []).append(lower)
            near.above.setdefault(lower, []).append(upper)
    return near


def _sort(layers: Layers, near: _Near, *, down: bool) -> None:
    neighbours = near.above if down else near.below
    places = {item: place for layer in layers for place, item in enumerate(layer)}
    for layer in layers if down else reversed(layers):
        wanted = {
            item: _mean([places[one] for one in neighbours.get(item, ())], places[item])
            for item in layer
        }
        layer.sort(key=wanted.__getitem__)
        places |= {item: place for place, item in enumerate(layer)}


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _middles(layers: Layers, near: _Near, widths: Mapping[str, float]) -> dict[Item, float]:
    middles: dict[Item, float] = {}
    for layer in layers:
        _spread(layer, dict.fromkeys(layer, 0.0), widths, middles)
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        neighbours = near.above if down else near.below
        for layer in layers if down else reversed(layers):
            wanted = {
                item: _mean([middles[one] for one in neighbours.get(item, ())], middles[item])
                for item in layer
            }
            _spread(layer, wanted, widths, middles)
    left = min((middles[item] - _half(item, widths) for item in middles), default=0.0)
    return {item: middle - left for item, middle in middles.items()}


def _spread(
    layer: Sequence[Item],
    wanted: Mapping[Item, float],
    widths: Mapping[str, float],
    middles: dict[Item, float],
) -> None:
    """Place each item where it is wanted, in order and without overlaps."""
    free = float("-inf")
    for item in layer:
        half = _half(item, widths)
        middles[item] = max(wanted[item], free + half)
        free = middles[item] + half + _GAP
    # Items were pushed only to the right: shift all, so that they are in place on average.
    off = _mean([middles[item] - wanted[item] for item in layer], 0.0)
    for item in layer:
        middles[item] -= off


def _half(item: Item, widths: Mapping[str, float]) -> float:
    return widths[item] / 2 if isinstance(item, str) else 2.0
