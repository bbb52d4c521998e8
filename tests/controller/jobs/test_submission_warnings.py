"""A job that is accepted, but may not do what its user expects, is accepted with a warning."""

import os

import pytest

from api_server import JOB, Api, Server
from gridhand.controller.jobs.submission_warnings import warn_of_users
from gridhand.controller.other_controllers import Neighbours


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("home")) as server:
        server.controller.neighbours.of_other_users = list
        yield server


@pytest.fixture
def api(server):
    return Api(server)


#    what it shows                           the wishes                                           the warnings
WARNINGS = {
    "nothing to warn of":                   ({"request": {"prefer": ["n1"]}},                     []),
    "a preferred node that is not there":   ({"request": {"prefer": ["nosuch", "n1"]}},           ["prefer 'nosuch' has no effect: there is no such node"]),
    "an excluded node that is not there":   ({"request": {"exclude": ["nosuch"]}},                ["exclude 'nosuch' has no effect: there is no such node"]),
    "causes without retries":               ({"retry_on": ["oom"], "retries": 0},                 ["retry_on has no effect: retries is 0"]),
    "a time-out without a limit":           ({"retry_on": ["timeout"], "retries": 1},             ["retry_on 'timeout' has no effect: there is no time limit"]),
    "a time-out with a limit":              ({"retry_on": ["timeout"], "retries": 1, "time_limit_s": 9}, []),
    "memory without a limit":               ({"retry_on": ["oom", "75"], "retries": 1},           ["retry_on 'oom' has no effect: there is no memory limit"]),
    "memory with a limit":                  ({"retry_on": ["oom"], "retries": 1, "request": {"memory": "1GB"}}, []),
}  # fmt: skip


@pytest.mark.parametrize(("wishes", "warnings"), WARNINGS.values(), ids=WARNINGS)
def test_what_has_no_effect_is_said(api, wishes, warnings):
    assert api.ok("POST", "/jobs", {**JOB, **wishes})["warnings"] == warnings


def test_controllers_of_other_users_are_named_at_every_job():
    """Row 98."""
    [warning] = warn_of_users([(0, 42)])
    assert warning == (
        "another controller, of user root (pid 42), promises the cores of this machine, too: they"
        " may be given out twice"
    )


def test_a_submission_is_answered_with_the_controllers_of_other_users(api, server, monkeypatch):
    """Row 98."""
    monkeypatch.setattr(server.controller.neighbours, "of_other_users", lambda: [(0, 42)])
    [warning] = api.ok("POST", "/jobs", JOB)["warnings"]
    assert "of user root (pid 42)" in warning


def test_controllers_of_our_own_are_not_those_of_other_users(tmp_path, monkeypatch):
    here = Neighbours("/here", str(tmp_path))
    marks = [(os.geteuid(), (7, "/mine")), (os.geteuid() + 1, (8, "/theirs"))]
    monkeypatch.setattr(here, "_marks", lambda: iter(marks))
    assert here.of_other_users() == [(os.geteuid() + 1, 8)]
    marks.clear()
    assert here.of_other_users() == [(os.geteuid() + 1, 8)]  # not looked for at every job
    assert list(here.others()) == []
