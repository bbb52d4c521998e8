"""Pictures of a graph: SVG and Mermaid text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from gridhand.core.graph.function import Collocated, Function
from gridhand.core.graph.layout import Bend, Item, layout

_CHARACTER = 7.2  # width of a character in pixels, wide enough for most fonts
_LINE = 16
_SPACE = 44  # between layers
_EDGE = 12
_LONGEST = 40

# All selectors start with our class: styles apply to the whole page that embeds the SVG.
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
    """SVG text that a notebook shows as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def draw(functions: Mapping[str, Function]) -> Drawing:
    """Draw the functions as boxes, each below those whose results it takes."""
    sheet = _Sheet(functions)
    links = "".join(sheet.link(path) for path in sheet.links)
    boxes = "".join(sheet.box(function) for function in functions.values())
    width, height = sheet.width + 2 * _EDGE, sheet.height + 2 * _EDGE
    return Drawing(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gridhand-graph" role="img"'
        f' aria-label="a graph of {len(functions)} functions" width="{width:.0f}"'
        f' height="{height:.0f}" viewBox="{-_EDGE} {-_EDGE} {width:.0f} {height:.0f}">'
        f"<style>{_STYLE}</style>{_ARROW}{links}{boxes}</svg>"
    )


class _Sheet:
    """The positions of boxes and links in pixels."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.texts = {id: _lines(function) for id, function in functions.items()}
        self.widths = {id: _CHARACTER * max(map(len, t)) + 24 for id, t in self.texts.items()}
        layers, self.middles, self.links = layout(_needs(functions), self.widths)
        self.tops: dict[Item, float] = {}
        self.bottoms: dict[Item, float] = {}
        top = 0.0
        for layer in layers:
            bottom = top + max(self._height(item) for item in layer)
            for item in layer:
                self.tops[item] = top
                self.bottoms[item] = bottom if isinstance(item, Bend) else top + self._height(item)
            top = bottom + _SPACE
        self.height = max(0.0, top - _SPACE)
        self.width = max(
            (middle + self.widths.get(str(item), 4.0) / 2 for item, middle in self.middles.items()),
            default=0.0,
        )

    def _height(self, item: Item) -> float:
        return 0.0 if isinstance(item, Bend) else _LINE * len(self.texts[item]) + 12

    def box(self, function: Function) -> str:
        id = function.id
        x, y, width = self.middles[id], self.tops[id], self.widths[id]
        lines = "".join(
            f'<text x="{x:.1f}" y="{y + 18 + _LINE * number:.1f}" class="line-{number}">'
            f"{escape(text)}</text>"
            for number, text in enumerate(self.texts[id])
        )
        return (
            f'<g class="{function.type}"><title>{escape(id)} ({function.type})</title>'
            f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}"'
            f' height="{self._height(id):.1f}" rx="6"/>{lines}</g>'
        )

    def link(self, path: Sequence[Item]) -> str:
        """Draw a link from the bottom of its first item to the top of its last."""
        x, y = self.middles[path[0]], self.bottoms[path[0]]
        drawn = [f"M{x:.1f} {y:.1f}"]
        for item in path[1:]:
            to_x, to_y = self.middles[item], self.tops[item]
            half = (y + to_y) / 2
            drawn.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
            x, y = to_x, self.bottoms[item]
            if isinstance(item, Bend):
                drawn.append(f"V{y:.1f}")
        return f'<path d="{"".join(drawn)}" marker-end="url(#gridhand-arrow)"/>'


def _needs(functions: Mapping[str, Function]) -> dict[str, list[str]]:
    """Return the known arguments of each function: an unfinished graph can be drawn, too."""
    return {
        id: [arg for arg in function.args if arg in functions] for id, function in functions.items()
    }


def _lines(function: Function) -> list[str]:
    """Return the lines in a box: id, type, cost and node."""
    resources, node = function.asked().resources, function.node
    cost = str(resources) if resources else ""
    where = f"with {node.id}" if isinstance(node, Collocated) else f"on {node}"
    kind = "" if function.type == "regular" else function.type
    lines = [function.id, kind, cost, where if node else ""]
    return [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in lines if text]


# ---- Mermaid

_SHAPES = {"regular": '["{}"]', "inline": '(["{}"])', "input": '[/"{}"/]'}
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_TAKEN = {
    "call", "class", "classdef", "click", "default", "end", "flowchart", "graph", "href",
    "linkstyle", "o", "style", "subgraph", "x",
}  # fmt: skip


def mermaid(functions: Mapping[str, Function]) -> str:
    """Return the functions and links as Mermaid text; dotted links join collocated functions."""
    names = _names(functions)
    lines = ["graph TD"]
    for id, function in functions.items():
        label = "<br/>".join(map(_quoted, _lines(function)))
        lines.append(f"  {names[id]}{_SHAPES[function.type].format(label)}")
    for id, args in _needs(functions).items():
        lines += [f"  {names[arg]} --> {names[id]}" for arg in dict.fromkeys(args)]
    for id, function in functions.items():
        node = function.node
        if isinstance(node, Collocated) and node.id in names:
            lines.append(f"  {names[node.id]} -.- {names[id]}")
    return "\n".join(lines) + "\n"


def _names(functions: Mapping[str, Function]) -> dict[str, str]:
    """Return names that Mermaid can read: the ids themselves if they are safe, else numbers."""
    names: dict[str, str] = {}
    for number, id in enumerate(functions):
        safe = _PLAIN.fullmatch(id) and id.lower() not in _TAKEN
        names[id] = id if safe else f"_{number}"  # no safe id begins with an underscore
    return names


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
