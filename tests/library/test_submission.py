"""Submissions: the body that a controller is sent for a command."""

import pytest

from gridhand import InvalidInput
from gridhand.library.pool.slots import NAMED
from gridhand.library.submission import submission


def body(**given):
    return submission(["true"], None, {}, local=False, **{**NAMED, **given})


def test_a_time_limit_has_two_names_and_may_have_a_unit():
    assert body(timeout="5m")["time_limit_s"] == 300
    assert body(time_limit=60)["time_limit_s"] == 60
    assert "time_limit_s" not in body()
    with pytest.raises(InvalidInput, match="time_limit"):
        body(timeout=1, time_limit=1)
