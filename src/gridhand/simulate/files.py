"""Reads lists of nodes and tasks from CSV or YAML; every entry knows its place in the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gridhand.core.errors import GridError, InvalidInput, short_repr

MOST_COPIES = 1_000_000
_YAML = frozenset({".yaml", ".yml", ".json"})


class BadFile(InvalidInput):
    """An input error with its place in a file before the message."""

    def __init__(self, where: str, message: str, hint: str) -> None:
        GridError.__init__(self, f"{where}: {message}", hint=hint)


class FileEntry(NamedTuple):
    """One node or task as written, and its place: `tasks.csv, line 7`."""

    where: str
    fields: dict[str, Any]


@contextmanager
def at(where: str) -> Iterator[None]:
    """Add the place to errors that are raised inside."""
    try:
        yield
    except BadFile:
        raise
    except GridError as error:
        raise BadFile(where, str(error), error.hint) from error


def read_entries(path: Path, key: str) -> list[FileEntry]:
    """Return the entries of a file. `key` is their key in a YAML mapping: nodes or tasks."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(str(path), f"it is not text: {error}", "Give CSV or YAML in UTF-8.") from None
    except OSError as error:
        raise BadFile(str(path), f"{error.strerror}", "Give a file that can be read.") from error
    entries = _yaml(path, text, key) if _is_yaml(path, text) else _csv(path, text)
    if not entries:
        raise BadFile(str(path), f"it has no {key}", f"Give a file with at least one of the {key}.")
    return entries


def _is_yaml(path: Path, text: str) -> bool:
    if path.suffix.lower() in _YAML or path.suffix.lower() == ".csv":
        return path.suffix.lower() in _YAML
    first = next((line for line in text.splitlines() if line.strip(" #-")), "")
    return ":" in first or "," not in first


def _csv(path: Path, text: str) -> list[FileEntry]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    entries: list[FileEntry] = []
    names: list[str] = []
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            where = f"{path.name}, line {rows.line_num}"
            if not names:
                names = _header(where, cells)
            elif len(cells) > len(names):
                extra = short_repr(cells[len(names)])
                raise BadFile(
                    where, f"{extra} is in no column", f"Give at most {len(names)} values in a row."
                )
            else:
                entries.append(FileEntry(where, dict(zip(names, cells, strict=False))))
    except csv.Error as error:
        raise BadFile(
            f"{path.name}, line {rows.line_num}", f"{error}", "Give one row of CSV in each line."
        ) from error
    return entries


def _header(where: str, names: list[str]) -> list[str]:
    for index, name in enumerate(names):
        if not name or name in names[:index]:
            what = f"column {index + 1} is named {short_repr(name)}"
            raise BadFile(where, what, "Give each column a name of its own in the first line.")
    return names


def _yaml(path: Path, text: str, key: str) -> list[FileEntry]:
    import yaml  # imported here because it is slow to load

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path.name}, line {mark.line + 1}" if mark else path.name
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise BadFile(where, f"{problem}", f"Give YAML: a list of {key}.") from error
    if isinstance(found, dict):
        if key not in found:
            listed = ", ".join(map(str, found)) or "nothing"
            raise BadFile(path.name, f"it has {listed}, but no {key}", f"Give a list under {key}:.")
        found = found[key]
    if not isinstance(found, list | None):
        raise BadFile(
            path.name, f"{key}: {short_repr(found)} is not a list", f"Give a list of {key}."
        )
    return [_entry(f"{path.name}, entry {n}", one) for n, one in enumerate(found or [], start=1)]


def _entry(where: str, fields: object) -> FileEntry:
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise BadFile(
            where, f"{short_repr(fields)} is not a mapping", "Give names and amounts: {cpu: 8}."
        )
    return FileEntry(where, fields)


# ---- values that nodes and tasks share


def given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not empty: an empty cell counts as absent."""
    return {name: value for name, value in fields.items() if value is not None and value != ""}


def whole(fields: dict[str, Any], name: str, *, default: int = 0, most: int = 10**12) -> int:
    """Return a count that was given as a number or as text."""
    value = fields.get(name, default)
    try:
        exact = float(value) if isinstance(value, str) else value
        count = int(exact)
    except (ValueError, TypeError, OverflowError):
        count, exact = -1, 0
    if isinstance(value, bool) or count != exact or not 0 <= count <= most:
        raise InvalidInput(name, value, f"a whole number from 0 to {most}")
    return count


def copies(fields: dict[str, Any], fallback: str) -> list[str]:
    """Return the names of an entry: its own, or one for each of `count`.

    Numbers have leading zeros, because nodes are ordered by name.
    """
    name = fields.pop("name", fallback)
    if "count" not in fields:
        return [str(name)]
    count = whole(fields, "count", most=MOST_COPIES)
    del fields["count"]
    return [f"{name}-{number:0{len(str(count))}}" for number in range(1, count + 1)]


def pairs(value: object, name: str) -> Any:
    """Return labels that were given as a mapping or as text such as `zone=a rack=2`."""
    if not isinstance(value, str):
        return value
    words = value.replace(";", " ").replace(",", " ").split()
    if any("=" not in word for word in words):
        raise InvalidInput(name, value, "NAME=VALUE, with spaces between several")
    return dict(word.split("=", 1) for word in words)
