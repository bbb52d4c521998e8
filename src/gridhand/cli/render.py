"""Tables, amounts and times, for people to read.

Colours and frames are for terminals alone: what goes into a file or a pipe is plain and aligned.
Texts come from users, so what a terminal would take for a command is made harmless first.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

GB = 10**9
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
    return sys.stdout.isatty()


def coloured(text: str, word: str | None = None) -> str:
    """The text in the colour of the word, itself if none is given, where colours are wanted."""
    colour = _COLOURS.get(word or text.strip())
    if colour is None or not on_terminal() or os.environ.get("NO_COLOR"):
        return text
    return text if os.environ.get("TERM") == "dumb" else click.style(text, fg=colour)


def print_json(value: object) -> None:
    click.echo(json.dumps(_for_scripts(value), indent=2))


def _for_scripts(value: object) -> object:
    """An answer without its `row`: the same once more, as the library reads it, and may change."""
    if isinstance(value, list):
        return [_for_scripts(one) for one in value]
    return {k: v for k, v in value.items() if k != "row"} if isinstance(value, dict) else value


def clean(value: object) -> str:
    """On one line, and without what a terminal would obey."""
    return "".join(c if c.isprintable() else "�" for c in " ".join(str(value).split()))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> list[str]:
    """Lines with columns under their heads; those named in `right` stand to the right."""
    texts = [list(head), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    aligned = [
        [cell.rjust(w) if h in right.split(",") else cell.ljust(w)
         for cell, w, h in zip(row, widths, head, strict=True)]
        for row in texts
    ]  # fmt: skip
    lines = [aligned[0], *([coloured(cell) for cell in row] for row in aligned[1:])]
    return ["  ".join(line).rstrip() for line in lines]


def fitted(lines: Iterable[str]) -> list[str]:
    """Lines cut to the width of the terminal, if there is one."""
    if not on_terminal():
        return list(lines)
    import shutil

    columns = shutil.get_terminal_size().columns
    return [line if "\033" in line or len(line) <= columns else f"{line[: columns - 1]}…"
            for line in lines]  # fmt: skip


def number(value: float, places: int = 4) -> str:
    """Without zeros that say nothing: 2, 0.5."""
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rounded_down(value: float, unit: int, places: int) -> str:
    """So many units of what there is: whoever asks for what was read shall get it."""
    parts = round(value * 10_000)  # no amount has more than four decimals
    whole, rest = divmod(parts * 10**places // (10_000 * unit), 10**places)
    return f"{whole}.{rest:0{places}}"


def size(amount: float, *, up: bool = False) -> str:
    """Bytes in the unit that suits them: 1.5 GB. Rounded down, unless `up`: what was needed."""
    for unit, name in ((10**12, "TB"), (GB, "GB"), (10**6, "MB"), (10**3, "kB")):
        if amount >= unit:
            hundredths = -(-int(amount) * 100 // unit) if up else int(amount) * 100 // unit
            return f"{number(hundredths / 100, 2)} {name}"
    return f"{number(amount, 0)} B"


def amount(name: str, value: float) -> str:
    return size(value) if name in BYTES else number(value)


def amounts(values: Mapping[str, Any]) -> str:
    """What is asked for or held, in one line: `2 cpu, 4 GB memory`."""
    told = [f"{amount(name, value)} {name}" for name, value in values.items()
            if isinstance(value, int | float)]  # fmt: skip
    return ", ".join(told)


def clock(seconds: float) -> str:
    """A duration as squeue shows it: 0:07, 2:13:07, 3-02:13:07."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    hours, minutes, left = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def moment(text: str | None) -> float | None:
    """The seconds since 1970 of a time as the API writes it."""
    if text is None:
        return None
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def local_time(text: str | None) -> str:
    """A time as the API writes it, as the clock on the wall shows it."""
    if text is None:
        return "-"
    from datetime import datetime

    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def bar(part: float, width: int = 20) -> str:
    """How full something is, for a terminal."""
    filled = round(min(1.0, max(0.0, part)) * width * 8)
    whole, eighths = divmod(filled, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[eighths] if eighths else "")).ljust(width, "·")
