"""Whoever is killed, and whatever is full: nothing is started twice, and no end is lost."""

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys

import pytest

import starter_client
from gridhand.agent.link_errors import LinkAbsent, LinkLost
from gridhand.agent.starter.journal import Journal
from gridhand.agent.starter.starter_client import ensure_starter
from gridhand.posix import procfs
from small_disk import small_disk
from starter_client import StarterClient
from until import until


def test_what_ends_while_nobody_listens_is_told_later(place, starter, tools):
    waits, said, held = place.held("j", "exit 5")
    [told] = starter.start([waits])
    said.hear()
    starter.close()
    with tools.watched(told["pid"]) as gone:
        held.open()
        gone()
    again = place.connect()
    again.watch()
    [ended] = again.list()["ended"] or [told | {"end": tools.ends(again)["j"]}]
    assert ended["end"]["code"] == 5
    assert [record["do"] for record in place.journal()] == [
        "mark",
        "epoch",
        "begin",
        "started",
        "ended",
    ]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.path.dirname(starter_client.__file__)}
CLIENT = """
import json, sys
from starter_client import StarterClient
client = StarterClient(sys.argv[1])
print(json.dumps(client.start(json.loads(sys.argv[2]))), flush=True)
sys.stdin.read()
"""


def test_a_client_that_is_killed_takes_nothing_with_it(place, starter, tools):
    waits, said, held = place.held("j", "exit 6")
    command = [sys.executable, "-c", CLIENT, place.folder, json.dumps([waits])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as client:
        [told] = json.loads(client.stdout.readline())
        client.kill()
    said.hear()
    [running] = starter.start([waits])
    assert running["pid"] == told["pid"]
    held.open()
    assert tools.ends(starter)["j"]["code"] == 6


ENSURE = """
import sys
from starter_client import StarterClient
sys.stdin.readline()
with StarterClient.ensure(sys.argv[1]) as client:
    print(client.greeting["pid"], flush=True)
    sys.stdin.read()
"""


def test_those_who_start_it_at_the_same_moment_start_one(place):
    command = [sys.executable, "-c", ENSURE, place.folder]
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
                )
            )
            for _ in range(4)
        ]
        for client in clients:
            client.stdin.write(b"go\n")
        for client in clients:
            client.stdin.flush()
        pids = {int(client.stdout.readline()) for client in clients}
        for client in clients:
            client.stdin.close()
    assert len(pids) == 1
    assert place.connect().greeting["pid"] in pids


def test_a_second_one_in_the_folder_gives_up(place, starter):
    module = [sys.executable, "-E", "-s", "-m", "gridhand.agent.starter", place.folder]
    done = subprocess.run(module, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "another starter has this folder\n")
    assert starter.list()["running"] == []


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(LinkLost, match="closed to others"):
        StarterClient.ensure(str(tmp_path))
    with pytest.raises(LinkAbsent):
        StarterClient(str(tmp_path))


def test_a_folder_with_a_long_name(place, tools):
    place.folder = str(place.path / ("long" * 40) / ("name" * 40))
    client = place.connect()
    client.watch()
    client.start([place.order("j", "true")])
    assert tools.ends(client)["j"]["code"] == 0


def test_one_that_hangs_is_not_replaced(place, starter):
    pid = starter.greeting["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(LinkLost) as caught:
            place.connect(timeout_s=0.3)
        assert not isinstance(caught.value, LinkAbsent)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert place.connect().greeting["pid"] == pid


def test_a_killed_starter_leaves_its_jobs_lost_and_says_which_live(place, starter, tools):
    lives, lives_said, _ = place.held("lives")
    dies, dies_said, dies_held = place.held("dies")
    told, dying = starter.start([lives, dies])
    starter.start([place.order("ended", "/bin/sh", "-c", "exit 3")])
    assert tools.ends(starter)["ended"]["code"] == 3
    lives_said.hear(), dies_said.hear()
    place.kill(starter)
    with tools.watched(dying["pid"]) as gone:
        dies_held.open()
        gone()

    after = place.connect()
    assert after.greeting["pid"] != starter.greeting["pid"]
    listed = after.list()
    assert listed["running"] == []
    found = {one["job"]: one for one in listed["ended"]}
    assert found["ended"]["end"]["code"] == 3
    for job, survivors in {"lives": [told["pid"]], "dies": []}.items():
        assert found[job]["end"]["reason"] == "lost"
        assert "exit status unknown" in found[job]["end"]["message"]
        assert found[job]["survivors"] == survivors
    assert after.start([lives])[0]["end"]["reason"] == "lost"  # and is not started again
    with tools.watched(told["pid"]) as gone:
        assert after.stop("lives", 0)
        gone()
    assert after.list()["ended"][0]["survivors"] == []
    assert after.forget([("lives", 0), ("dies", 0), ("ended", 0)]) == 3


def test_children_of_a_lost_job_are_found_by_its_name(place, starter, tools):
    said = place.gate()
    script = 'setsid sleep 1000 & echo $! > "$1"'
    starter.start([place.order("j", "/bin/sh", "-c", script, "-", said.path)])
    child = int(said.hear())
    tools.ends(starter)
    place.kill(starter)
    after = place.connect()
    assert after.list()["ended"][0]["survivors"] == [child]
    with tools.watched(child) as gone:
        assert after.stop_all("j", 0)["left"] == []
        gone()


def journal_of(pid, start, boot=None):
    """What a starter leaves that was killed while this process was its job."""
    name = {"job": "j", "attempt": 0}
    boot = boot or procfs.boot_id()
    begin = {"fence": None, "cgroups": [], "boot": boot, "begun_ms": 1, "begun_boot_ms": 1}
    return [{"do": "begin", **name, **begin}, {"do": "started", **name, "pid": pid, "start": start}]


@pytest.mark.parametrize(
    ("later", "boot"), [(-5, None), (0, "another")], ids=["its number was given again", "booted"]
)
def test_a_stranger_is_never_taken_for_the_job(place, later, boot):
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        found = procfs.read_process(stranger.pid)
        place.write_journal(*journal_of(stranger.pid, found.start + later, boot))
        client = place.connect()
        [ended] = client.list()["ended"]
        assert ended["end"]["reason"] == "lost"
        assert ended["survivors"] == []
        assert not client.stop("j", 0, signal.SIGKILL)
        assert client.stop_all("j", 0)["killed"] == 0
        assert stranger.poll() is None
        stranger.kill()


def test_the_same_process_is_taken_for_the_job(place):
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as job:
        place.write_journal(*journal_of(job.pid, procfs.read_process(job.pid).start))
        client = place.connect()
        assert client.list()["ended"][0]["survivors"] == [job.pid]
        assert client.stop_all("j", 0)["killed"] == 1
        assert job.wait() == -signal.SIGKILL


@pytest.mark.parametrize("mark", ["ours", "another's", None])
def test_one_that_was_killed_before_it_knew_the_pid(place, mark):
    ours = os.urandom(8).hex()
    place.write_journal({"do": "mark", "mark": ours}, journal_of(0, 0)[0])
    marks = {"GRIDHAND_JOB_ID": "j"}
    if mark:
        marks["GRIDHAND_STARTER"] = ours if mark == "ours" else "x"
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **marks}) as job:
        client = place.connect()
        [ended] = client.list()["ended"]
        found = [job.pid] if mark == "ours" else []
        assert (ended["pid"], ended["survivors"]) == (None, found)
        assert client.stop_all("j", 0)["killed"] == len(found)
        if not found:
            assert job.poll() is None
            job.kill()
        assert job.wait() == -signal.SIGKILL


TAILS = {
    "half a line":       '{"do":"ended","job":"j","att',
    "zeros":             "\0" * 100,
    "a line of rubbish": "rubbish\n",
    "a line of another kind": '{"do":"ended","job":"never begun","attempt":0,"end":{}}\n',
    "not an object":     "[1, 2]\n",
}  # fmt: skip


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_a_journal_that_was_torn_is_read(place, tail):
    place.write_journal({"do": "epoch", "epoch": 4}, *journal_of(2**22 + 1, 1), tail=tail)
    client = place.connect(epoch=4)
    assert client.list()["ended"][0]["end"]["reason"] == "lost"
    place.kill(client)
    again = place.connect(epoch=4)
    assert [one["job"] for one in again.list()["ended"]] == ["j"]
    assert again.list()["ended"][0]["end"] == client_end(place)


def client_end(place):
    with open(os.path.join(place.folder, "journal"), "rb") as file:
        lines = [line for line in file if b'"ended"' in line and b'"lost"' in line]
    return json.loads(lines[0])["end"]


@contextlib.contextmanager
def full_disk(place, pid, room=0):
    """As if the disk were full: from here on files of the starter cannot grow."""
    size = os.path.getsize(os.path.join(place.folder, "journal"))
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + room, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.parametrize("room", [0, 10], ids=["not a byte fits", "half a line fits"])
def test_a_full_disk_delays_the_news_and_starts_nothing(place, starter, tools, room):
    waits, said, held = place.held("j", "exit 4")
    [told] = starter.start([waits])
    said.hear()
    with full_disk(place, starter.greeting["pid"], room):
        with tools.watched(told["pid"]) as gone:
            held.open()
            gone()
        listed = starter.list()
        while not listed["trouble"]:
            listed = starter.list()
        assert [(one["end"]["code"], one["written"]) for one in listed["ended"]] == [(4, False)]
        assert starter.forget([("j", 0)]) == 0
        [refused] = starter.start([place.order("k", "true")])
        assert (refused["state"], refused["reason"]) == ("refused", "journal")
        assert "cannot write its journal" in refused["message"]
        assert not (place.path / "k.out").exists()
        assert list(starter.ended(0.0001)) == []
    assert tools.ends(starter)["j"]["code"] == 4
    assert starter.list()["trouble"] == ""
    starter.start([place.order("k", "true")])
    assert tools.ends(starter)["k"]["code"] == 0
    assert [record["do"] for record in place.journal()] == ["mark", "epoch", "begin", "started", "ended", "begin", "started", "ended"]  # fmt: skip


def test_a_disk_that_fills_with_the_start_refuses_it(place, starter):
    with full_disk(place, starter.greeting["pid"]):
        [refused] = starter.start([place.order("k", "true")])
        assert refused["state"] == "refused"
        assert starter.list()["running"] == starter.list()["ended"] == []
    assert starter.start([place.order("k", "true")])[0]["state"] == "running"


def test_a_really_full_disk(place, tools):
    os.makedirs(place.folder, mode=0o700)
    with small_disk(place.folder, "32k"):
        client = place.connect()
        client.watch()
        waits, said, held = place.held("j")
        client.start([waits])
        said.hear()
        filler = os.path.join(place.folder, "filler")
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(512)):
                pass
        states = {client.start([place.order(f"k{number}", "true")])[0]["state"] for number in range(20)}  # fmt: skip
        assert "refused" in states
        held.open()
        os.unlink(filler)
        jobs = set()
        while "j" not in jobs:
            jobs |= tools.ends(client).keys()
        place.clean()
    os.chmod(place.folder, 0o700)


def test_a_failed_sync_is_not_believed_the_second_time(tmp_path, monkeypatch):
    journal = Journal(str(tmp_path))
    journal.append({"do": "epoch", "epoch": 1})
    calls = iter([OSError(5, "Input/output error")])

    def fdatasync(fd):
        for error in calls:
            raise error

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for _ in range(2):
        with pytest.raises(OSError, match=r"Input/output|may not have reached"):
            journal.sync()
    assert journal.must_rewrite
    journal.rewrite([{"do": "epoch", "epoch": 2}])
    assert not journal.must_rewrite
    journal.sync()
    assert list(Journal(str(tmp_path)).read()) == [{"do": "epoch", "epoch": 2}]
    journal.close()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE"])
def test_it_survives_what_ends_others(starter, run, name):
    os.kill(starter.greeting["pid"], getattr(signal, name))
    assert run("j", "true")["code"] == 0


def test_it_belongs_to_nobody(starter):
    mine = procfs.read_process(starter.greeting["pid"])
    assert mine.session == mine.pid
    assert mine.parent != os.getpid()
    with open(f"/proc/{mine.pid}/stat") as file:
        assert file.read().rsplit(")", 1)[1].split()[4] == "0"  # no terminal


def test_it_ends_when_it_is_idle_and_not_before(place, tools):
    client = place.connect(grace_s=0.05)
    waits, said, held = place.held("j", "exit 2")
    client.start([waits])
    said.hear()
    client.close()
    pid = client.greeting["pid"]
    with tools.watched(pid) as gone:
        handle = os.pidfd_open(pid)
        assert not select.select([handle], [], [], 0.3)[0]  # a job runs
        os.close(handle)
        held.open()
        gone()
    assert place.connect().list()["ended"][0]["end"]["code"] == 2


@pytest.mark.parametrize("kept", ["nothing", "the first lines"])
def test_an_attempt_that_the_journal_has_lost_is_not_started_again(place, starter, tools, kept):
    """Row 90: it is over, and nobody knows how it ended."""
    runs = place.path / "runs"
    again = place.order("j", "/bin/sh", "-c", f"echo >> {runs}")
    starter.start([again])
    tools.ends(starter)
    journal = place.path / place.folder / "journal"
    journal.write_bytes(journal.read_bytes()[:10] if kept == "nothing" else b"".join(
        line for line in journal.read_bytes().splitlines(keepends=True)[:2]
    ))  # fmt: skip
    place.kill(starter)
    client = place.connect()
    client.watch()
    client.start([again])
    assert tools.ends(client)["j"]["reason"] == "lost"
    assert runs.read_text() == "\n"
    assert client.forget([("j", 0)]) == 1
    client.start([again])  # forgotten, it may be begun anew
    assert tools.ends(client)["j"]["code"] == 0


def test_a_removed_socket_is_back_soon(place, starter, tools):
    """Row 92: the starter is the same, what runs goes on, and old connections stay."""
    order, said, held = place.held("a")
    starter.start([order])
    said.hear()
    path = os.path.join(place.folder, "socket")
    os.unlink(path)
    until(lambda: os.path.exists(path))
    with StarterClient(place.folder, epoch=None) as found:
        assert found.greeting["pid"] == starter.greeting["pid"]
    held.open()
    assert tools.ends(starter)["a"]["code"] == 0


def test_whoever_looks_for_a_starter_whose_socket_is_gone_finds_it(place, starter):
    """Row 92: a second one would lose the jobs of the first."""
    os.unlink(os.path.join(place.folder, "socket"))
    assert ensure_starter(place.folder)["pid"] == starter.greeting["pid"]
    os.truncate(os.path.join(place.folder, "log"), 0)  # a second one was refused, and says so
