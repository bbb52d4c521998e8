"""Who may speak to the starter, and what it makes of what cannot be understood."""

import json

import pytest

from gridhand.agent.starter import connection as wire


class Raw:
    """A connection that says whatever it likes."""

    def __init__(self, folder):
        self.socket = wire.connect(folder, 30.0)
        self.file = self.socket.makefile("rb")

    def say(self, text):
        self.socket.sendall(text if isinstance(text, bytes) else json.dumps(text).encode() + b"\n")

    def ask(self, text):
        self.say(text)
        return self.hear()

    def hear(self):
        text = self.file.readline()
        return json.loads(text) if text else None

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def raw(place, starter):
    connection = Raw(place.folder)
    yield connection
    connection.close()


def test_hello_tells_who_it_is(starter):
    assert starter.greeting.keys() >= {"version", "protocol", "boot_id", "pid", "start", "epoch"}


def test_a_lower_epoch_is_refused(place, starter, refused):
    old = place.connect(epoch=6)
    new = place.connect(epoch=7)
    assert refused(place.connect, epoch=6) == "stale_epoch"
    assert refused(old.start, [place.order("j", "true")]) == "stale_epoch"
    assert refused(old.stop_all, "j", 0) == "stale_epoch"
    assert new.list()["ended"] == new.list()["running"] == []
    assert place.connect(epoch=7).list()["running"] == []


def test_the_epoch_outlives_the_starter(place, refused):
    place.kill(place.connect(epoch=9))
    assert refused(place.connect, epoch=8) == "stale_epoch"
    place.connect(epoch=9)


def test_who_is_over_is_told_nothing_more(place, starter, tools):
    new = place.connect(epoch=1)
    new.watch()
    new.start([place.order("j", "true")])
    assert "j" in tools.ends(new)
    assert list(starter.ended(0.05)) == []


def test_hello_comes_first(raw, starter):
    assert raw.ask({"do": "list", "id": 5})["error"] == "no_hello"
    assert raw.ask({"do": "hello", "epoch": 0, "id": 6})["pid"] == starter.greeting["pid"]
    assert raw.ask({"do": "list", "id": 7}).keys() == {"id", "running", "ended", "trouble"}


MALFORMED = {
    "not JSON":               b"rubbish\n",
    "nothing":                b"\n",
    "not text":               b"\xff\xfe\x00\n",
    "half an object":         b'{"do": "list"\n',
    "very deep":              b"[" * 100_000 + b"\n",
    "not a number":           b'{"do": "hello", "epoch": NaN}\n',
    "a number without end":   b'{"do": "hello", "epoch": ' + b"9" * 10_000 + b"}\n",
    "a list":                 [1],
    "nothing to do":          {"id": 1},
    "an unknown thing to do": {"do": "dance"},
    "no epoch":               {"do": "hello"},
    "a true epoch":           {"do": "hello", "epoch": True},
    "a negative epoch":       {"do": "hello", "epoch": -1},
    "no jobs":                {"do": "start"},
    "a stop of nothing":      {"do": "stop"},
    "an unknown signal":      {"do": "stop", "job": "j", "attempt": 0, "signal": 65},
    "a signal to anyone":     {"do": "stop", "job": "j", "attempt": 0, "to": "all"},
    "all but not quite":      {"do": "stop", "job": "j", "attempt": 0, "all": 1},
    "forget without a list":  {"do": "forget", "attempts": "j"},
    "forget half a pair":     {"do": "forget", "attempts": [["j"]]},
}  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_what_cannot_be_read_changes_nothing(raw, starter, text):
    raw.ask({"do": "hello", "epoch": 0})
    assert raw.ask(text)["error"] == "malformed"
    assert raw.ask({"do": "list"})["running"] == []


NAMES = {
    "an attempt of a half":   {"attempt": 0.5},
    "a true attempt":         {"attempt": True},
    "a job without a name":   {"job": ""},
    "a long name":            {"job": "j" * 201},
    "half a character":       {"job": "\ud800"},
    "a fence of a list":      {"fence": [1, 2]},
    "a true fence":           {"fence": True},
}  # fmt: skip


@pytest.mark.parametrize("change", NAMES.values(), ids=NAMES)
def test_one_order_without_a_proper_name_and_none_is_started(place, starter, refused, change):
    good = place.order("good", "true")
    assert refused(starter.start, [good, place.order("bad", "true") | change]) == "malformed"
    listed = starter.list()
    assert listed["running"] == listed["ended"] == []


# The agent lets none of these through (see test_messages); if one comes, it alone fails.
VALUES = {
    "no command":             {"argv": []},
    "a number among texts":   {"argv": ["true", 1]},
    "NUL in an argument":     {"argv": ["true", "a\0b"]},
    "half a character":       {"argv": ["true", "\ud800"]},
    "NUL in the environment": {"env": {"A": "a\0b"}},
    "a name with =":          {"env": {"A=B": "c"}},
    "a list of variables":    {"env": ["A=b"]},
    "NUL in the folder":      {"cwd": "/tmp\0"},
    "no output":              {"stderr": None},
    "a core that is a text":  {"cores": ["0"]},
    "no cores":               {"cores": []},
    "a negative core":        {"cores": [-1]},
    "cores that are none":    {"cores": 5},
}  # fmt: skip


def test_an_order_that_the_kernel_does_not_take_fails_alone(place, starter, tools):
    bad = [place.order(name, "true") | change for name, change in VALUES.items()]
    starter.start([*bad, place.order("good", "true")])
    ends = tools.ends(starter, len(bad) + 1)
    assert ends.pop("good")["code"] == 0
    assert {end["reason"] for end in ends.values()} == {"start_failed"}
    starter.start([place.order("next", "true")])
    assert tools.ends(starter)["next"]["code"] == 0
    (place.path / "starter" / "log").unlink()  # it has a trace of each


def test_an_order_that_lacks_something(place, starter, refused):
    lacking = place.order("bad", "true")
    del lacking["env"]
    assert refused(starter.start, [lacking]) == "malformed"


def test_a_line_without_an_end_is_not_kept(raw, starter):
    raw.ask({"do": "hello", "epoch": 0})
    raw.say(b'{"do":"list","x":"')
    for _ in range(64):
        raw.say(b"x" * (1 << 18))
    assert raw.hear()["error"] == "too_long"
    with open(f"/proc/{starter.greeting['pid']}/status") as file:
        peak_kb = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    assert peak_kb < 64 << 10
    raw.say(b'"}\n')
    assert raw.ask({"do": "list"})["running"] == []


def test_a_long_message_must_start_something(place, raw, starter, tools):
    raw.ask({"do": "hello", "epoch": 0})
    long = {"do": "forget", "attempts": [], "x": "x" * (1 << 20)}
    assert raw.ask(long)["error"] in ("malformed", "too_long")
    big = [place.order(f"j{n}", "true", env={f"V{k}": "x" * 100_000 for k in range(5)}) for n in range(4)]  # fmt: skip
    assert len(json.dumps(big)) > 1 << 20
    assert {one["state"] for one in starter.start(big)} == {"running"}
    tools.ends(starter, 4)


def test_even_a_start_may_be_too_long(raw):
    raw.ask({"do": "hello", "epoch": 0})
    reply = raw.ask({"do": "start", "jobs": "x" * (17 << 20)})
    assert reply["error"] in ("malformed", "too_long")
    assert raw.ask({"do": "list"})["running"] == []


def test_messages_may_come_in_pieces_and_together(raw, starter):
    hello = json.dumps({"do": "hello", "epoch": 0, "id": 1}).encode()
    for piece in (hello[:7], hello[7:] + b'\n{"do":"list","id":2}\n{"do":', b'"list","id":3}\n'):
        raw.say(piece)
    assert [raw.hear()["id"] for _ in range(3)] == [1, 2, 3]


def test_stopping_what_is_not_known(starter, refused):
    assert refused(starter.stop, "j", 0) == "unknown_attempt"
    assert refused(starter.stop_all, "j", 0) == "unknown_attempt"
    assert starter.forget([("j", 0)]) == 0


def test_it_does_not_quit_while_a_job_runs(place, starter, refused, tools):
    waits, said, held = place.held("j")
    starter.start([waits])
    said.hear()
    assert refused(starter.quit) == "busy"
    held.open()
    tools.ends(starter)
    with tools.watched(starter.greeting["pid"]) as gone:
        starter.quit()
        gone()
    assert place.connect().list()["ended"][0]["end"]["code"] == 0


def test_who_does_not_listen_holds_nobody_up(place, starter, raw, tools):
    raw.ask({"do": "hello", "epoch": 0})
    for _ in range(300):
        raw.say({"do": "list", "id": "x" * 1000})
    starter.start([place.order("j", "true")])
    assert tools.ends(starter)["j"]["code"] == 0


def test_ends_that_are_told_together_may_be_taken_one_by_one(place, starter, tools):
    names = {f"j{number}" for number in range(20)}
    starter.start([place.order(name, "true") for name in names])
    assert {job for _ in names for job in tools.ends(starter)} == names
