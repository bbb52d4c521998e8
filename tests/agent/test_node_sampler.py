"""Samples of a whole node: always, of each job its tree, and ours told from those of others."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gridhand.agent.hardware.usage import Sampler
from gridhand.posix.procfs import read_process

MB = 10**6

# A process, its child and its grandchild: each has 200 MB, and burns about a sixth of a core.
FAMILY = """
import os, sys, time
for _ in range(2):
    if os.fork():
        break
memory = bytearray(200_000_000)
with open(sys.argv[1], "w") as gate:
    gate.write(f"{os.getpid()}\\n")
while True:
    end = time.process_time() + 0.01
    while time.process_time() < end:
        pass
    time.sleep(0.05)
"""


def cpu_time(pids):
    """The CPU time of processes as the kernel's own clock of each has it, to the nanosecond."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def signal_all(pids, signum):
    for pid in pids:
        os.kill(pid, signum)


def burn(pids, seconds):
    """Wait until they have used that much, then stop them, so that readings can be compared."""
    signal_all(pids, signal.SIGCONT)
    begin = cpu_time(pids)
    while cpu_time(pids) - begin < seconds:
        time.sleep(0.05)
    signal_all(pids, signal.SIGSTOP)


@pytest.fixture
def agent(node):
    agent = node.connect()
    agent.ask("sample", every_ms=1000, for_ms=600_000)
    return agent


def test_a_job_with_children_and_grandchildren_is_measured_within_5_percent(node, agent):
    said = node.gate()
    order = node.order("j", sys.executable, "-S", "-E", "-c", FAMILY, said.path)
    agent.start(order)
    pids = [int(said.hear()) for _ in range(3)]
    burn(pids, 1.5)
    # While they are stopped, a sample is of what they have used, whenever it was taken.
    stood = agent.event("usage", lambda event: event["jobs"].get("j", {}).get("cpu") == 0)
    used = stood["jobs"]["j"]
    assert used["cpu_seconds"] == pytest.approx(cpu_time(pids), rel=0.05)
    assert used["memory_bytes"] == pytest.approx(600 * MB, rel=0.05)
    assert used["peak_bytes"] >= used["memory_bytes"]
    assert used["processes"] == 3
    assert stood["own"]["memory_bytes"] > 570 * MB
    assert stood["others"]["memory_bytes"] <= stood["node"]["memory_bytes"] - 570 * MB
    assert not {process["pid"] for process in stood["others"]["processes"]} & set(pids)
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=0)
    signal_all(pids, signal.SIGCONT)
    agent.end("j")


def test_the_rate_of_a_tree_is_its_time_by_the_time_between_samples(node):
    said, now = node.gate(), 0.0
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", FAMILY, said.path], start_new_session=True
    ) as parent:
        try:
            pids = [int(said.hear()) for _ in range(3)]
            roots = {"j": [read_process(parent.pid).identity]}
            now = read_process(parent.pid).start / os.sysconf("SC_CLK_TCK") + 10
            sampler = Sampler(clock=lambda: now)
            signal_all(pids, signal.SIGSTOP)
            before = cpu_time(pids)
            sampler.sample(roots)
            burn(pids, 1.0)
            now += 2.0
            used = sampler.sample(roots).trees["j"]
            assert used.cpu * 2.0 == pytest.approx(cpu_time(pids) - before, rel=0.05)
            assert used.memory_bytes == pytest.approx(600 * MB, rel=0.05)
            assert used.anonymous_bytes == pytest.approx(600 * MB, rel=0.05)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def measured(event):
    """Whether it is a sample of some time, for which all processes were read."""
    return event.get("over_ms", 0) > 500 and "processes" in event["node"]


def test_a_node_is_measured_when_nothing_runs(agent):
    event = agent.event(
        "usage", lambda event: measured(event) and "network_sent_per_s" in event["node"]
    )
    assert event["jobs"] == {}
    load = event["node"]
    assert 0 <= load["cpu"] <= os.cpu_count()
    assert load["memory_bytes"] > 0
    assert load["processes"] > 1
    assert len(load["load"]) == 3
    assert 0 < load["disk_bytes"] <= load["disk_total_bytes"]
    assert load["network_sent_per_s"] >= 0
    own, others = event["own"], event["others"]
    assert 0 < own["memory_bytes"] < 500 * MB  # the agent, the starter, and this test
    assert others["memory_bytes"] < load["memory_bytes"]
    assert others["machine_bytes"] > load["memory_bytes"]


def test_a_process_of_others_is_named_and_one_of_ours_is_not(node, agent):
    code = "x = bytearray(300_000_000); import sys; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-S", "-E", "-c", code]
    # Not a child of this test, which counts as a controller here: nobody knows whose it is.
    shell = ["/bin/sh", "-c", '"$@" < "$0" > /dev/null & echo $!', str(node.gate().path), *command]
    done = subprocess.run(shell, stdout=subprocess.PIPE, text=True, check=True)
    stranger = int(done.stdout.split()[0])
    try:
        agent.start(
            node.python("j", code.replace("sys.stdin.read()", "import time; time.sleep(600)"))
        )
        event = agent.event(
            "usage",
            lambda event: (
                event["jobs"].get("j", {}).get("memory_bytes", 0) > 300 * MB
                and any(
                    one["pid"] == stranger and one["memory_bytes"] > 285 * MB  # it is all there
                    for one in event["others"]["processes"]
                )
            ),
        )
        [told] = [one for one in event["others"]["processes"] if one["pid"] == stranger]
        assert told["memory_bytes"] == pytest.approx(300 * MB, rel=0.05)
        assert told["name"].startswith("python")
        assert event["others"]["memory_bytes"] >= 285 * MB
        agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=0)
        agent.end("j")
    finally:
        os.kill(stranger, signal.SIGKILL)


def test_a_virtual_node_uses_what_its_jobs_use(node):
    node.options = ["--virtual-node", "v1", "cpu=4"]
    agent = node.connect()
    order, said, held = node.held("j")
    agent.start(order)
    said.hear()
    event = agent.event("usage", lambda event: "j" in event["jobs"])
    assert "others" not in event
    assert event["node"]["memory_bytes"] == event["jobs"]["j"]["memory_bytes"] > 0
    held.open()
    agent.end("j")


#    what it shows                    request
WRONG = {
    "too often":                     {"every_ms": 999, "for_ms": 1000},
    "for ever":                      {"every_ms": 1000, "for_ms": 10**9},
    "a fraction":                    {"every_ms": 1000.5, "for_ms": 1000},
    "backwards":                     {"every_ms": -1000, "for_ms": 1000},
    "without an end":                {"every_ms": 1000},
}  # fmt: skip


def test_wrong_paces_are_refused(agent):
    for asked in WRONG.values():
        code, message = agent.ask("sample", **asked)
        assert code == "malformed"
        assert message.startswith(("every_ms: ", "for_ms: ")), message


def test_an_idle_agent_does_not_look_at_all_processes_every_second(agent):
    """Every second the node is measured; all processes are read with the usual samples only."""
    agent.event("usage", measured)
    seen = [agent.event("usage")["node"] for _ in range(4)]
    assert sum("processes" in load for load in seen) <= 1
    assert all(load["memory_bytes"] > 0 for load in seen)
