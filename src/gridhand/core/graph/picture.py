"""Graphs as pictures: SVG that we write ourselves, and Mermaid text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from gridhand.core.graphs import Collocated, Function
from gridhand.core.layers import Bend, Item, layout

_CHARACTER = 7.2  # how wide one is, in a font that is no wider than most
_LINE = 16
_SPACE = 44  # between layers
_EDGE = 12
_LONGEST = 40

# The names begin with ours: in a page, styles hold for all that is in it.
_STYLE = (
    ".gridhand-graph text{font:12px system-ui,sans-serif;fill:#1d2733;text-anchor:middle}"
    ".gridhand-graph text:not(.line-0){fill:#5b6b7b;font-size:11px}"
    ".gridhand-graph rect{fill:#eef4fb;stroke:#4a6fa5;stroke-width:1.2}"
    ".gridhand-graph .inline rect{fill:#fff;stroke-dasharray:4 3}"
    ".gridhand-graph .input rect{fill:#f3f7e9;stroke:#7a9a3a}"
    ".gridhand-graph path{stroke:#7b8a99;fill:none}"
    ".gridhand-graph marker path{fill:#7b8a99;stroke:none}"
)
_ARROW = (
    '<defs><marker id="gridhand-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
    ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)


class Drawing(str):
    """SVG text, which a notebook shows as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def draw(functions: Mapping[str, Function]) -> Drawing:
    """The functions as boxes, each below those whose results it takes."""
    sheet = _Sheet(functions)
    links = "".join(sheet.link(way) for way in sheet.links)
    boxes = "".join(sheet.box(one) for one in functions.values())
    width, height = sheet.width + 2 * _EDGE, sheet.height + 2 * _EDGE
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gridhand-graph" role="img"'
        f' aria-label="a graph of {len(functions)} functions" width="{width:.0f}"'
        f' height="{height:.0f}" viewBox="{-_EDGE} {-_EDGE} {width:.0f} {height:.0f}">'
        f"<style>{_STYLE}</style>{_ARROW}{links}{boxes}</svg>"
    )


class _Sheet:
    """Where everything is, in pixels."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.texts = {id: _lines(one) for id, one in functions.items()}
        self.widths = {id: _CHARACTER * max(map(len, t)) + 24 for id, t in self.texts.items()}
        layers, self.middles, self.links = layout(_needs(functions), self.widths)
        self.tops: dict[Item, float] = {}
        self.bottoms: dict[Item, float] = {}
        top = 0.0
        for layer in layers:
            bottom = top + max(self._tall(item) for item in layer)
            for item in layer:
                self.tops[item] = top
                self.bottoms[item] = bottom if isinstance(item, Bend) else top + self._tall(item)
            top = bottom + _SPACE
        self.height = max(0.0, top - _SPACE)
        self.width = max(
            (middle + self.widths.get(str(item), 4.0) / 2 for item, middle in self.middles.items()),
            default=0.0,
        )

    def _tall(self, item: Item) -> float:
        return 0.0 if isinstance(item, Bend) else _LINE * len(self.texts[item]) + 12

    def box(self, one: Function) -> str:
        x, y, width = self.middles[one.id], self.tops[one.id], self.widths[one.id]
        lines = "".join(
            f'<text x="{x:.1f}" y="{y + 18 + _LINE * number:.1f}" class="line-{number}">'
            f"{escape(text)}</text>"
            for number, text in enumerate(self.texts[one.id])
        )
        return (
            f'<g class="{one.type}"><title>{escape(one.id)} ({one.type})</title>'
            f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}"'
            f' height="{self._tall(one.id):.1f}" rx="6"/>{lines}</g>'
        )

    def link(self, way: Sequence[Item]) -> str:
        """From the bottom of the first to the top of the last, upright through the bends."""
        x, y = self.middles[way[0]], self.bottoms[way[0]]
        drawn = [f"M{x:.1f} {y:.1f}"]
        for item in way[1:]:
            to_x, to_y = self.middles[item], self.tops[item]
            half = (y + to_y) / 2
            drawn.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
            x, y = to_x, self.bottoms[item]
            if isinstance(item, Bend):
                drawn.append(f"V{y:.1f}")
        return f'<path d="{"".join(drawn)}" marker-end="url(#gridhand-arrow)"/>'


def _needs(functions: Mapping[str, Function]) -> dict[str, list[str]]:
    """What each takes the results of. A graph that is not finished can be drawn, too."""
    return {id: [arg for arg in one.args if arg in functions] for id, one in functions.items()}


def _lines(one: Function) -> list[str]:
    """What is written in its box: who it is, what it costs, where it goes."""
    cost = str(one.asked().resources) if one.asked().resources else ""
    where = f"with {one.node.id}" if isinstance(one.node, Collocated) else f"on {one.node}"
    kind = "" if one.type == "regular" else one.type
    lines = [one.id, kind, cost, where if one.node else ""]
    return [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in lines if text]


# ---- Mermaid

_SHAPES = {"regular": '["{}"]', "inline": '(["{}"])', "input": '[/"{}"/]'}
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_TAKEN = {
    "call", "class", "classdef", "click", "default", "end", "flowchart", "graph", "href",
    "linkstyle", "o", "style", "subgraph", "x",
}  # fmt: skip


def mermaid(functions: Mapping[str, Function]) -> str:
    """The functions and their links as text; dotted ones join those that share a node."""
    names = _names(functions)
    lines = ["graph TD"]
    for id, one in functions.items():
        label = "<br/>".join(map(_quoted, _lines(one)))
        lines.append(f"  {names[id]}{_SHAPES[one.type].format(label)}")
    for id, args in _needs(functions).items():
        lines += [f"  {names[arg]} --> {names[id]}" for arg in dict.fromkeys(args)]
    for id, one in functions.items():
        if isinstance(one.node, Collocated) and one.node.id in names:
            lines.append(f"  {names[one.node.id]} -.- {names[id]}")
    return "\n".join(lines) + "\n"


def _names(functions: Mapping[str, Function]) -> dict[str, str]:
    """Ids as Mermaid can read them: as they are where that is safe, else numbered."""
    names: dict[str, str] = {}
    for number, id in enumerate(functions):
        safe = _PLAIN.fullmatch(id) and id.lower() not in _TAKEN
        names[id] = id if safe else f"_{number}"  # which no plain one begins with
    return names


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
