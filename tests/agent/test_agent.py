"""The agent runs what it is told, gives each job what it was granted, and tells how it ended."""

import json
import os
import signal
import subprocess
import sys

import pytest

from gridhand.posix import procfs


def test_who_it_is_and_what_the_node_has(agent):
    told = agent.greeting
    assert procfs.is_alive(told["pid"], told["start"])
    assert told["protocol"] == 1
    assert told["node"]["capacity"]["cpu"] > 0
    assert set(told["cpus"]) == os.sched_getaffinity(0)
    assert told["enforced"].keys() == {"memory", "pids"}


def test_how_it_ended_is_told(node, agent):
    [fact] = agent.start(node.order("j", "/bin/sh", "-c", "echo out; echo error >&2; exit 7"))
    assert (fact["job"], fact["attempt"], fact["fence"]) == ("j", 1, "a-j-1")
    assert fact["state"] in ("running", "ended")  # it may be over by then
    assert fact["pid"] > 0
    end = agent.ends()["j"]
    assert (end["reason"], end["code"], end["signal"]) == ("exit", 7, None)
    assert (end["stdout_bytes"], end["stderr_bytes"]) == (4, 6)
    assert end["message"] == "it exited with code 7"
    assert end["peak_bytes"] > 100_000
    assert 0 <= end["ran_ms"] < 30_000
    assert node.output("j") == b"out\n"


def test_a_signal_is_told(node, agent):
    agent.start(node.order("j", "/bin/sh", "-c", "kill -SEGV $$"))
    end = agent.ends()["j"]
    assert (end["reason"], end["signal"]) == ("signal", signal.SIGSEGV)


def test_a_command_that_is_not_there_could_not_be_started(node, agent):
    [fact] = agent.start(node.order("j", "/no/such/command"))
    assert fact["state"] == "ended"
    assert fact["end"]["reason"] == "start_failed"
    assert "/no/such/command" in fact["end"]["message"]
    assert agent.ends()["j"]["reason"] == "start_failed"


def test_many_orders_in_one_message_and_one_bad_one(node, agent):
    orders = [node.order(f"j{number}", "/bin/true") for number in range(64)]
    orders[7]["cwd"] = "relative"
    orders[9]["cores"] = -1
    orders[11]["unheard"] = 1
    facts = agent.start(*orders)
    bad = [one["job"] for one in facts if one.get("end", {}).get("reason") == "start_failed"]
    assert bad == ["j7", "j9", "j11"]
    assert len(agent.ends(61)) == 61


def test_the_same_attempt_is_started_once(node, agent):
    once = node.order("j", "/bin/sh", "-c", "echo ran")
    first, second = agent.start(once, once)
    assert first["pid"] == second["pid"]
    agent.ends()
    [again] = agent.start(once)
    assert (again["state"], again["pid"]) == ("ended", first["pid"])
    agent.start(node.order("j", "/bin/sh", "-c", "echo again", attempt=2))
    agent.ends()
    assert node.output("j") == b"ran\nagain\n"


def test_what_is_forgotten_is_gone_from_the_list(node, agent):
    order, said, held = node.held("runs")
    agent.start(order, node.order("ended", "/bin/true"))
    said.hear()
    agent.ends()
    listed = agent.ask("list")
    assert [one["job"] for one in listed["running"]] == ["runs"]
    assert [one["job"] for one in listed["ended"]] == ["ended"]
    assert listed["trouble"] == ""
    assert agent.ask("forget", attempts=[["ended", 1], ["runs", 1], ["never", 1]])["forgotten"] == 1
    assert agent.ask("list")["ended"] == []
    held.open()
    agent.ends()


def test_the_environment_says_what_was_granted(node, agent):
    given = {"PATH": os.defpath, "MINE": "x", "MKL_NUM_THREADS": "7", "GRIDHAND_MEMORY_BYTES": "1"}
    agent.start(
        node.order("j", "env", "-0", env=given | {"GRIDHAND_GPU_MEMORY_BYTES": "5"}, cores=15_000),
        node.order("k", "env", "-0", env=given, memory_bytes=1 << 30, devices=["here/1", "here/0"], gpu_memory={"here/1": 5, "here/0": 6}),
    )  # fmt: skip
    agent.ends(2)
    j, k = (
        dict(line.split("=", 1) for line in node.output(job).decode().split("\0")[:-1])
        for job in "jk"
    )
    assert j == {
        "PATH": os.defpath,
        "MINE": "x",
        "GRIDHAND_STARTER": agent.greeting["mark"],
        "GRIDHAND_JOB_ID": "j",
        "GRIDHAND_ATTEMPT": "1",
        "GRIDHAND_NODE": "here",
        "GRIDHAND_ALLOCATION_ID": "a-j-1",
        "GRIDHAND_CPUS": "1.5",
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "7",
        "OPENBLAS_NUM_THREADS": "1",
    }
    assert k["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert k["GRIDHAND_GPU_MEMORY_BYTES"] == "6,5"
    assert k["GRIDHAND_MEMORY_BYTES"] == str(1 << 30)


def test_whole_cores_are_its_own_and_others_share_the_rest(node, agent):
    cores = sorted(agent.greeting["cpus"])
    if len(cores) < 2:
        pytest.skip("one core cannot be shared and had alone")
    held = [
        node.held("part", cores=5000),
        node.held("whole", cores=10_000),
        node.held("any", cores=10_000, pin=False),
    ]
    pids = {}
    for order, said, _ in held:  # one after the other: the first finds all cores free
        agent.start(order)
        pids[order["job"]] = int(said.hear())
    whole = os.sched_getaffinity(pids["whole"])
    part = os.sched_getaffinity(pids["part"])
    assert len(whole) == 1
    assert part == set(cores) - whole
    assert os.sched_getaffinity(pids["any"]) == set(cores)
    held[1][2].open()
    agent.ends()
    agent.ask("sample", every_ms=1000, for_ms=60_000)
    agent.event("usage")  # some rounds later
    assert os.sched_getaffinity(pids["part"]) == set(cores)
    for one in (held[0], held[2]):
        one[2].open()
    agent.ends(2)


def test_an_older_epoch_is_refused(node, agent):
    old = node.connect(epoch=3, watch=False)
    new = node.connect(epoch=5, watch=False)
    assert old.ask("list")[0] == "stale_epoch"
    assert old.ask("start", jobs=[node.order("j", "/bin/true")])[0] == "stale_epoch"
    with pytest.raises(EOFError):  # it watched: it is to find out by itself
        agent.read()
    assert new.ask("list")["running"] == []
    node.kill(new)
    late = node.connect(epoch=4, watch=False)
    assert late.greeting[0] == "stale_epoch"
    assert node.connect(epoch=5).ask("list")["running"] == []


#    what it shows                     sent                                           the word
STRANGE = {
    "not JSON":                       (b"{\n",                                       "malformed"),
    "not an object":                  (b"[1]\n",                                     "malformed"),
    "an unknown question":            (b'{"do": "dance"}\n',                         "malformed"),
    "a hello without an epoch":       (b'{"do": "hello"}\n',                         "malformed"),
    "a hello with a negative one":    (b'{"do": "hello", "epoch": -1}\n',            "malformed"),
    "jobs that are no list":          (b'{"do": "start", "jobs": {}}\n',             "malformed"),
    "a job without a name":           (b'{"do": "start", "jobs": [{}]}\n',           "malformed"),
    "a stop without a reason":        (b'{"do": "stop", "job": "held", "attempt": 1}\n', "malformed"),
    "an unknown attempt":             (b'{"do": "stop", "job": "x", "attempt": 1, "reason": "cancelled"}\n', "unknown_attempt"),
    "an unknown signal":              (b'{"do": "signal", "job": "held", "attempt": 1, "signal": 99}\n', "malformed"),
    "attempts that are no pairs":     (b'{"do": "forget", "attempts": [1]}\n',       "malformed"),
    "a number that is none":          (b'{"do": "hello", "epoch": NaN}\n',           "malformed"),
}  # fmt: skip


def test_what_makes_no_sense_is_refused_and_harms_nobody(node, agent):
    order, said, held = node.held("held")
    agent.start(order)
    said.hear()
    for line, word in STRANGE.values():
        agent.send(line)
        while "event" in (reply := agent.read()):
            pass
        assert reply["error"] == word, line
    held.open()
    assert agent.ends()["held"]["reason"] == "exit"


def test_nothing_is_answered_before_a_hello(node, agent):
    silent = node.connect(watch=False)
    silent.close()
    with subprocess.Popen(["/bin/true"]) as _:
        pass
    from gridhand.agent.starter import connection

    raw = connection.connect(node.folder, 10)
    raw.sendall(b'{"do": "list", "id": 1}\n')
    assert json.loads(raw.recv(65536))["error"] == "no_hello"
    raw.close()


def test_a_signal_is_sent(node, agent):
    order, said, _ = node.held("j")
    agent.start(order)
    said.hear()
    assert agent.ask("signal", job="j", attempt=1, signal=15, to="group")["sent"] is True
    assert agent.ends()["j"]["signal"] == 15
    assert agent.ask("signal", job="j", attempt=1, signal=15, to="group")["sent"] is False


def test_what_is_used_is_told_while_somebody_watches(node, agent):
    code = "x = bytearray(80_000_000)\nimport sys; print('ready', flush=True)\nwhile True: pass"
    agent.start(node.python("j", code))
    event = agent.event(
        "usage", lambda event: event["jobs"].get("j", {}).get("memory_bytes", 0) > 80_000_000
    )
    used = event["jobs"]["j"]
    assert used["attempt"] == 1
    assert 0.05 < used["cpu"] <= 1.5
    assert used["peak_bytes"] >= used["memory_bytes"]
    assert event["node"]["memory_bytes"] > 80_000_000
    assert event["node"]["cpu"] > 0
    assert event["foreign"] == {}
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=0)
    assert agent.end("j")["peak_bytes"] > 80_000_000


def test_only_one_agent_has_a_folder(node, agent):
    command = [sys.executable, "-m", "gridhand.agent.main", node.folder, "--starter", node.starter]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "another agent" in done.stderr
    assert agent.ask("list")["running"] == []


def test_it_ends_when_nobody_needs_it(node, tools):
    node.launch("--grace", "0.3")
    client = node.connect()
    order, said, held = node.held("j")
    client.start(order)
    said.hear()
    pid = client.greeting["pid"]
    client.close()
    with tools.watched(pid) as gone:
        assert procfs.read_process(pid)
        held.open()
        gone()
    assert not os.path.exists(os.path.join(node.folder, "socket"))


def test_quit_ends_the_agent_and_no_job(node, agent, tools):
    order, said, held = node.held("j")
    agent.start(order)
    pid = int(said.hear())
    with tools.watched(agent.greeting["pid"]) as gone:
        agent.ask("quit")
        gone()
    assert procfs.read_process(pid)
    again = node.connect()
    held.open()
    assert again.ends()["j"]["code"] == 0


def test_strangers_are_not_let_in(node, agent):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = "import os, socket, sys\nos.chdir(sys.argv[1])\nos.setresuid(1234, 1234, 1234)\ns = socket.socket(socket.AF_UNIX)\ntry:\n    s.connect('socket')\n    s.sendall(b'{}\\n')\n    print(s.recv(10))\nexcept OSError as error:\n    print(error)\n"
    for mode in (0o700, 0o777):
        os.chmod(os.path.join(node.folder, "socket"), 0o600 if mode == 0o700 else 0o777)
        done = subprocess.run([sys.executable, "-c", code, node.folder], capture_output=True, text=True, check=False)  # fmt: skip
        assert "error" not in done.stdout
        assert done.stdout.strip() in (
            "b''",
            "[Errno 13] Permission denied",
            "[Errno 104] Connection reset by peer",
            "[Errno 32] Broken pipe",
        )
