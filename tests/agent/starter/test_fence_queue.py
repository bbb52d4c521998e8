"""Of the attempts with one fence one runs at a time, and the next begins as it ends."""

import itertools
import json
import os
import resource
import signal
import sys
import time

import pytest

from gridhand.posix import procfs

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read()):
    time.sleep(0.01)
"""


def states(starter):
    return {one["job"]: one["state"] for one in starter.list()["running"]}


def test_they_run_in_order_and_never_at_once(place, starter, tools):
    """Each notes in one file when it begins and when it is about to end."""
    log = place.path / "log"
    script = f"echo b$0 >> {log}; sleep 0.0$1; echo e$0 >> {log}"
    names = [f"j{number}" for number in range(20)]
    orders = [
        place.order(name, "/bin/sh", "-c", script, name, str(number % 3), fence="f")
        for number, name in enumerate(names)
    ]
    told = starter.start(orders)
    assert [one["state"] for one in told] == ["running"] + ["waiting"] * 19
    assert told[1]["pid"] is None
    found = tools.ends(starter, 20)
    assert list(found) == names
    assert {one["reason"] for one in found.values()} == {"exit"}
    assert log.read_text().split() == [f"{kind}{name}" for name in names for kind in "be"]
    assert starter.list()["running"] == []


def test_other_fences_and_none_do_not_wait(place, starter):
    first, _, gate = place.held("first", fence="f")
    second, _, gate_2 = place.held("second", fence="g")
    plain = [place.held(f"plain{number}") for number in range(2)]
    starter.start([first, second, *(one[0] for one in plain)])
    assert set(states(starter).values()) == {"running"}
    for one in (gate, gate_2, *(one[2] for one in plain)):
        one.open()


def test_one_that_comes_later_waits_as_well_and_nobody_overtakes(place, starter, tools):
    first, said, gate = place.held("first", fence="f")
    starter.start([first])
    said.hear()
    starter.start([place.order("second", "/bin/true", fence="f")])
    starter.start([place.order("third", "/bin/true", fence="f")])
    assert states(starter) == {"first": "running", "second": "waiting", "third": "waiting"}
    gate.open()
    assert list(tools.ends(starter, 3)) == ["first", "second", "third"]


def test_a_command_that_cannot_be_started_holds_nobody_up(place, starter, tools):
    missing = [place.order(f"m{number}", "/no/such", fence="f") for number in range(5)]
    first, _, gate = place.held("first", fence="f")
    starter.start([first, *missing, place.order("last", "/bin/true", fence="f")])
    gate.open()
    found = tools.ends(starter, 7)
    assert [one["reason"] for one in found.values()] == ["exit", *["start_failed"] * 5, "exit"]


def test_the_next_waits_for_what_the_one_before_has_left_behind(place, starter, tools):
    child = place.path / "child"
    leaves = place.order("leaves", sys.executable, "-S", "-c", DAEMON, str(child), fence="f")
    starter.start([leaves, place.order("next", "/bin/true", fence="f")])
    assert list(tools.ends(starter)) == ["leaves"]
    time.sleep(0.2)
    assert states(starter) == {"next": "waiting"}
    starter.start([place.order("later", "/bin/true", fence="f")])
    assert starter.stop_all("leaves", 0)["left"] == []
    assert list(tools.ends(starter, 2)) == ["next", "later"]
    tools.gone(int(child.read_text()))


def test_one_that_comes_later_waits_for_what_was_left_behind(place, starter, tools):
    child = place.path / "child"
    leaves = place.order("leaves", sys.executable, "-S", "-c", DAEMON, str(child), fence="f")
    starter.start([leaves])
    assert list(tools.ends(starter)) == ["leaves"]
    starter.start([place.order("later", "/bin/true", fence="f")])
    assert states(starter) == {"later": "waiting"}
    assert starter.stop_all("leaves", 0)["left"] == []
    assert list(tools.ends(starter)) == ["later"]


def test_one_that_waits_can_be_given_back_and_never_begins(place, starter, tools):
    first, _, gate = place.held("first", fence="f")
    starter.start([first, *(place.order(name, "/bin/true", fence="f") for name in "abc")])
    assert starter.give_back([("a", 0), ("first", 0), ("nobody", 1)]) == 1
    assert tools.ends(starter)["a"]["reason"] == "returned"
    starter.stop_all("b", 0)
    assert tools.ends(starter)["b"]["reason"] == "returned"
    gate.open()
    assert list(tools.ends(starter, 2)) == ["first", "c"]
    assert not (place.path / "a.out").exists()


def test_a_starter_with_a_line_does_not_quit(place, starter, refused):
    first, _, gate = place.held("first", fence="f")
    starter.start([first, place.order("next", "/bin/true", fence="f")])
    assert refused(starter.quit) == "busy"
    gate.open()


def test_who_waited_when_the_starter_was_killed_has_not_begun(place, starter, tools):
    first, said, _ = place.held("first", fence="f")
    starter.start([first, place.order("next", "/bin/touch", "touched", fence="f")])
    leader = int(said.hear())
    place.kill(starter)
    again = place.connect()
    ended = {one["job"]: one["end"]["reason"] for one in again.list()["ended"]}
    assert ended == {"first": "lost", "next": "returned"}
    again.stop_all("first", 0)
    tools.gone(leader)
    assert not (place.path / "touched").exists()


def test_who_has_begun_does_not_count_as_waiting_when_the_journal_was_cut(place, starter, tools):
    """Its begin was cut off the journal, and its process lives."""
    first, said, held = place.held("first", fence="f")
    following, following_said, _ = place.held("next", fence="f")
    starter.start([first, following])
    said.hear()
    held.open()
    leader = int(following_said.hear())
    journal = place.path / place.folder / "journal"
    lines = journal.read_text().splitlines(keepends=True)
    wait = next(at for at, line in enumerate(lines) if '"wait"' in line)
    journal.write_text("".join(lines[: wait + 1]))
    place.kill(starter)
    again = place.connect()
    found = {one["job"]: (one["end"]["reason"], one["survivors"]) for one in again.list()["ended"]}
    assert found["next"] == ("lost", [leader])
    again.stop_all("next", 0)
    tools.gone(leader)


def test_who_waited_when_the_machine_went_down_may_have_begun(place):
    """That it had begun may be what did not reach the disk."""
    name = {"job": "j", "attempt": 0, "fence": "f", "cgroups": [], "boot": "another"}
    place.write_journal({"do": "wait", **name, "begun_ms": 1, "begun_boot_ms": 1})
    (ended,) = place.connect().list()["ended"]
    assert ended["end"]["reason"] == "lost"
    assert "booted" in ended["end"]["message"]


@pytest.mark.parametrize("when_ms", [0, 30, 100])
def test_a_starter_killed_in_the_middle_of_a_line_forgets_and_repeats_nothing(place, when_ms):
    """Whoever has run is known to have, and whoever is said not to have begun has not."""
    starter = place.connect()
    names = [f"j{number}" for number in range(60)]
    orders = [
        place.order(name, "/bin/sh", "-c", f"echo ran >> {place.path}/{name}.ran", fence="f")
        for name in names
    ]
    starter.start(orders)
    time.sleep(when_ms / 1000)
    place.kill(starter)
    again = place.connect()
    listed = again.list()
    assert listed["running"] == []
    reasons = {one["job"]: one["end"]["reason"] for one in listed["ended"]}
    assert sorted(reasons) == sorted(names)
    for name in names:
        ran = place.path / f"{name}.ran"
        if reasons[name] == "returned":
            assert not ran.exists()
        elif reasons[name] == "exit":
            assert ran.read_text() == "ran\n"
    assert list(reasons.values()).count("lost") <= 1


def test_a_full_disk_begins_nobody_and_says_so(place, starter, tools):
    """Nobody would know later that it was begun."""
    first, said, gate = place.held("first", fence="f")
    starter.start([first, place.order("next", "/bin/touch", "touched", fence="f")])
    said.hear()
    journal = os.path.join(place.folder, "journal")
    size = os.stat(journal).st_size
    pid = starter.greeting["pid"]
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    gate.open()
    time.sleep(0.3)
    assert not (place.path / "touched").exists()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    found = tools.ends(starter, 2)
    assert found["first"]["reason"] == "exit"
    assert found["next"]["reason"] in ("exit", "returned")
    assert (place.path / "touched").exists() is (found["next"]["reason"] == "exit")


# ---- the agent


def told_of(agent, *jobs):
    """How these have ended, as the controller is told, in whatever order that was."""
    found = {}
    while not found.keys() >= set(jobs):
        found |= {one["job"]: one["end"]["reason"] for one in agent.event("ended")["attempts"]}
    return [found[job] for job in jobs]


def test_the_agent_gives_all_of_a_fence_the_same_cores_and_their_own_limits(node, agent):
    code = "import os, json; print(json.dumps(sorted(os.sched_getaffinity(0))))"
    first, said, gate = node.held("first", fence="f")
    rest = [node.python(f"n{number}", code, fence="f") for number in range(3)]
    facts = agent.start(first, *rest)
    assert [one["state"] for one in facts] == ["running"] * 4
    assert [one["pid"] is None for one in facts] == [False, True, True, True]
    own = sorted(os.sched_getaffinity(int(said.hear())))
    other, said_2, gate_2 = node.held("other", fence="g")
    agent.start(other)
    if len(agent.greeting["cpus"]) > 1:
        assert not set(own) & set(os.sched_getaffinity(int(said_2.hear())))
    gate.open()
    assert told_of(agent, "first", "n0", "n1", "n2") == ["exit"] * 4
    assert [json.loads(node.output(f"n{number}")) for number in range(3)] == [own] * 3
    gate_2.open()
    assert told_of(agent, "other") == ["exit"]


def test_time_counts_from_when_it_begins(node, agent):
    first, said, gate = node.held("first", fence="f")
    agent.start(first, node.order("next", "/bin/sleep", "60", fence="f", time_limit_ms=500, grace_ms=0))  # fmt: skip
    said.hear()
    time.sleep(0.6)
    gate.open()
    assert told_of(agent, "first", "next") == ["exit", "timeout"]


def test_one_that_waits_too_long_for_its_turn_is_given_back(node, agent):
    first, said, gate = node.held("first", fence="f")
    agent.start(first, node.order("next", "/bin/true", fence="f"))
    assert told_of(agent, "next") == ["returned"]
    assert procfs.read_process(int(said.hear())) is not None
    gate.open()
    assert told_of(agent, "first") == ["exit"]


def test_one_that_waits_is_cancelled_at_once(node, agent):
    first, _, gate = node.held("first", fence="f")
    agent.start(first, node.order("next", "/bin/true", fence="f"))
    agent.ask("stop", job="next", attempt=1, reason="cancelled", grace_ms=10_000)
    assert told_of(agent, "next") == ["cancelled"]
    gate.open()
    assert told_of(agent, "first") == ["exit"]


def test_that_a_turn_has_come_is_told_of_what_lasts(node, agent):
    first, _, gate = node.held("first", fence="f")
    second, said_2, gate_2 = node.held("second", fence="f")
    agent.start(first, second)
    gate.open()
    pid = int(said_2.hear())
    begun = agent.event("begun")
    assert [(one["job"], one["pid"]) for one in begun["attempts"]] == [("second", pid)]
    gate_2.open()
    assert told_of(agent, "second") == ["exit"]


def test_a_line_goes_on_without_an_agent_and_the_next_one_knows_all_of_it(node, agent):
    first, said, gate = node.held("first", fence="f")
    last, said_2, gate_2 = node.held("last", fence="f")
    agent.start(first, node.order("next", "/bin/true", fence="f"), last)
    said.hear()
    node.kill(agent)
    gate.open()
    said_2.hear()
    again = node.connect(epoch=2)
    known = again.ask("list")
    assert [one["job"] for one in known["running"]] == ["last"]
    assert sorted(one["job"] for one in known["ended"]) == ["first", "next"]
    gate_2.open()
    assert told_of(again, "last") == ["exit"]


def test_an_agent_that_comes_later_stops_and_returns_those_that_wait(node, agent):
    first, said, gate = node.held("first", fence="f")
    rest = [node.order(name, "/bin/true", fence="f") for name in ("a", "b")]
    agent.start(first, *rest)
    said.hear()
    node.kill(agent)
    again = node.connect(epoch=2)
    again.ask("stop", job="a", attempt=1, reason="cancelled", grace_ms=0)
    assert told_of(again, "a", "b") == ["cancelled", "returned"]
    gate.open()
    assert told_of(again, "first") == ["exit"]


def test_a_starter_that_is_killed_gives_back_what_had_not_begun(node, agent):
    first, said, _ = node.held("first", fence="f")
    agent.start(first, *(node.order(name, "/bin/true", fence="f") for name in ("a", "b")))
    said.hear()
    os.kill(node.pid_of_starter(), signal.SIGKILL)
    found = dict(zip(("first", "a", "b"), told_of(agent, "first", "a", "b"), strict=True))
    assert found == {"first": "agent_lost", "a": "returned", "b": "returned"}


def test_what_one_leaves_is_ended_before_the_next_begins(node, agent):
    child = node.path / "child"
    looks = "import os, sys; print(os.path.exists('/proc/' + open(sys.argv[1]).read()))"
    agent.start(
        node.order("leaves", sys.executable, "-S", "-c", DAEMON, str(child), fence="f"),
        node.order("next", sys.executable, "-S", "-c", looks, str(child), fence="f"),
    )
    assert told_of(agent, "leaves", "next") == ["exit", "exit"]
    assert node.output("next") == b"False\n"


def test_numbers_of_lines_at_once_all_come_to_their_end(node, agent):
    count = itertools.count()
    orders = [
        node.order(f"j{next(count)}", "/bin/true", fence=f"f{lane}", cores=1000)
        for _ in range(15)
        for lane in range(6)
    ]
    agent.start(*orders)
    reasons = told_of(agent, *(one["job"] for one in orders))
    assert set(reasons) <= {"exit", "returned"}
    assert reasons.count("exit") >= 6
