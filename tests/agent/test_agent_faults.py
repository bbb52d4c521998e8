"""Whatever dies, jobs go on or are told to be lost, and keep to their limits all the same."""

import asyncio
import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys

import pytest

from gridhand.agent.bootstrap import ensure_agent
from gridhand.agent.link_errors import LinkRefused
from gridhand.agent.starter import connection
from gridhand.posix import boot_clock, procfs
from small_disk import small_disk
from until import until

MB = 10**6


def alive(pid):
    return procfs.is_alive(pid)


def test_a_new_agent_finds_what_runs_and_what_ended(node, agent):
    runs, said, held = node.held("runs")
    agent.start(runs, node.order("ended", "/bin/sh", "-c", "exit 3"))
    pid = int(said.hear())
    agent.end("ended")
    away, away_said, away_held = node.held("away")
    agent.start(away)
    away_pid = int(away_said.hear())
    node.kill(agent)
    with processes_gone(away_pid):
        away_held.open()
    again = node.connect()
    listed = again.ask("list")
    assert [(one["job"], one["pid"]) for one in listed["running"]] == [("runs", pid)]
    assert {one["job"]: one["end"]["code"] for one in listed["ended"]} == {"ended": 3, "away": 0}
    assert [one["fence"] for one in listed["running"]] == ["a-runs-1"]
    [known] = again.start(runs)
    assert known["pid"] == pid
    held.open()
    assert again.end("runs")["code"] == 0


class processes_gone:
    """Waits at its end until a process has ended."""

    def __init__(self, pid):
        self._handle = os.pidfd_open(pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert select.select([self._handle], [], [], 30)[0]
        os.close(self._handle)


def test_limits_hold_after_the_agent_was_killed(node, either):
    go = node.gate()
    eats = f"open({go.path!r}).readline()\nx = []\nwhile True: x.append(bytearray(10_000_000))"
    said = node.gate()
    sleeps = "trap '' TERM; echo up > \"$1\"; while :; do sleep 0.1; done"
    either.start(
        node.python("eats", eats, memory_bytes=200 * MB),
        node.order("sleeps", "/bin/sh", "-c", sleeps, "-", said.path, time_limit_ms=1500, grace_ms=100),
    )  # fmt: skip
    said.hear()
    node.kill(either)
    again = node.connect()
    go.open()
    ends = again.ends(2)
    assert ends["eats"]["reason"] == "oom"
    assert ends["sleeps"]["reason"] == "timeout"
    assert ends["sleeps"]["ran_ms"] >= 1500


def test_time_that_ran_out_while_nobody_stood_there(node, agent):
    order, said, _ = node.held("j", time_limit_ms=200)
    agent.start(order)
    pid = int(said.hear())
    node.kill(agent)
    found = procfs.read_process(pid)
    began = boot_clock.boot_ms()
    while boot_clock.boot_ms() < began + 300:
        assert procfs.is_alive(pid, found.start)
    again = node.connect()
    while not (ended := again.ask("list")["ended"]):
        pass
    assert ended[0]["end"]["reason"] == "timeout"


def test_cores_stay_its_own_after_the_agent_was_killed(node, agent):
    if len(agent.greeting["cpus"]) < 2:
        pytest.skip("one core cannot be had twice")
    first, first_said, first_held = node.held("first")
    agent.start(first)
    one = os.sched_getaffinity(int(first_said.hear()))
    node.kill(agent)
    again = node.connect()
    second, second_said, second_held = node.held("second")
    again.start(second)
    other = os.sched_getaffinity(int(second_said.hear()))
    assert len(one) == len(other) == 1
    assert not one & other
    first_held.open()
    second_held.open()
    again.ends(2)


def test_logs_stay_capped_after_the_agent_was_killed(node, agent):
    go = node.gate()
    code = f"import os\nopen({go.path!r}).readline()\nfor _ in range(100): os.write(1, b'x' * 1_000_000)"
    agent.start(node.python("j", code, log_bytes=1 << 20))
    node.kill(agent)
    again = node.connect()
    go.open()
    assert again.end("j")["stdout_bytes"] == 100_000_000
    assert (node.path / "j.out").stat().st_blocks * 512 < 2 << 20


def test_leftovers_are_ended_by_the_next_agent(node, either):
    """The command ends while nobody stands there, and leaves a daemon."""
    ready, go = node.gate(), node.gate()
    script = 'setsid sleep 1000 & echo $! > "$1"; read x < "$2"'
    either.start(node.order("j", "/bin/sh", "-c", script, "-", ready.path, go.path))
    left = int(ready.hear())
    [fact] = either.ask("list")["running"]
    node.kill(either)
    with processes_gone(fact["pid"]):
        go.open()
    assert alive(left)
    again = node.connect()
    while not (ended := again.ask("list")["ended"]):
        pass
    assert ended[0]["end"]["code"] == 0
    assert not alive(left)


def test_a_starter_that_is_killed_takes_its_jobs_with_it_and_no_more(node, either):
    order, said, _ = node.held("j")
    either.start(order)
    pid = int(said.hear())
    starter = node.pid_of_starter()
    os.kill(starter, signal.SIGKILL)
    end = either.end("j")
    assert end["reason"] == "agent_lost"
    assert end["message"].startswith("exit status unknown")
    assert not alive(pid)
    either.start(node.order("next", "/bin/sh", "-c", "exit 4"))
    assert either.end("next")["code"] == 4
    assert node.pid_of_starter() != starter


def test_what_only_its_group_knows_is_ended_after_the_starter_was_killed(node, agent):
    if agent.greeting["enforced"]["pids"] != "cgroup":
        pytest.skip("no control groups here")
    ready = node.gate()
    script = '(setsid env -i /bin/sh -c "echo \\$\\$ > $1; exec sleep 1000" &) ; sleep 1000'
    agent.start(node.order("j", "/bin/sh", "-c", script, "-", ready.path))
    left = int(ready.hear())
    os.kill(node.pid_of_starter(), signal.SIGKILL)
    assert agent.end("j")["reason"] == "agent_lost"
    assert not alive(left)


def test_an_order_the_starter_cannot_read_harms_no_other(node, agent):
    """Its note is too long, with names that take six characters for each of theirs."""
    long = "/" + "/".join(["\udcff" * 200] * 12)
    good = [node.order(f"j{number}", "/bin/true") for number in range(3)]
    facts = agent.start(good[0], node.order("long", "/bin/true", stdout=long, stderr=long + "x"), *good[1:])  # fmt: skip
    assert [one["job"] for one in facts if one["state"] == "refused"] == []
    ends = agent.ends(4)
    assert ends["long"]["reason"] == "start_failed"
    assert [ends[f"j{number}"]["code"] for number in range(3)] == [0, 0, 0]


def test_a_starter_that_does_not_answer_is_not_replaced(node, agent):
    """It stands still, and goes on later: what was asked of it meanwhile is done once."""
    starter = node.pid_of_starter()
    os.kill(starter, signal.SIGSTOP)
    try:
        agent.send(
            json.dumps({"do": "start", "id": 99, "jobs": [node.order("j", "/bin/true")]}).encode()
            + b"\n"
        )
        assert agent.ask("list")["running"] != []
    finally:
        os.kill(starter, signal.SIGCONT)
    assert agent.end("j")["code"] == 0
    assert node.pid_of_starter() == starter


def test_a_signal_for_what_is_about_to_begin_is_not_lost(node, agent):
    """Its output may be seen, and Ctrl-C be pressed, before the starter's answer is read."""
    starter = node.pid_of_starter()
    os.kill(starter, signal.SIGSTOP)
    try:
        start = {"do": "start", "id": 98, "jobs": [node.order("j", "/bin/sleep", "600")]}
        sign = {"do": "signal", "id": 99, "job": "j", "attempt": 1, "signal": 2, "to": "group"}
        agent.send(b"".join(json.dumps(one).encode() + b"\n" for one in (start, sign)))
        assert agent.ask("list")["running"] != []  # the agent has read both
    finally:
        os.kill(starter, signal.SIGCONT)
    assert agent.end("j")["signal"] == signal.SIGINT


def test_starts_go_on_while_starters_are_killed(node, agent):
    """Each is started once, or told to be lost; none is forgotten."""
    ran = node.path / "ran"
    for number in range(30):
        if number % 10 == 5:
            os.kill(node.pid_of_starter(), signal.SIGKILL)
        [fact] = agent.start(node.order(f"j{number}", "/bin/sh", "-c", 'echo "$1" >> "$2"', "-", str(number), str(ran)))  # fmt: skip
        assert fact["state"] != "refused", fact["message"]
    found = {}
    while len(found) < 30:
        found = {one["job"]: one["end"]["reason"] for one in agent.ask("list")["ended"]}
    assert set(found.values()) <= {"exit", "agent_lost"}
    lines = ran.read_text().split()
    assert len(lines) == len(set(lines))
    assert len(lines) >= sum(reason == "exit" for reason in found.values())
    log = node.path / "agent" / "log"  # it may say that one was gone before it had answered
    said = log.read_text().splitlines() if log.exists() else []
    assert all(line.startswith("the starter cannot be reached") for line in said), said
    log.write_text("")


def forge(node, boot, pid, start):
    name = {"job": "j", "attempt": 1}
    begin = {"do": "begin", **name, "fence": "f", "cgroups": [], "boot": boot, "begun_ms": 1, "begun_boot_ms": 1}  # fmt: skip
    started = {"do": "started", **name, "pid": pid, "start": start}
    os.makedirs(node.starter, mode=0o700)
    with open(os.path.join(node.starter, "journal"), "w") as file:
        file.write(json.dumps(begin) + "\n" + json.dumps(started) + "\n")


def test_after_a_reboot_jobs_are_lost_with_the_node(node):
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        found = procfs.read_process(stranger.pid)
        forge(node, "another-boot", stranger.pid, found.start)
        [lost] = node.connect().ask("list")["ended"]
        assert lost["end"]["reason"] == "node_lost"
        assert "booted" in lost["end"]["message"]
        assert stranger.poll() is None
        stranger.kill()


def test_whoever_has_the_number_now_is_left_alone(node):
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        found = procfs.read_process(stranger.pid)
        forge(node, procfs.boot_id(), stranger.pid, found.start - 1)
        agent = node.connect()
        while not (ended := agent.ask("list")["ended"]):
            pass
        assert ended[0]["end"]["reason"] == "agent_lost"
        agent.ask("signal", job="j", attempt=1, signal=9, to="group")
        agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=0)
        assert stranger.poll() is None
        stranger.kill()


def fill(path):
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_a_full_disk_keeps_no_job_from_ending(node):
    """The agent's folder has no room at all; the starter's and the jobs' have."""
    os.mkdir(node.folder, 0o700)
    with small_disk(node.folder, "64k"):
        agent = node.connect()
        fill(os.path.join(node.folder, "fill"))
        order, said, held = node.held("j")
        agent.start(
            order,
            node.python(
                "eats", "x = []\nwhile True: x.append(bytearray(10_000_000))", memory_bytes=200 * MB
            ),
        )
        said.hear()
        assert agent.end("eats")["reason"] == "oom"
        node.kill(agent)
        again = node.connect()
        held.open()
        assert again.end("j")["code"] == 0
        again.start(node.order("k", "/bin/true", time_limit_ms=60_000))
        assert again.end("k")["code"] == 0
        again.ask("quit")
        with pytest.raises(EOFError):
            again.read()
        with processes_gone_if(again.greeting["pid"]):
            pass


def test_a_full_disk_of_the_starter_is_told(node):
    os.mkdir(node.starter, 0o700)
    with small_disk(node.starter, "256k"), contextlib.ExitStack() as last:
        last.callback(node.clean)
        agent = node.connect()
        go = node.gate()
        many = [node.order(f"j{number}", "/bin/sh", "-c", 'read x < "$1"', "-", go.path) for number in range(30)]  # fmt: skip
        stopped, stopped_said, _ = node.held("stopped")
        agent.start(*many, stopped)
        stopped_said.hear()
        fill(os.path.join(node.starter, "fill"))
        facts = agent.start(*(node.order(f"k{number}", "/bin/true") for number in range(40)))
        assert {one["state"] for one in facts} == {"refused"}
        assert "journal" in facts[0]["message"]
        fill(os.path.join(node.starter, "more"))
        for _ in many:  # their ends are more than fits in what the journal has already
            go.open()
        event = agent.event("node")
        assert "cannot write its journal" in event["problems"][-1]["message"]
        assert "cannot write its journal" in agent.ask("list")["trouble"]
        agent.ask("stop", job="stopped", attempt=1, reason="cancelled", grace_ms=0)
        assert agent.end("stopped")["reason"] == "cancelled"  # it can be ended all the same
        for name in ("fill", "more"):
            os.unlink(os.path.join(node.starter, name))
        while len(ended := agent.ask("list")["ended"]) < 31:
            pass
        assert sorted(one["end"]["reason"] for one in ended) == ["cancelled"] + ["exit"] * 30
        agent.start(node.order("k0", "/bin/true"))
        assert agent.end("k0")["code"] == 0


def processes_gone_if(pid):
    return processes_gone(pid) if procfs.read_process(pid) else contextlib.nullcontext()


def test_one_agent_stands_however_many_want_one(node):
    async def body():
        links = await asyncio.gather(
            *(ensure_agent(node.folder, node.starter, epoch=7) for _ in range(8))
        )
        pids = {link.greeting["pid"] for link in links}
        with pytest.raises(LinkRefused) as caught:
            await ensure_agent(node.folder, node.starter, epoch=6)
        for link in links:
            link.close()
        return pids, caught.value.because

    pids, because = asyncio.run(body())
    assert len(pids) == 1
    assert because == "stale_epoch"


def test_what_lies_in_the_folder_it_is_started_from_is_not_taken_for_a_module(node, monkeypatch):
    for name in ("json", "signal", "asyncio", "gridhand"):
        (node.path / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(node.path)
    assert node.connect().ask("list")["running"] == []


def test_a_link_tells_when_it_is_lost(node):
    async def body():
        lost = asyncio.Event()
        link = await ensure_agent(node.folder, node.starter, epoch=1, on_lost=lost.set)
        asked = asyncio.create_task(link.ask({"do": "list"}))
        await asked
        os.kill(link.greeting["pid"], signal.SIGKILL)
        async with asyncio.timeout(10):
            await lost.wait()
        assert link.lost
        again = await ensure_agent(node.folder, node.starter, epoch=1)
        assert again.greeting["pid"] != link.greeting["pid"]
        again.close()

    asyncio.run(body())


def test_it_is_spared_when_memory_runs_out_and_its_jobs_are_not(node, agent):
    def score(pid):
        with open(f"/proc/{pid}/oom_score_adj") as file:
            return int(file.read())

    mine = score("self")
    order, said, held = node.held("j")
    agent.start(order)
    pid = int(said.hear())
    assert score(pid) == mine
    lower = "open('/proc/self/oom_score_adj', 'w', buffering=1).write('-900\\n')"
    if (
        subprocess.run([sys.executable, "-c", lower], capture_output=True, check=False).returncode
        == 0
    ):
        assert score(agent.greeting["pid"]) == -900
    os.kill(node.pid_of_starter(), signal.SIGKILL)  # the next one is started by the agent itself
    agent.end("j")
    order, said, held = node.held("k")
    agent.start(order)
    assert score(int(said.hear())) == mine
    held.open()
    agent.end("k")


def test_jobs_may_open_as_many_files_as_before(node, agent):
    agent.start(node.order("j", "/bin/sh", "-c", "ulimit -Sn"))
    agent.end("j")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert node.output("j").decode().strip() == str(soft)


def test_one_that_floods_it_with_nonsense_is_let_go(node, agent):
    with connection.connect(node.folder, 30) as raw, pytest.raises(OSError):
        raw.sendall(b"x" * (80 << 20))
    assert agent.ask("list")["running"] == []


def test_a_removed_socket_is_back_soon(node, agent):
    """Row 92: the agent is the same, and old connections stay."""
    path = os.path.join(node.folder, "socket")
    os.unlink(path)
    until(lambda: os.path.exists(path))
    assert node.connect().greeting["pid"] == agent.greeting["pid"]
    assert agent.ask("list")["running"] == []


def test_whoever_looks_for_an_agent_whose_socket_is_gone_finds_it(node, agent):
    """Row 92: `ensure_agent` waits for the one that runs."""
    os.unlink(os.path.join(node.folder, "socket"))

    async def found():
        link = await ensure_agent(node.folder, node.starter, epoch=1)
        link.close()
        return link.greeting["pid"]

    assert asyncio.run(found()) == agent.greeting["pid"]
    os.truncate(os.path.join(node.folder, "log"), 0)  # a second one was refused, and says so


def test_what_a_killed_job_left_in_shared_memory_is_removed(node, agent):
    """The folder of a pool, say, whose process and workers were all killed."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from gridhand.posix.temporary_folders import make_temporary_folder as make;"
        "folder, lock = make('/dev/shm'); open(folder + '/large', 'wb').write(bytes(4096));"
        "print(folder, flush=True); import time; time.sleep(600)"
    )
    source = os.path.dirname(os.path.dirname(os.path.dirname(connection.__file__)))
    order = node.order("j", sys.executable, "-E", "-c", code, os.path.dirname(source))
    agent.start(order)
    folder = until(
        lambda: os.path.exists(node.path / "j.out") and node.output("j").decode().strip()
    )
    assert os.path.exists(os.path.join(folder, "large"))
    agent.ask("stop", job="j", attempt=1, reason="cancelled", grace_ms=0)
    agent.end("j")
    until(lambda: not os.path.exists(folder))


@pytest.mark.parametrize("agent_too", [False, True], ids=["the starter", "starter and agent"])
def test_a_process_that_the_journal_does_not_name_is_gone_before_its_end_is_told(
    node, either, agent_too
):
    """As after a kill right after the start: its begin is written, and its pid is not."""
    order, said, _ = node.held("j")
    either.start(order)
    pid, starter = int(said.hear()), node.pid_of_starter()
    journal = os.path.join(node.starter, "journal")
    with open(journal) as file:
        kept = [line for line in file if json.loads(line)["do"] != "started"]
    with open(journal, "w") as file:
        file.writelines(kept)
    if agent_too:
        node.kill(either)
    os.kill(starter, signal.SIGKILL)
    client = node.connect() if agent_too else either
    [ended] = until(lambda: client.ask("list")["ended"])
    assert not alive(pid)
    assert ended["end"]["reason"] == "agent_lost"
