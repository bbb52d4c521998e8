"""Tables, amounts and times for people to read.

Colours and frames are for terminals only; output to a file or a pipe is plain and aligned. Texts
come from users, so control characters are replaced before they are printed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import click

GB = 10**9
_ESCAPE = re.compile(r"\033\[[0-9;]*m")
_PIECES = re.compile(r"\033\[[0-9;]*m|.", re.DOTALL)
_RESET = "\033[0m"
_GAP = "  "  # between two columns
_SHORTENED = 12  # the least that is left of a column
_LAST = 20  # the least that is shown of the last column
BYTES = ("memory", "disk", "gpu_memory")
_COLOURS = {
    "queued": "yellow",
    "running": "green",
    "succeeded": "bright_black",
    "failed": "red",
    "cancelled": "bright_black",
    "lost": "red",
    "up": "green",
    "suspect": "yellow",
    "down": "red",
    "draining": "yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}


def on_terminal() -> bool:
    return is_terminal(sys.stdout)


def is_terminal(stream: IO[str] | None) -> bool:
    """Return whether a standard stream is a terminal; one that the caller has closed is None."""
    return stream is not None and stream.isatty()


def coloured(text: str, word: str | None = None) -> str:
    """Return the text in the colour of `word`, or of itself, where colours are wanted."""
    colour = _COLOURS.get(word or text.strip())
    if colour is None or not on_terminal() or os.environ.get("NO_COLOR"):
        return text
    return text if os.environ.get("TERM") == "dumb" else click.style(text, fg=colour)


def print_json(value: object) -> None:
    click.echo(json.dumps(_for_scripts(value), indent=2))


def _for_scripts(value: object) -> object:
    """Return a reply without its `row`, which is the library's own encoding and may change."""
    if isinstance(value, list):
        return [_for_scripts(item) for item in value]
    return {k: v for k, v in value.items() if k != "row"} if isinstance(value, dict) else value


def clean(value: object) -> str:
    """Return the value on one line, without control characters."""
    return "".join(c if c.isprintable() else "�" for c in " ".join(str(value).split()))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: str = "",
    width: int | None = None,
) -> list[str]:
    """Return lines with aligned columns; columns named in `right` are aligned to the right.

    If they are wider than `width`, columns that say nothing are left out, and a long one is
    shortened. The end of a line may still have to be clipped.
    """
    texts = [list(head), *([clean(cell) for cell in row] for row in rows)]
    texts = texts if width is None else _narrowed(texts, width, right.split(","))
    columns = [
        _aligned(column, column[0] in right.split(",")) for column in zip(*texts, strict=True)
    ]
    return [_GAP.join(line).rstrip() for line in zip(*columns, strict=True)]


def _narrowed(texts: list[list[str]], width: int, numbers: Sequence[str]) -> list[list[str]]:
    """Return the cells without columns of dashes, and with the widest of the middle shortened.

    A number that is cut would be another one.
    """
    columns = list(zip(*texts, strict=True))
    if _excess(columns, width) > 0 and len(texts) > 1:
        columns = [column for column in columns if set(column[1:]) != {"-"}]
    middle = [n for n in range(1, len(columns) - 1) if columns[n][0] not in numbers]
    if (excess := _excess(columns, width)) > 0 and middle:
        widest = max(middle, key=lambda index: _widest(columns[index]))
        most = max(_SHORTENED, _widest(columns[widest]) - excess)
        columns[widest] = tuple(clipped(cell, most) for cell in columns[widest])
    return [list(row) for row in zip(*columns, strict=True)]


def _excess(columns: Sequence[Sequence[str]], width: int) -> int:
    """Return by how much the columns are too wide, if of the last only the beginning is shown."""
    *widths, last = map(_widest, columns)
    return sum(widths) + len(_GAP) * len(widths) + min(last, _LAST) - width


def _widest(column: Sequence[str]) -> int:
    return max(map(width_of, column))


def _aligned(column: Sequence[str], right: bool) -> list[str]:
    """Return the cells with spaces up to the widest; they are not coloured, so they can go."""
    width = _widest(column)
    spaces = [" " * (width - width_of(cell)) for cell in column]
    shown = [column[0], *map(coloured, column[1:])]
    pairs = zip(spaces, shown, strict=True) if right else zip(shown, spaces, strict=True)
    return ["".join(pair) for pair in pairs]


def width_of(text: str) -> int:
    """Return how many columns of a terminal the text takes: wide characters take two."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    from unicodedata import category, east_asian_width

    if category(character) in ("Mn", "Me", "Cf"):  # drawn over or into the one before
        return 0
    return 2 if east_asian_width(character) in ("W", "F") else 1


def clipped(line: str, columns: int) -> str:
    """Return the line cut to so many columns; colours take none, and are ended."""
    plain = _ESCAPE.sub("", line) if "\033" in line else line
    if width_of(plain) <= columns:
        return line
    kept, left = "", columns - 1  # the last column is for the mark
    for piece in _PIECES.findall(line):
        if not piece.startswith("\033"):
            left -= _columns(piece)
            if left < 0:
                break
        kept += piece
    return f"{kept}{_RESET if plain is not line else ''}…"


def terminal_width() -> int | None:
    """Return how many columns the terminal has, if there is one."""
    if not on_terminal():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def fitted(lines: Iterable[str]) -> list[str]:
    """Return the lines cut to the width of the terminal, if there is one."""
    width = terminal_width()
    return list(lines) if width is None else [clipped(line, width) for line in lines]


def fitted_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], right: str = ""
) -> list[str]:
    """Return a table that fits into the terminal, if there is one."""
    return fitted(table(head, rows, right, terminal_width()))


def number(value: float, places: int = 4) -> str:
    """Return the number without trailing zeros: 2, 0.5."""
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rounded_down(value: float, unit: int, places: int) -> str:
    """Return the value in units, rounded down, so that a request for the shown amount fits."""
    parts = round(value * 10_000)  # no amount has more than four decimals
    whole, rest = divmod(parts * 10**places // (10_000 * unit), 10**places)
    return f"{whole}.{rest:0{places}}"


def size(amount: float, *, up: bool = False) -> str:
    """Return bytes in a suitable unit, such as 1.5 GB. Peaks are rounded `up`, the rest down."""
    for unit, name in ((10**12, "TB"), (GB, "GB"), (10**6, "MB"), (10**3, "kB")):
        if amount >= unit:
            hundredths = -(-int(amount) * 100 // unit) if up else int(amount) * 100 // unit
            return f"{number(hundredths / 100, 2)} {name}"
    return f"{number(amount, 0)} B"


def amount(name: str, value: float) -> str:
    return size(value) if name in BYTES else number(value)


def amounts(values: Mapping[str, Any]) -> str:
    """Return amounts on one line: `2 cpu, 4 GB memory`."""
    parts = [f"{amount(name, value)} {name}" for name, value in values.items()
            if isinstance(value, int | float)]  # fmt: skip
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """Return a duration as squeue shows it: 0:07, 2:13:07, 3-02:13:07."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    hours, minutes, left = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def moment(text: str | None) -> float | None:
    """Return the seconds since 1970 of a time of the API."""
    if text is None:
        return None
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def local_time(text: str | None) -> str:
    """Return a time of the API in local time."""
    if text is None:
        return "-"
    from datetime import datetime

    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def bar(part: float, width: int = 20) -> str:
    """Return a bar that shows a fraction on a terminal."""
    filled = round(min(1.0, max(0.0, part)) * width * 8)
    whole, eighths = divmod(filled, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[eighths] if eighths else "")).ljust(width, "·")
