"""Checks the records of calls one by one (I7): nothing else in a store depends on them."""

from __future__ import annotations

from collections.abc import Mapping

from gridhand.audit.rows import Reader, Violation, show

_OPEN = ("queued", "running")
_OVER = ("succeeded", "failed", "cancelled", "lost")


def check_call(row: object) -> list[Violation]:
    """Return the violations in the row of a call."""
    named = row if isinstance(row, Mapping) else {}
    read = Reader(row, "I7", f"call {named.get('run')}.{named.get('number')}")
    for name in ("run", "owner", "name"):
        read.text(name)
    for name in ("node", "job", "allocation"):
        read.maybe_text(name)
    if not read.count("number"):
        read.note("has no number")
    state, error = read.choice("state", *_OPEN, *_OVER), read.maybe_text("error")
    times = [read.count("submitted"), read.maybe_count("started"), read.maybe_count("ended")]
    if read.maybe_count("open") != (1 if state in _OPEN else None):
        read.note(f"is {state}, but open is {show(named.get('open'))}")
    if (times[2] is None) is not (state in _OPEN):
        read.note(f"is {state}, but ended at {show(times[2])}")
    if times[1] is None and state in ("running", "succeeded"):
        read.note(f"is {state}, but has not started")
    if (error is not None) is not (state in ("failed", "lost")):
        read.note(f"is {state}, but its error is {show(error)}")
    known = [time for time in times if time is not None]
    if known != sorted(known):
        read.note(f"its times are out of order: {show(known)}")
    return read.found
