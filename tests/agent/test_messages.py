"""Orders and reports keep their names on the wire, and the agent lets no wrong order through."""

import json

import pytest

from gridhand.agent import messages
from gridhand.agent.jobs.running_attempt import AttemptNote
from gridhand.agent.jobs.start_order import StartOrder, decode_orders
from gridhand.agent.messages import AttemptReport, EndReport
from gridhand.agent.starter.message_fields import Malformed, StarterOrder
from gridhand.posix.unix_users import UnixUser

# As version 0.1 has them on the wire. A controller, an agent and a starter of different versions
# may run together, so these names stay readable.
START = {
    "job": "7", "attempt": 2, "fence": "a1-7", "node": "n1", "argv": ["/bin/echo", "é\udcff"],
    "cwd": "/tmp", "env": {"PATH": "/bin"}, "cores": 15_000, "pin": True, "memory_bytes": 10**9,
    "processes": 4096, "devices": ["GPU-1"], "gpu_memory": {"GPU-1": 5}, "time_limit_ms": None,
    "grace_ms": 5000, "stdout": "/j/stdout", "stderr": "/j/stderr", "stdin": None,
    "log_bytes": 10**8,
}  # fmt: skip
STARTER = {
    "job": "7", "attempt": 2, "fence": "a1-7", "argv": ["/bin/echo", "é\udcff"], "cwd": "/tmp",
    "env": {"PATH": "/bin"}, "cores": [0, 1], "stdin": None, "stdout": "/j/stdout",
    "stderr": "/j/stderr", "cgroups": ["/sys/fs/cgroup/x"], "note": {"cores": [0, 1]},
}  # fmt: skip
ENDED = {
    "job": "7", "attempt": 2, "fence": "a1-7", "state": "ended", "pid": 41, "begun_ms": 17,
    "stopping": "oom",
    "end": {
        "reason": "oom", "code": None, "signal": 9, "message": "killed", "peak_bytes": 10**9,
        "ran_ms": 12, "stdout_bytes": 3, "stderr_bytes": 4, "stopping": "oom",
    },
}  # fmt: skip


def through_json(value):
    return json.loads(json.dumps(value))


def test_a_start_order_goes_over_the_wire_and_back():
    order = StartOrder.decode(through_json(START))
    assert order.encode() == {**START, "own_files": {}}
    assert StartOrder.decode(through_json(order.encode())) == order


def test_the_warning_of_an_order_goes_over_the_wire_and_back():
    order = StartOrder.decode(through_json(START | {"warn_signal": 10, "warn_ms": 5000}))
    assert (order.warn_signal, order.warn_ms) == (10, 5000)
    assert StartOrder.decode(through_json(order.encode())) == order


def test_a_starter_order_goes_over_the_wire_and_back():
    order = StarterOrder.decode(through_json(STARTER))
    assert json.loads(order.encode()) == STARTER
    bare = order._replace(note=None)
    assert "note" not in json.loads(bare.encode())
    assert StarterOrder.decode(json.loads(bare.encode())) == bare


def test_the_user_of_an_order_goes_over_the_wire_and_back():
    order = StartOrder.decode(through_json(START | {"user": [1000, 1001, [1001, 27]]}))
    assert order.user == UnixUser(1000, 1001, (1001, 27))
    assert StartOrder.decode(through_json(order.encode())) == order
    user = {"uid": 1000, "gid": 1001, "groups": [27], "own_files": {"stdout": "empty"}}
    order = StarterOrder.decode(through_json(STARTER | {"user": user}))
    assert order.user == user
    assert StarterOrder.decode(json.loads(order.encode())) == order


USER = {"uid": 1000, "gid": 1000, "groups": [], "own_files": {}}
WRONG_USERS = {
    "a name":                 "ann",
    "nothing in it":          {},
    "no groups":              {"uid": 1000, "gid": 1000, "own_files": {}},
    "more than there is":     {**USER, "shell": "/bin/sh"},
    "a uid that is a text":   {**USER, "uid": "0"},
    "a uid that is false":    {**USER, "uid": False},
    "the uid of no change":   {**USER, "uid": 2**32 - 1},
    "a negative gid":         {**USER, "gid": -1},
    "a group by name":        {**USER, "groups": ["wheel"]},
    "groups in a text":       {**USER, "groups": "27"},
    "a file for the input":   {**USER, "own_files": {"stdin": "empty"}},
    "another way to open it": {**USER, "own_files": {"stdout": "root"}},
}  # fmt: skip


@pytest.mark.parametrize("user", WRONG_USERS.values(), ids=WRONG_USERS)
def test_a_wrong_user_is_refused_and_never_taken_for_the_starters_own(user):
    with pytest.raises(Malformed):
        StarterOrder.decode(STARTER | {"user": user})


def test_a_starter_takes_orders_of_a_newer_agent():
    assert StarterOrder.decode(STARTER | {"nice": 5}) == StarterOrder.decode(STARTER)


def test_a_report_goes_over_the_wire_and_back():
    report = AttemptReport.decode(through_json(ENDED))
    assert report.key == ("7", 2)
    assert report.end == EndReport("oom", "killed", None, 9, 10**9, 12, 3, 4, "oom")
    encoded = report.encode()
    assert encoded["end"].pop("ago_ms") >= 0
    assert encoded == ENDED


def test_an_end_is_as_long_ago_for_all_who_hear_of_it(monkeypatch):
    """The clocks of machines differ: another machine was booted at another time."""
    monkeypatch.setattr(messages, "boot_ms", lambda: 900_000)
    encoded = AttemptReport("7", 2, "f", end=EndReport("exit", at_boot_ms=840_000)).encode()
    monkeypatch.setattr(messages, "boot_ms", lambda: 70_000)
    end = AttemptReport.decode(through_json(encoded)).end
    assert (end.ago_ms, end.at_boot_ms) == (60_000, 10_000)
    monkeypatch.setattr(messages, "boot_ms", lambda: 75_000)
    assert end.ago_ms == 65_000


#    what it shows                      the report                                             what is read
REPORTS = {
    "an older one with less":          ({"job": "7", "attempt": 2, "fence": "f", "state": "ended", "end": {"reason": "exit", "code": 1}},
                                        AttemptReport("7", 2, "f", "ended", end=EndReport("exit", code=1))),
    "a newer one with more":           ({"job": "7", "attempt": 2, "fence": "f", "state": "running", "pid": 4, "mood": "good"},
                                        AttemptReport("7", 2, "f", "running", pid=4)),
    "a newer end with more":           ({"job": "7", "attempt": 2, "fence": None, "state": "ended", "end": {"reason": "exit", "joules": 3}},
                                        AttemptReport("7", 2, None, "ended", end=EndReport("exit"))),
    "one that is refused":             ({"job": "7", "attempt": 2, "fence": "f", "pid": None, "state": "refused", "message": "full"},
                                        AttemptReport("7", 2, "f", "refused", message="full")),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "report"), REPORTS.values(), ids=REPORTS)
def test_reports_of_other_versions(raw, report):
    assert AttemptReport.decode(raw) == report


def test_a_note_of_another_version_is_read():
    assert AttemptNote.decode(None) == AttemptNote()
    note = AttemptNote(memory_bytes=5, cores=[1], groups=["/a", None])
    assert AttemptNote.decode({**through_json(note.encode()), "deadline": 7}) == note


ORDERS = {
    "no command":             {"argv": []},
    "an empty name":          {"argv": [""]},
    "one string":             {"argv": "true"},
    "a number among texts":   {"argv": ["true", 1]},
    "NUL in an argument":     {"argv": ["true", "a\0b"]},
    "half a character":       {"argv": ["true", "\ud800"]},
    "NUL in the environment": {"env": {"A": "a\0b"}},
    "a name with =":          {"env": {"A=B": "c"}},
    "a name of nothing":      {"env": {"": "c"}},
    "a list of variables":    {"env": ["A=b"]},
    "a relative folder":      {"cwd": "here"},
    "a relative output":      {"stdout": "here"},
    "a path that is too long": {"stdout": "/" + "x" * 4096},
    "no output":              {"stderr": None},
    "a relative input":       {"stdin": "here"},
    "cores that are a text":  {"cores": "0"},
    "negative cores":         {"cores": -1},
    "half a pin":             {"pin": 1},
    "a device that is none":  {"devices": [1]},
    "memory of a half":       {"gpu_memory": {"g": 0.5}},
    "a fence of a list":      {"fence": [1, 2]},
    "a long fence":           {"fence": "f" * 201},
    "a wrong mode":           {"own_files": {"stdout": "overwrite"}},
    "a wrong stream":         {"own_files": {"stdin": "empty"}},
    "something unknown":      {"shell": True},
    "a user by name":         {"user": "root"},
    "a user without groups":  {"user": [1000, 1000]},
    "a negative uid":         {"user": [-1, 1000, []]},
    "the uid of no change":   {"user": [2**32 - 1, 1000, []]},
    "a true gid":             {"user": [1000, True, []]},
    "a group by name":        {"user": [1000, 1000, ["wheel"]]},
}  # fmt: skip


@pytest.mark.parametrize("change", ORDERS.values(), ids=ORDERS)
def test_a_wrong_order_ends_and_the_others_are_read(change):
    report, good = decode_orders([START | change, START])
    assert (report.state, report.end.reason) == ("ended", "start_failed")
    assert report.end.message.startswith("the order cannot be read: ")
    assert good == StartOrder.decode(START)


def test_an_order_that_lacks_something():
    lacking = dict(START)
    del lacking["env"]
    [report] = decode_orders([lacking])
    assert report.end.message == "the order cannot be read: missing or unknown: env"


#    what it shows               the message
NAMELESS = {
    "no list":                  "j",
    "no object":                [1],
    "a job without a name":     [START | {"job": ""}],
    "a long name":              [START | {"job": "j" * 201}],
    "an attempt of a half":     [START | {"attempt": 0.5}],
    "a true attempt":           [START | {"attempt": True}],
}  # fmt: skip


@pytest.mark.parametrize("jobs", NAMELESS.values(), ids=NAMELESS)
def test_what_does_not_even_name_an_attempt_is_refused(jobs):
    with pytest.raises(Malformed):
        decode_orders(jobs)
