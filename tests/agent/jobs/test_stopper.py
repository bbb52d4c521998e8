"""A job that is ended is ended as a whole, and one that has ended leaves nothing behind."""

import asyncio
import os
import signal

import pytest

from gridhand.agent.jobs.running_attempt import AttemptNote, RunningAttempt
from gridhand.agent.jobs.stopper import Stopper, members
from gridhand.posix import boot_clock, procfs
from gridhand.posix.procfs import ProcessIdentity


def alive(pid):
    return procfs.is_alive(pid)


REASONS = ["cancelled", "client_gone", "preempted", "device_lost"]


@pytest.mark.parametrize("reason", REASONS)
def test_a_stop_has_a_reason(node, agent, reason):
    order, said, _ = node.held("j")
    agent.start(order)
    pid = int(said.hear())
    assert agent.ask("stop", job="j", attempt=1, reason=reason, grace_ms=60_000).keys() == {"id"}
    end = agent.end("j")
    assert (end["reason"], end["signal"]) == (reason, signal.SIGTERM)
    assert end["message"]
    assert not alive(pid)
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=0)
    [listed] = agent.ask("list")["ended"]
    assert listed["end"]["reason"] == reason  # the first counts


def test_one_that_cleans_up_is_given_the_time(node, agent):
    ready = node.gate()
    script = 'trap "echo cleaned; exit 3" TERM; echo up > "$1"; while :; do sleep 0.01; done'
    agent.start(node.order("j", "/bin/sh", "-c", script, "-", ready.path))
    ready.hear()
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=60_000)
    end = agent.end("j")
    assert (end["reason"], end["code"]) == ("cancelled", 3)
    assert node.output("j") == b"cleaned\n"


def test_one_that_ignores_it_is_killed_after_its_grace(node, either):
    ready = node.gate()
    script = "trap '' TERM; echo up > \"$1\"; while :; do sleep 1; done"
    either.start(node.order("j", "/bin/sh", "-c", script, "-", ready.path))
    ready.hear()
    began = boot_clock.boot_ms()
    either.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=300)
    end = either.end("j")
    assert (end["reason"], end["signal"]) == ("cancelled", 9)
    assert 300 <= boot_clock.boot_ms() - began < 10_000


def test_a_second_stop_may_be_quicker(node, agent):
    ready = node.gate()
    script = "trap '' TERM; echo up > \"$1\"; while :; do sleep 1; done"
    agent.start(node.order("j", "/bin/sh", "-c", script, "-", ready.path))
    ready.hear()
    agent.ask("stop", job="j", attempt=1, reason="preempted", grace_ms=600_000)
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=0)
    assert agent.end("j")["reason"] == "preempted"


class Silent:
    """A starter that answers nothing."""

    async def ask(self, message, timeout_s=None):
        await asyncio.Event().wait()


@pytest.mark.parametrize(("first", "second", "kept"), [(100, 60_000, 100), (60_000, 100, 100)])
def test_the_shorter_grace_of_two_stops_holds_and_the_first_reason(
    monkeypatch, first, second, kept
):
    async def body():
        monkeypatch.setattr(boot_clock, "boot_ms", lambda: 1_000_000)
        run = RunningAttempt("j", 1, "f", AttemptNote())
        run.update({"pid": os.getpid(), "start": 1, "begun_ms": 0, "begun_boot_ms": 0, "state": "running"})  # fmt: skip
        stopper = Stopper(Silent(), lambda run: None, lambda: None)
        stopper.stop(run, "preempted", "first", first)
        stopper.stop(run, "cancelled", "second", second)
        assert run.kill_at == 1_000_000 + kept
        assert (run.stopping, run.message) == ("preempted", "first")

    asyncio.run(body())


def test_a_second_stop_with_a_longer_grace_does_not_put_the_first_off(node, agent):
    ready = node.gate()
    script = "trap '' TERM; echo up > \"$1\"; while :; do sleep 1; done"
    agent.start(node.order("j", "/bin/sh", "-c", script, "-", ready.path))
    ready.hear()
    agent.ask("stop", job="j", attempt=1, reason="preempted", grace_ms=300)
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=600_000)
    assert agent.end("j")["signal"] == 9


def test_a_process_with_the_session_of_a_reused_pid_is_not_a_member(monkeypatch):
    """The leader's pid was of an earlier session, some of whose processes still live."""
    leader = procfs.read_process(os.getpid())
    others = [
        leader._replace(
            identity=ProcessIdentity(pid, leader.start + later), session=leader.pid, parent=1
        )
        for pid, later in ((leader.pid + 100_000, -5), (leader.pid + 100_001, 5))
    ]
    table = {one.pid: one for one in (leader, *others)}
    monkeypatch.setattr(procfs, "read_processes", lambda: table)
    run = RunningAttempt("j", 1, "f", AttemptNote())
    run.update({"pid": leader.pid, "start": leader.start, "begun_ms": 0, "begun_boot_ms": 0, "state": "running"})  # fmt: skip
    assert {one.pid for one in members(run)} == {leader.pid, others[1].pid}


SAVES = """
import os, signal, sys, time
ready, saved = sys.argv[1:]
if os.fork() == 0:
    {leave}
    def save(*_):
        time.sleep(0.5)
        open(saved, 'w').write('saved\\n')
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
    open(ready, 'w').write('up\\n')
    while True: time.sleep(1000)
time.sleep(1000)
"""


@pytest.mark.parametrize("leave", ["pass", "os.setsid()"], ids=["a child", "one that left"])
def test_all_are_warned_and_all_have_the_grace(node, either, leave):
    ready, saved = node.gate(), node.path / "saved"
    order = node.python("j", SAVES.format(leave=leave))
    either.start(order | {"argv": [*order["argv"], ready.path, str(saved)]})
    ready.hear()
    either.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=60_000)
    end = either.end("j")
    assert (end["reason"], end["signal"]) == ("cancelled", signal.SIGTERM)
    assert saved.read_text() == "saved\n"


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        time.sleep(0)
        with open(sys.argv[1], 'w') as gate: gate.write(f'{os.getpid()}\\n')
        while True: time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(0.2)
sys.exit(5)
"""


def test_what_a_job_leaves_behind_is_ended_before_it_is_over(node, either):
    ready = node.gate()
    order = node.python("j", DAEMON)
    either.start(order | {"argv": [*order["argv"], ready.path]})
    pid = int(ready.hear())
    end = either.end("j")
    assert (end["reason"], end["code"]) == ("exit", 5)
    assert not alive(pid)


def test_what_it_writes_at_last_is_counted(node, agent):
    """Its command has ended, and another of it still writes while it is warned."""
    ready = node.gate()
    code = """
import os, signal, sys, time
if os.fork() == 0:
    def last(*_):
        time.sleep(0.3)
        os.write(1, b'x' * 1000)
        os._exit(0)
    signal.signal(signal.SIGTERM, last)
    open(sys.argv[1], 'w').write('up\\n')
    while True: time.sleep(1000)
time.sleep(1000)
"""
    order = node.python("j", code)
    agent.start(order | {"argv": [*order["argv"], ready.path]})
    ready.hear()
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=60_000)
    assert agent.end("j")["stdout_bytes"] == 1000


def test_many_are_ended_at_once(node, either):
    orders = [node.order(f"j{number}", "sleep", "1000") for number in range(40)]
    either.start(*orders)
    for one in orders:
        either.ask("stop", job=one["job"], attempt=1, reason="cancelled", grace_ms=5000)
    ends = either.ends(40)
    assert {end["reason"] for end in ends.values()} == {"cancelled"}


def test_nobody_is_signalled_who_has_the_number_of_another(node):
    """A process that has the pid of a leader, and was started later or earlier."""
    mine = procfs.read_process(os.getpid())
    run = RunningAttempt("j", 1, "f", AttemptNote())
    run.update({"pid": mine.pid, "start": mine.start + 1, "begun_ms": 0, "begun_boot_ms": 0, "state": "running"})  # fmt: skip
    assert mine.pid not in [one.pid for one in members(run)]


class Stubborn:
    """A starter whose job has processes that die only at the third try."""

    greeting = {"pid": 1}  # noqa: RUF012

    def __init__(self):
        self.left = [[41, 42], [42], []]
        self.asked = []

    async def ask(self, message, timeout_s=None):
        self.asked.append(message)
        left = self.left.pop(0)
        state = {"state": "running"} if left else {"state": "ended", "end": {"reason": "signal", "signal": 9}}  # fmt: skip
        told = {"pid": 41, "start": 1, "begun_ms": 0, "begun_boot_ms": 0, **state}
        return {"left": left, "attempt": told}


def test_one_that_will_not_die_keeps_what_it_has_and_is_named():
    async def body():
        parent, closed, seen = Stubborn(), [], []
        run = RunningAttempt("j", 1, "f", AttemptNote())
        run.update({"pid": 41, "start": 1, "begun_ms": 0, "begun_boot_ms": 0, "state": "running"})
        stopping = Stopper(parent, closed.append, lambda: seen.append((list(run.stuck), run.end)))
        stopping.stop(run, "cancelled", "it was cancelled", 0)
        await run.clearing
        assert seen == [([41, 42], None), ([42], None), ([], None)]
        assert closed == [run]
        assert run.exit["signal"] == 9

    asyncio.run(body())


#    what it shows                                    how its leader ended            after ms   the reason
ENDS = {
    "in time":                                       ({"reason": "signal", "signal": 15}, 999,  "signal"),
    "warned by an agent that nobody remembers":      ({"reason": "signal", "signal": 15}, 1000, "timeout"),
    "killed by it":                                  ({"reason": "signal", "signal": 9},  1500, "timeout"),
    "a fault of its own":                            ({"reason": "signal", "signal": 11}, 1500, "signal"),
    "done a little late":                            ({"reason": "exit", "code": 0},      1500, "exit"),
}  # fmt: skip


@pytest.mark.parametrize(("end", "after", "reason"), ENDS.values(), ids=ENDS)
def test_how_it_ended_while_nobody_stood_there(end, after, reason):
    told = {"job": "j", "attempt": 1, "fence": "f", "pid": 5, "start": 1, "state": "ended", "begun_ms": 0, "begun_boot_ms": 0, "note": {"deadline": 1000, "time_limit_ms": 1000}}  # fmt: skip
    run = RunningAttempt.adopted({**told, "end": {**end, "ended_boot_ms": after}})
    run.close(0, None)
    assert run.end.reason == reason
