"""Times as people write them, turned into seconds from now.

The controller has a time of its own, which no clock can change, so it is told delays: the clock
and the time zone of the person who writes a time are here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

Moment = float | str | datetime | timedelta

_ALLOWED = "a time to come: +2h, 18:00, tomorrow 09:00, 2030-01-31T18:00; at most 10 years ahead"
_DAYS = {"today": 0, "tomorrow": 1}
_TIMES = {"midnight": (0, 0, 0), "noon": (12, 0, 0)}
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", re.ASCII)
_SLURM_UNITS = re.compile(r"([0-9]{1,9}) ?(second|minute|hour|day|week)s?", re.ASCII)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_WARNING = re.compile(r"(?:[BR]+:)?([A-Za-z0-9]+)(?:@([0-9]{1,8}))?", re.ASCII)
_USUAL_S = 60  # as in Slurm


def seconds_until(moment: Moment, field: str, now: datetime | None = None) -> float:
    """Return the seconds from `now`, by default the present, to a moment in the future.

    >>> noon = datetime(2030, 1, 31, 12, 0)
    >>> [seconds_until(text, "begin", noon) for text in ("+2h", "18:00", "tomorrow 09:00")]
    [7200.0, 21600.0, 75600.0]
    """
    from gridhand.core.errors import InvalidInput
    from gridhand.core.model.durations import MOST_MS

    present = now or datetime.now(UTC).astimezone().replace(tzinfo=None)
    delay = _delay(moment, field, present)
    if delay is None or not 0 < delay * 1000 <= MOST_MS:
        raise InvalidInput(field, moment, _ALLOWED)
    return delay


def _delay(moment: Moment, field: str, now: datetime) -> float | None:
    if isinstance(moment, timedelta):
        return moment.total_seconds()
    if isinstance(moment, datetime):
        return _between(now, moment)
    if isinstance(moment, str):
        return _read(moment.strip().lower(), field, now)
    return float(moment) if type(moment) in (int, float) else None


def _read(text: str, field: str, now: datetime) -> float | None:
    after = text.removeprefix("now").strip()
    if after.startswith("+"):
        return _duration(after[1:].strip(), field)
    time = _time_of_day(text, now)
    if time is not None:  # the next time that it is so late
        return _between(now, time if time > now else time + timedelta(days=1))
    day, _, clock = text.partition(" ")
    if day in _DAYS:
        time = _time_of_day(clock.strip() or "midnight", now)
        return None if time is None else _between(now, time + timedelta(days=_DAYS[day]))
    try:
        return _between(now, datetime.fromisoformat(text.upper()))
    except ValueError:
        return _duration(text, field) if text[-1:].isalpha() else None


def _duration(text: str, field: str) -> float | None:
    """Read a duration with units; Slurm writes them out and counts bare seconds."""
    if (match := _SLURM_UNITS.fullmatch(text)) is not None:
        return int(match[1]) * float(_SECONDS[match[2]])
    if text.isascii() and text.isdecimal():
        return float(text)
    from gridhand.core.errors import InvalidInput
    from gridhand.core.model.durations import read_duration

    try:
        return read_duration(text, field) / 1000
    except InvalidInput:
        return None


def _time_of_day(text: str, now: datetime) -> datetime | None:
    match = _CLOCK.fullmatch(text)
    if match is None and text not in _TIMES:
        return None
    hour, minute, second = (
        _TIMES[text] if match is None else (int(one or 0) for one in match.groups())
    )
    return now.replace(hour=hour, minute=minute, second=second, microsecond=0)


def _between(now: datetime, moment: datetime) -> float:
    """Return the seconds between two times. Those without a zone are local, as clocks show it."""
    return moment.timestamp() - now.timestamp()


def read_warning(text: object, field: str) -> tuple[int, float]:
    """Read a signal and the seconds before the time limit at which it is sent.

    >>> read_warning("TERM@60", "--signal"), read_warning("B:USR1@300", "--signal")
    ((15, 60.0), (10, 300.0))
    """
    from gridhand.core.errors import InvalidInput

    match = _WARNING.fullmatch(text) if isinstance(text, str) else None
    signum = None if match is None else _signal_number(match[1].upper())
    if match is None or signum is None or match[2] == "0":
        raise InvalidInput(field, text, "a signal and seconds, such as TERM@60 or USR1@300")
    return signum, float(match[2] or _USUAL_S)


def _signal_number(name: str) -> int | None:
    from signal import Signals

    if name.isdecimal():
        return int(name) if 1 <= int(name) <= 64 else None
    by_name = {one.name.removeprefix("SIG"): int(one) for one in Signals}
    return by_name.get(name.removeprefix("SIG"))
