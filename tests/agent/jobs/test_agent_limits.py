"""No job has more than it was given, in memory, processes, time or log, whatever it starts."""

import os
import signal

import pytest

from gridhand.agent.jobs import capped_log
from gridhand.posix import procfs
from until import until

MB = 10**6

# Told when all is there, so that no test waits for less than what it means.
EATER = "x = []\nwhile True: x.append(bytearray(10_000_000))"
CHILD_EATS = f"""
import subprocess, sys, time
code = {EATER!r}
done = subprocess.run([sys.executable, '-S', '-E', '-c', code])
print('child', done.returncode, flush=True)
time.sleep(1000)
"""
EACH_LITTLE = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        x = bytearray(60_000_000)
        for place in range(0, len(x), 4096): x[place] = 1
        time.sleep(1000)
time.sleep(1000)
"""
# Its parents end before it eats: it is in no session and no environment of the job.
SOME = "x = [bytearray(10_000_000) for _ in range(60)]\nimport time; time.sleep(1000)"
DAEMON_EATS = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    middle = os.getpid()
    if os.fork(): os._exit(0)
    while os.getppid() == middle: pass
    os.execve(sys.executable, [sys.executable, '-S', '-E', '-c', {SOME!r}], {{}})
os.wait()
time.sleep(1000)
"""
EATERS = {
    "one process": EATER,
    "a child of it": CHILD_EATS,
    "all together": EACH_LITTLE,
    "a daemon without an environment": DAEMON_EATS,
}


@pytest.mark.parametrize("code", EATERS.values(), ids=EATERS)
def test_a_job_over_its_memory_is_ended_and_says_so(node, either, code):
    other, said, held = node.held("other", memory_bytes=200 * MB)
    either.start(node.python("j", code, memory_bytes=200 * MB, grace_ms=60_000), other)
    said.hear()
    end = either.end("j")
    assert end["reason"] == "oom"
    assert "killed: out of memory (limit 200 MB" in end["message"]
    assert end["peak_bytes"] > 150 * MB
    held.open()
    assert either.end("other")["code"] == 0
    assert either.ask("list")["running"] == []


def test_a_job_within_its_memory_is_left_alone(node, either):
    code = "x = bytearray(100_000_000)\nimport time; time.sleep(0.7)"
    either.start(node.python("j", code, memory_bytes=400 * MB))
    end = either.end("j")
    assert (end["reason"], end["code"]) == ("exit", 0)
    assert 100 * MB < end["peak_bytes"] < 400 * MB


def test_very_little_memory_ends_the_job_and_not_the_starter(node, either):
    order, said, held = node.held("other")
    either.start(order)
    said.hear()
    either.start(
        *(
            node.python(f"j{size}", "import time; time.sleep(1000)", memory_bytes=size)
            for size in (1, 4096, 10**5, 10**6)
        )
    )
    found = {f"j{size}": either.end(f"j{size}")["reason"] for size in (1,)}
    while len(found) < 4:
        found |= {one["job"]: one["end"]["reason"] for one in either.ask("list")["ended"]}
    assert set(found.values()) == {"oom"}
    held.open()
    assert either.end("other")["code"] == 0


FORKS = """
import os, time
made = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
    except BlockingIOError:
        break
    made += 1
print(made, flush=True)
os.kill(0, 9) if made < 200 else time.sleep(1000)
"""


def test_no_more_processes_than_it_may_have(node, agent):
    if agent.greeting["enforced"]["pids"] != "cgroup":
        pytest.skip("no control groups here")
    agent.start(node.python("j", FORKS, processes=50))
    assert agent.end("j")["reason"] == "signal"
    made = int(node.output("j"))
    assert 45 <= made <= 50  # itself counts, and until it is tightened one more


def test_who_fails_at_the_limit_of_processes_is_told_so(node, agent):
    if agent.greeting["enforced"]["pids"] != "cgroup":
        pytest.skip("no control groups for processes here")
    forks = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(60)"  # fmt: skip
    agent.start(
        node.python("j", forks, processes=50), node.python("k", "raise SystemExit(3)", processes=50)
    )
    found = agent.ends(2)
    assert (found["j"]["code"], found["k"]["code"]) == (1, 3)
    assert "it reached its limit of 50 processes and threads" in found["j"]["message"]
    assert "processes" not in found["k"]["message"]


def test_too_many_processes_are_ended_where_they_are_only_counted(node):
    node.options = ["--measured"]
    agent = node.connect()
    agent.start(node.python("j", FORKS, processes=50))
    end = agent.end("j")
    assert (end["reason"], end["signal"]) == ("signal", 9)
    assert "killed: too many processes and threads (limit 50, had " in end["message"]


def test_one_process_is_enough_to_start(node, agent):
    agent.start(node.order("j", "/bin/true", processes=1))
    assert agent.end("j")["code"] == 0


def test_a_job_has_its_time_and_no_more(node, agent):
    order, said, _ = node.held("j", time_limit_ms=300)
    agent.start(order)
    pid = int(said.hear())
    end = agent.end("j")
    assert end["reason"] == "timeout"
    assert end["message"] == "it ran longer than its limit of 0.3 s and was ended"
    assert end["signal"] == signal.SIGTERM
    assert 300 <= end["ran_ms"] < 5000
    assert procfs.read_process(pid) is None


def test_a_job_is_warned_before_its_time_is_over(node, agent):
    script = "trap 'exit 7' USR1; while :; do read x < /dev/zero & wait; done"
    warning = {"time_limit_ms": 60_000, "warn_ms": 59_800, "warn_signal": int(signal.SIGUSR1)}
    agent.start(node.order("j", "/bin/sh", "-c", script, **warning))
    end = agent.end("j")
    assert (end["reason"], end["code"]) == ("exit", 7)
    assert 200 <= end["ran_ms"] < 30_000


def test_a_warned_job_has_the_rest_of_its_time(node, agent):
    script = "trap '' USR1; while :; do read x < /dev/zero & wait; done"
    warning = {"time_limit_ms": 400, "warn_ms": 300, "warn_signal": int(signal.SIGUSR1)}
    agent.start(node.order("j", "/bin/sh", "-c", script, **warning))
    end = agent.end("j")
    assert (end["reason"], end["signal"]) == ("timeout", signal.SIGTERM)
    assert end["ran_ms"] >= 400


def test_time_is_over_for_one_that_ignores_it(node, agent):
    script = "trap '' TERM; while :; do read x < /dev/zero & wait; done"
    agent.start(node.order("j", "/bin/sh", "-c", script, time_limit_ms=200, grace_ms=200))
    end = agent.end("j")
    assert (end["reason"], end["signal"]) == ("timeout", 9)


def blocks(path):
    return os.stat(path).st_blocks * 512


def test_a_flood_of_output_is_cut_in_the_middle(node, agent):
    cap = 1 << 20
    code = """
import os
for number in range(4000):
    os.write(1, (b'%08d ' % number) * 9000)
os.write(2, b'done')
"""
    agent.start(node.python("j", code, log_bytes=cap))
    end = agent.end("j")
    size = 4000 * 9000 * 9
    assert end["stdout_bytes"] == size
    assert end["stderr_bytes"] == 4
    path = str(node.path / "j.out")
    assert blocks(path) <= cap + (64 << 10)
    (first, head), (cut, gone), (last, tail) = capped_log.read_range(path, 0, 10 * cap)
    assert first == 0
    assert head.startswith(b"00000000 ")
    assert isinstance(gone, capped_log.Cut)
    assert (cut, last) == (len(head), len(head) + gone.bytes)
    assert last + len(tail) == size
    assert tail.endswith(b"00003999 ")
    assert cap // 4 <= len(head) <= cap // 4 + 8192
    assert cap - cap // 4 <= len(tail) <= cap - cap // 4 + 8192


def test_a_flood_is_cut_while_it_lasts(node, agent):
    ready, go = node.gate(), node.gate()
    code = f"""
import os
for _ in range(300): os.write(1, b'x' * 1_000_000)
open({ready.path!r}, 'w').write('ready\\n')
open({go.path!r}).readline()
"""
    agent.start(node.python("j", code, log_bytes=4 << 20))
    ready.hear()
    until(lambda: blocks(node.path / "j.out") < 8 << 20)
    go.open()
    assert agent.end("j")["stdout_bytes"] == 300_000_000


def test_what_was_in_a_file_before_is_not_cut(node, agent):
    path = node.path / "mine"
    path.write_bytes(b"m" * 3_000_000)
    code = "import os\nfor _ in range(20): os.write(1, b'x' * 1_000_000)"
    agent.start(node.python("j", code, log_bytes=1 << 20, stdout=str(path), stderr=str(path)))
    end = agent.end("j")
    assert end["stdout_bytes"] == end["stderr_bytes"] == 23_000_000
    assert capped_log.read_range(str(path), 0, 3_000_000)[0][1] == b"m" * 3_000_000
    assert blocks(path) < 6_000_000


def test_an_output_that_is_no_file_is_left_alone(node, agent):
    order = node.order("j", "/bin/sh", "-c", "echo x; echo y >&2", log_bytes=0, stdout="/dev/null", stderr="/dev/null")  # fmt: skip
    agent.start(order)
    end = agent.end("j")
    assert (end["code"], end["stdout_bytes"]) == (0, 0)
