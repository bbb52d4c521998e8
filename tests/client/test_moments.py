"""Times as people write them."""

from datetime import UTC, datetime, timedelta

import pytest

from gridhand.client.moments import read_warning, seconds_until
from gridhand.core.errors import InvalidInput

NOW = datetime.fromisoformat("2030-01-31T12:00:00")
H, DAY = 3600, 86_400

#    what it shows                        written                       seconds
MOMENTS = {
    "a delay":                           ("+2h",                        2 * H),
    "the same without a plus":           ("1h30m",                      1.5 * H),
    "a number counts seconds":           (90,                           90),
    "also in Slurm's words":             ("now+90",                     90),
    "Slurm's units":                     ("now+3hours",                 3 * H),
    "one of them":                       ("now + 1 day",                DAY),
    "a time of day":                     ("18:00",                      6 * H),
    "with seconds":                      ("12:00:01",                   1),
    "a time that is over is tomorrow's": ("09:30",                      21.5 * H),
    "now is over, too":                  ("12:00",                      DAY),
    "midnight":                          ("midnight",                   12 * H),
    "tomorrow":                          ("tomorrow",                   12 * H),
    "tomorrow at some time":             ("Tomorrow 09:00",             21 * H),
    "today":                             ("today 23:59",                12 * H - 60),
    "a day":                             ("2030-02-01",                 12 * H),
    "a day and a time":                  ("2030-02-01T06:00",           18 * H),
    "with a space":                      ("2030-02-01 06:00:00",        18 * H),
    "a length of time":                  (timedelta(days=2),            2 * DAY),
    "a date of Python's":                (NOW + timedelta(hours=12),    12 * H),
}  # fmt: skip


@pytest.mark.parametrize(("written", "seconds"), MOMENTS.values(), ids=MOMENTS)
def test_a_moment_is_so_many_seconds_away(written, seconds):
    assert seconds_until(written, "--begin", NOW) == seconds


def test_a_time_zone_counts():
    moment = datetime.fromtimestamp(NOW.timestamp() + 60, UTC)
    assert seconds_until(moment, "--begin", NOW) == 60
    assert seconds_until(moment.isoformat(), "--begin", NOW) == 60
    assert seconds_until(moment.strftime("%Y-%m-%dT%H:%M:%SZ"), "--begin", NOW) == 60


def test_it_is_now_unless_it_is_said():
    assert 0 < seconds_until("tomorrow 00:01", "--begin") <= 2 * DAY


WRONG = ["", "soon", "-2h", "+0s", "24:00", "25:61", "today 11:00", "2030-01-31T11:59", "yesterday",
         "tomorrow soon", "30", "2030-13-01", 0, -1, float("nan"), True, None, timedelta(0),
         NOW - timedelta(days=1), "2050-01-01", "+9999999h"]  # fmt: skip


@pytest.mark.parametrize("written", WRONG)
def test_what_is_no_time_to_come_is_refused(written):
    with pytest.raises(InvalidInput, match=r"--begin: (.|\n)*tomorrow 09:00"):
        seconds_until(written, "--begin", NOW)


WARNINGS = {"TERM@60": (15, 60), "SIGUSR1@300": (10, 300), "usr2@5": (12, 5), "10@7": (10, 7), "INT": (2, 60), "B:USR1@90": (10, 90)}  # fmt: skip


@pytest.mark.parametrize(("written", "read"), WARNINGS.items())
def test_a_warning_is_a_signal_and_seconds(written, read):
    assert read_warning(written, "--signal") == read


@pytest.mark.parametrize("written", ["", "@60", "TERM@", "TERM@0", "WHAT@60", "65@60", "0@60", "TERM@1h", 15])  # fmt: skip
def test_what_is_no_warning_is_refused(written):
    with pytest.raises(InvalidInput, match=r"--signal: (.|\n)*TERM@60"):
        read_warning(written, "--signal")
