"""Submissions: the body that a controller is sent for a command."""

from datetime import timedelta

import pytest

from gridhand import InvalidInput
from gridhand.library.pool.slots import NAMED
from gridhand.library.submission import submission


def body(*, local=False, **given):
    return submission(["true"], None, {}, local=local, **{**NAMED, **given})


def test_a_time_limit_has_two_names_and_may_have_a_unit():
    assert body(timeout="5m")["time_limit_s"] == 300
    assert body(time_limit=60)["time_limit_s"] == 60
    assert "time_limit_s" not in body()
    with pytest.raises(InvalidInput, match="time_limit"):
        body(timeout=1, time_limit=1)


def test_a_job_may_say_when_it_runs_and_for_how_long():
    sent = body(expect="10m", begin=timedelta(hours=2), deadline="+5h", queue="night", timeout="2h")
    assert (sent["expect_s"], sent["begin_s"], sent["deadline_s"]) == (600, 7200, 18_000)
    assert sent["queue"] == "night"
    assert not {"expect_s", "begin_s", "deadline_s", "queue", "warn_s"} & body().keys()


def test_a_job_may_want_a_signal_before_its_time_limit():
    sent = body(timeout="2h", signal="USR1@300")
    assert (sent["warn_signal"], sent["warn_s"]) == (10, 300)


@pytest.mark.parametrize("field", ["begin", "deadline", "expect", "fallback_after", "signal"])
def test_a_time_that_cannot_be_read_is_refused_by_its_name(field):
    with pytest.raises(InvalidInput, match=f"{field}:"):
        body(**{field: "soon"})


@pytest.mark.parametrize("cwd", [None, "below"])
def test_a_folder_that_is_gone_is_named(monkeypatch, tmp_path, cwd):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidInput, match="cwd:") as refused:
        body(local=True, cwd=cwd)
    assert "the current one no longer exists" in refused.value.hint
    assert body(local=True, cwd="/")["folder"] == "/"
