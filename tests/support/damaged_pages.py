"""Finds and overwrites pages of an SQLite file, as a failing disk does."""

import contextlib
import sqlite3
from pathlib import Path

PAGE = 4096


def pages_of(path, name):
    """The leaf pages of a table or an index, in order."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        root = connection.execute(query, [name]).fetchone()[0]
    whole = Path(path).read_bytes()
    found, waiting = [], [root]
    while waiting:
        number = waiting.pop(0)
        page = whole[(number - 1) * PAGE : number * PAGE]
        if page[0] in (2, 5):  # an interior page: cells that begin with the page they lead to
            cells = int.from_bytes(page[3:5], "big")
            for cell in range(cells):
                at = int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell], "big")
                waiting.append(int.from_bytes(page[at : at + 4], "big"))
            waiting.append(int.from_bytes(page[8:12], "big"))
        else:
            found.append(number)
    return found


def break_page(path, number):
    whole = bytearray(Path(path).read_bytes())
    whole[(number - 1) * PAGE : (number - 1) * PAGE + 2048] = b"\xff" * 2048
    Path(path).write_bytes(whole)
