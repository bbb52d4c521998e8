"""HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return an HTML table, or only its title if there are no rows."""
    lines = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    above = f"<p>{escape(title)}</p>" if title else ""
    head = f"<tr>{_cells('th', heads)}</tr>" if any(heads) else ""
    return f"{above}<table>{head}{lines}</table>" if lines else above


def sheet(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values; None and empty values are left out."""
    return table((), [(name, value) for name, value in rows if value not in (None, "")], title)


def _cells(kind: str, row: Sequence[object]) -> str:
    return "".join(f"<{kind}>{escape(str(cell))}</{kind}>" for cell in row)
