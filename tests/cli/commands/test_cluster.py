"""`grid status`, `list`, `stats`, `top`, `node`, `reserve` and `release`."""

import json
import os
import pty
import re
import select
import time

import pytest

import fake_api as samples
from gridhand.cli import render
from gridhand.cli.commands import top
from gridhand.core.model.resources import read_amount

node, running, job = samples.node, samples.running, samples.job

STATUS = {
    "controller": {
        "pid": 42, "version": "0.1.0", "uptime_s": 3700.5, "home": "/h", "store": "sqlite:////h/g",
    },
    "nodes": [node(), node("other", health="down"), node("third", draining=True)],
    "total": {"cpu": 8, "memory": 16 * 10**9, "fpga": 1},
    "allocated": {"cpu": 2},
    "available": {"cpu": 6, "memory": 16 * 10**9, "fpga": 1},
    "jobs": {"queued": 3, "running": 1},
    "problems": [{"node": "box", "message": "GPU 1 is lost", "hint": "Reset it."}],
}  # fmt: skip


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(render, "on_terminal", lambda: True)


def test_status(fake, grid, capsys):
    fake.answers["GET", "/status"] = STATUS
    assert grid("status") == 0
    assert capsys.readouterr().out == (
        "Controller: 0.1.0, pid 42, up 1:01:40\n"
        "Home:       /h\n"
        "Store:      sqlite:////h/g\n"
        "Nodes:      3 (1 up, 1 down, 1 draining)\n"
        "Jobs:       3 queued, 1 running\n"
        "\n"
        "RESOURCE  TOTAL  ALLOCATED  AVAILABLE  SHARE\n"
        "CPU           8          2          6   25 %\n"
        "Memory    16 GB        0 B      16 GB    0 %\n"
        "fpga          1          0          1    0 %\n"
        "\n"
        "Problems:\n"
        "  box: GPU 1 is lost\n"
        "    Reset it.\n"
    )


def test_status_as_json(fake, grid, capsys):
    fake.answers["GET", "/status"] = STATUS
    assert grid("status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["controller"]["pid"] == 42


def test_an_empty_cluster(fake, grid, capsys):
    nothing = {"nodes": [], "total": {}, "allocated": {}, "available": {}, "problems": []}
    fake.answers["GET", "/status"] = {**STATUS, **nothing}
    fake.answers["GET", "/nodes"] = {"nodes": []}
    assert grid("status") == 0
    assert "Nodes:      0\n" in capsys.readouterr().out
    assert grid("list") == 0
    assert capsys.readouterr().out == "There are no nodes. Add one with `grid node register`.\n"


# ---- list and stats, in the seed's layout

GPU_LOAD = {
    "utilization": 45.0, "memory_bytes": 10 * 10**9, "temperature_c": 61.0, "power_w": 250.4,
    "processes": [
        {"pid": 5, "name": "train", "user": "ann", "job": "17", "memory_bytes": 9 * 10**9},
        {"pid": 6, "name": "\x1b[31m", "user": "", "job": None, "memory_bytes": None},
    ],
}  # fmt: skip
BLENDER = {"pid": 4711, "name": "blender", "user": "bob", "cpu": 1.5, "memory_bytes": 28 * 10**8}
LOAD = {
    "over_s": 10.0, "own": {"cpu": 1.2, "memory_bytes": 6 * 10**8}, "load": [0.5, 0.25, 0.1],
    "others": {"cpu": 1.616, "memory_bytes": 4 * 10**9, "processes": [BLENDER]},
    "network_received_per_s": 1200, "network_sent_per_s": 0,
    "disk_bytes": 12 * 10**9, "disk_total_bytes": 10**11, "disk_read_per_s": 5 * 10**6,
}  # fmt: skip

PLAIN_LIST = """\
box
  Status: up
  Address: 10.0.0.1 (declared only)
  Resources:
    CPU:     8.0 total, 2.0 allocated, 6.0 available, 2.8 used
    Memory:  16.0 GB total, 4.0 GB allocated, 12.0 GB available, 4.6 GB used
    Storage: 100.0 GB total, 0.0 GB allocated, 100.0 GB available
    GPU:     2.0 total, 1.0 allocated, 1.0 available
  Running Jobs: 2
"""


def test_list_is_plain_when_it_is_not_for_a_terminal(fake, grid, capsys):
    fake.answers["GET", "/nodes"] = {"nodes": [node(address="10.0.0.1")]}
    assert grid("list", "--long") == 0
    assert capsys.readouterr().out == PLAIN_LIST


def test_list_has_a_line_for_each_node(fake, grid, capsys):
    total = {"cpu": 2.5, "license": 3}
    small = node(
        "small", total=total, available={**total, "license": 1}, draining=True, jobs=0, used={}
    )
    busy = node(gpus=[{"id": "G-1", "load": GPU_LOAD}, {"id": "G-2", "load": None}])
    fake.answers["GET", "/nodes"] = {"nodes": [busy, small]}
    assert grid("list") == 0
    assert capsys.readouterr().out == (
        "NODE   STATUS    FREE CPU  FREE MEMORY  FREE GPU  OTHERS       JOBS"
        "  USED CPU  USED MEMORY  GPU USE  SEEN\n"
        "box    up             6/8  12 GB/16 GB       1/2  -               2"
        "      2.82      4.56 GB  45% -    -\n"
        "small  draining   2.5/2.5            -         -  1/3 license     0"
        "         -            -  -        -\n"
    )
    fake.answers["GET", "/nodes"] = {"nodes": [node(used={})]}
    assert grid("list") == 0
    assert "USED" not in capsys.readouterr().out  # where nothing is measured


ODD = {"cpu": 7.9999, "memory": 25_279_793_984}


def test_no_more_is_told_than_there_is(fake, grid, capsys):
    odd = node(total=ODD, available=ODD, allocated={}, used={})
    fake.answers["GET", "/nodes"] = {"nodes": [odd]}
    fake.answers["GET", "/nodes/box"] = odd
    fake.answers["GET", "/status"] = {**STATUS, "total": ODD, "available": ODD, "allocated": {}}
    assert grid("list", "-l") == 0
    assert "25.2 GB total, 0.0 GB allocated, 25.2 GB available\n" in (
        out := capsys.readouterr().out
    )
    assert "7.9 total, 0.0 allocated, 7.9 available\n" in out
    assert grid("stats", "box") == 0
    assert "25.27 / 0.00 / 25.27 GB\n" in capsys.readouterr().out
    assert grid("status") == 0
    assert "25.27 GB" in capsys.readouterr().out


#    what it shows                 bytes              rounded down   and up
SIZES = {
    "a whole number":             (16 * 10**9,        "16 GB",       "16 GB"),
    "bytes to the last one":      (25_279_793_984,    "25.27 GB",    "25.28 GB"),
    "few":                        (999,               "999 B",       "999 B"),
    "nothing":                    (0,                 "0 B",         "0 B"),
    "measured":                   (4.56e9,            "4.56 GB",     "4.56 GB"),
}  # fmt: skip


@pytest.mark.parametrize(("count", "down", "up"), SIZES.values(), ids=SIZES)
def test_sizes(count, down, up):
    assert (render.size(count), render.size(count, up=True)) == (down, up)
    assert read_amount("memory", render.size(count)) <= count


def test_list_has_a_frame_on_a_terminal(fake, grid, capsys, terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    fake.answers["GET", "/nodes"] = {"nodes": [node(address="10.0.0.1")]}
    assert grid("list", "-l") == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("╔═══ Registered Nodes ═══", "╚════════════════════════")
    plain = PLAIN_LIST.replace("Status: up", "Status: ● up").splitlines()
    assert lines == [f"║ {line}" for line in plain]


PLAIN_STATS = """\
Node: box
Status:          up, overcommitted
Labels:          zone=east

Resources (Total / Allocated / Available):
  CPU:           8.00 / 2.00 / 6.00 cores (35.2% used)
  Memory:        16.00 / 4.00 / 12.00 GB (28.5% used)
  Storage:       100.00 / 0.00 / 100.00 GB
  GPU:           2.00 / 1.00 / 1.00

Resource Utilization:
  CPU Allocated:     25.0%
  Mem Allocated:     25.0%
  Storage Allocated: 0.0%
  GPU Allocated:     50.0%

  GPU  MODEL  HEALTH  MEMORY  ALLOCATED  BY OTHERS   FREE
  G-1  A100   ok       40 GB      whole        0 B    0 B
  G-2  -      lost         -        0 B       5 GB  35 GB

Running Jobs:    2
"""
GPUS = [
    {"id": "G-1", "model": "A100", "health": "ok", "memory_bytes": 40 * 10**9, "exclusive": True,
     "allocated_memory_bytes": 40 * 10**9, "foreign_memory_bytes": 0, "free_memory_bytes": 0},
    {"id": "G-2", "model": "", "health": "lost", "memory_bytes": None, "exclusive": False,
     "allocated_memory_bytes": 0, "foreign_memory_bytes": 5 * 10**9,
     "free_memory_bytes": 35 * 10**9},
]  # fmt: skip


def test_stats(fake, grid, capsys):
    one = node(overcommitted=True, labels={"zone": "east"}, gpus=GPUS)
    fake.answers["GET", "/nodes/box"] = one
    assert grid("stats", "box") == 0
    assert capsys.readouterr().out == PLAIN_STATS
    assert grid("stats", "box", "--json") == 0
    assert json.loads(capsys.readouterr().out) == one


MEASURED_STATS = """\
  GPU  MODEL  HEALTH  MEMORY  ALLOCATED  BY OTHERS   FREE  BUSY   USED   TEMP  POWER
  G-1  A100   ok       40 GB      whole        0 B    0 B   45%  10 GB  61 °C  250 W
  G-2  -      lost         -        0 B       5 GB  35 GB     -      -      -      -

  G-1: train (5, ann): 9 GB, job 17
  G-1: �[31m (6, ?): an unknown amount, others

Use:
  By Gridhand:     1.20 cores, 600 MB
  By others:       1.62 cores, 4 GB
  Largest others:  blender (4711, bob): 1.50 cores, 2.8 GB
  Load average:    0.50 0.25 0.10
  Network:         1.2 kB/s received, 0 B/s sent
  Disk:            12 GB of 100 GB
  Disk traffic:    5 MB/s read

Running Jobs:    2
"""


def test_what_is_measured_is_shown_with_whose_it_is(fake, grid, capsys):
    gpus = [{**GPUS[0], "load": GPU_LOAD}, {**GPUS[1], "load": None}]
    used = {"cpu": 2.816, "memory": 4.6e9, "gpu": 0.45}
    seen = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    one = node(gpus=gpus, load=LOAD, used=used, last_seen_at=seen)
    fake.answers["GET", "/nodes/box"] = one
    assert grid("stats", "box") == 0
    out = capsys.readouterr().out
    assert out.endswith(MEASURED_STATS)
    assert "GPU:           2.00 / 1.00 / 1.00 (22.5% used)\n" in out
    assert "Address:         this machine\n" in out
    assert re.search(r"Last Seen:       [0-9]+ seconds? ago\n", out)
    fake.answers["GET", "/nodes"] = {"nodes": [one]}
    assert grid("list", "--long") == 0
    out = capsys.readouterr().out
    assert "  GPU Use: 45% -\n" in out
    assert "  Used By Others: 1.62 cores, 4 GB\n" in out
    assert "  Last Seen: " in out


def test_a_node_that_sends_heartbeats_is_not_this_machine(fake, grid, capsys):
    labels = {"gridhand.engine": "external"}
    fake.answers["GET", "/nodes/box"] = node(last_seen_at="2026-01-02T03:04:05Z", labels=labels)
    assert grid("stats", "box") == 0
    out = capsys.readouterr().out
    assert "Last Seen:" in out
    assert "this machine" not in out


def test_stats_has_a_frame_on_a_terminal(fake, grid, capsys, terminal):
    fake.answers["GET", "/nodes/box"] = node(last_seen_at="2026-01-02T03:04:05Z")
    assert grid("stats", "box") == 0
    lines = capsys.readouterr().out.splitlines()
    rule = "═" * 51
    assert (lines[0], lines[1], lines[2], lines[-1]) == (
        f"╔{rule}", "║ Node: box", f"╠{rule}", f"╚{rule}",
    )  # fmt: skip
    assert all(line.startswith("║") for line in lines[3:-1])
    assert "Last Seen:" in "".join(lines)


def test_an_unknown_node_is_an_error(fake, grid, capsys):
    problem = {
        "detail": "there is no node named 'x'",
        "code": "unknown_node",
        "hint": "Register it.",
    }
    fake.answers["GET", "/nodes/x"] = (404, problem)
    assert grid("stats", "x") == 125
    assert capsys.readouterr().err == "error: there is no node named 'x'\nhint: Register it.\n"


# ---- what fits on a terminal

#    what it shows                       the line                                    columns   what is shown
CLIPPED = {
    "what fits":                        ("abc",                                      3,        "abc"),
    "what is too long":                 ("abcdef",                                   4,        "abc…"),
    "colours take no room":             ("\033[32mabc\033[0m",                       3,        "\033[32mabc\033[0m"),
    "a colour is ended":                ("\033[32mabcdef\033[0m",                    4,        "\033[32mabc\033[0m…"),
    "wide ones take two":               ("日本語",                                    6,        "日本語"),
    "half of one is not shown":         ("日本語",                                    4,        "日…"),
    "marks take no room":               ("e\u0301" * 3,                              3,        "e\u0301" * 3),
}  # fmt: skip


@pytest.mark.parametrize(("line", "columns", "shown"), CLIPPED.values(), ids=CLIPPED)
def test_a_line_is_cut_to_the_terminal(line, columns, shown):
    assert render.clipped(line, columns) == shown


HEAD = ("ID", "NAME", "OWNER", "NODE", "REASON")
#    what it shows                       the rows                                        width   what is shown
NARROWED = {
    "what fits stays":                  ([("1", "a" * 20, "ann", "-", "-")],             60,     ["ID  NAME                  OWNER  NODE  REASON", f"1   {'a' * 20}  ann       -  -"]),
    "columns of dashes are left out":   ([("1", "a" * 20, "ann", "-", "why")],           40,     ["ID  NAME                  OWNER  REASON", f"1   {'a' * 20}  ann    why"]),
    "a long name is shortened":         ([("1", "a" * 20, "ann", "-", "why"),
                                          ("2", "b", "bob", "box", "-")],                43,     ["ID  NAME                OWNER  NODE  REASON", f"1   {'a' * 17}…  ann       -  why", "2   b                   bob     box  -"]),
    "wide ones are shortened, too":     ([("1", "日本語" * 4, "ann", "-", "why")],       35,     ["ID  NAME             OWNER  REASON", "1   日本語日本語日…  ann    why"]),
    "something of it is always left":   ([("1", "a" * 20, "ann", "-", "why")],           10,     ["ID  NAME          OWNER  REASON", f"1   {'a' * 11}…  ann    why"]),
    "a reason is not what is too long": ([("1", "a" * 20, "ann", "box", "why " * 50)],   60,     ["ID  NAME                  OWNER  NODE  REASON", f"1   {'a' * 20}  ann     box  {('why ' * 50).strip()}"]),
    "a number is not shortened":        ([("1", "a", "ann", "123456789012345", "why")],  30,     ["ID  NAME  OWNER             NODE  REASON", "1   a     ann    123456789012345  why"]),
    "an empty list keeps its head":     ([],                                             10,     ["ID  NAME  OWNER  NODE  REASON"]),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "width", "shown"), NARROWED.values(), ids=NARROWED)
def test_a_table_is_made_to_fit(rows, width, shown):
    assert render.table(HEAD, rows, "NODE", width) == shown


def test_columns_are_aligned_beside_wide_characters():
    lines = render.table(("NAME", "N"), [("日本語", 1), ("abc", 22)], right="N")
    assert lines == ["NAME     N", "日本語   1", "abc     22"]


def test_a_coloured_list_fits_the_terminal(fake, grid, capsys, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    one = job("1", name="x" * 60)
    one["tasks"] = {"count": 1, "named": "1", "nodes": 0, "longest_s": 0}
    fake.answers["GET", "/jobs"] = {"jobs": [one]}
    assert grid("jobs", "-a") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(render.width_of(re.sub("\033\\[[0-9;]*m", "", line)) for line in lines) == 30


def test_a_short_window_shows_the_head_of_top_and_of_its_columns():
    nodes = [node(f"box{n}") for n in range(3)]
    lines = top.frame({**STATUS, "nodes": nodes}, [running("8")], 80, 10)
    assert len(lines) <= 10
    assert lines[0].startswith("grid top")
    assert [line.split()[0] for line in lines if line][-2:] == ["ID", "8"]


# ---- top


@pytest.fixture
def live(fake):
    fake.answers["GET", "/status"] = STATUS
    usage = {"cpu": 0.93, "memory_bytes": 5 * 10**8}
    waiting = job("17_4", array="17", array_index=4, why="no room")
    waiting["tasks"] = {"count": 1497, "named": "17_[4-1500]", "nodes": 0, "longest_s": 0}
    found = {"running": [running("8", usage=usage)], "queued": [waiting]}
    fake.answers["GET", "/jobs"] = lambda _: {"jobs": found[dict(fake.query("/jobs")[-1])["state"]]}
    return fake


def test_one_picture(live, grid, capsys):
    assert grid("top", "--once") == 0
    assert live.query("/status") == [[("live", "true")]]  # it is measured every second for it
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"grid top  ..:..:..  3 queued, 1 running", lines[0])
    assert lines[2] == "box (up)"
    assert "2 of 8 allocated, 2.82 used" in lines[3]
    assert lines[-2].split()[:4] == ["8", "true", "ann", "running"]
    assert "0.93  500 MB" in lines[-2]
    assert lines[-1].startswith("17_[4-1500]")
    assert lines[-1].endswith("no room")


def test_a_picture_as_json(live, grid, capsys):
    assert grid("top", "--json") == 0
    assert json.loads(capsys.readouterr().out).keys() == {"status", "jobs"}


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_it_is_drawn_again_until_a_key_is_pressed(live, start, key):
    ours, theirs = pty.openpty()
    process = start("top", "--every", "0.1", stdin=theirs, stdout=theirs)
    os.close(theirs)
    shown = b""
    while shown.count(b"grid top") < 3:
        assert select.select([ours], [], [], 20)[0]
        shown += os.read(ours, 1 << 16)
    if key == b"q":
        os.write(ours, key)
    else:
        process.send_signal(2)
    while process.poll() is None:
        if select.select([ours], [], [], 0.05)[0]:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:
                break
    assert process.wait(timeout=20) == 0
    os.close(ours)
    assert shown.startswith(b"\033[?1049h")
    assert process.stderr.read() == b""


def test_a_picture_is_cut_to_the_screen():
    from gridhand.cli.commands.top import frame

    lines = frame(STATUS, [job(str(n)) for n in range(50)], width=30, height=10)
    assert len(lines) == 10
    assert lines[-1] == "…"
    assert all(len(line) <= 30 for line in lines)


# ---- node


def changed(name="box", **facts):
    return {"name": name, "health": "up", "draining": False, "total": {"cpu": 8}, **facts}


def test_a_node_is_registered(fake, grid, capsys):
    fake.answers["POST", "/nodes"] = {"nodes": [changed()]}
    arguments = ["-c", "8", "--mem", "16GB", "--disk", "1TB", "-r", "fpga=1", "--label", "zone=e"]
    assert (
        grid(
            "node", "register", "box", *arguments, "--gpus-of", "A100:40GB@8.0*2", "--gpus-of", "T4"
        )
        == 0
    )
    assert capsys.readouterr().out == (
        "registered node box: 8 cpu; its jobs run on the machine of the controller\n"
    )
    a100 = {"model": "A100", "memory": "40GB", "capability": "8.0"}
    assert fake.body("POST", "/nodes") == {
        "nodes": [
            {
                "name": "box",
                "resources": {"cpu": "8", "memory": "16GB", "disk": "1TB", "fpga": "1"},
                "gpus": [a100, a100, {"model": "T4"}],
                "labels": {"zone": "e"},
            }
        ]
    }


WRONG_NODES = {
    "one that has nothing": (["box"], "Give the node's resources"),
    "devices that make no sense": (["box", "--gpus-of", "A100:"], "'A100:' is not MODEL:MEMORY"),
    "none of a device": (["box", "--gpus-of", "A100*0"], "'A100*0' is not"),
    "no name": (["-c", "1"], "NAME"),
}


@pytest.mark.parametrize(("arguments", "says"), WRONG_NODES.values(), ids=WRONG_NODES)
def test_a_node_that_is_not_registered(fake, grid, capsys, arguments, says):
    assert grid("node", "register", *arguments) == 125
    assert says in capsys.readouterr().err
    assert fake.calls() == []


def test_draining_resuming_and_removing(fake, grid, capsys):
    fake.answers["POST", "/nodes/box/drain"] = changed(draining=True)
    fake.answers["POST", "/nodes/box/resume"] = changed()
    fake.answers["DELETE", "/nodes/box"] = {"removed": "box"}
    assert [
        grid("node", *words, "box") for words in (["drain"], ["resume"], ["remove", "--force"])
    ] == [0, 0, 0]
    assert capsys.readouterr().out == (
        "node box is draining: running jobs continue, new work goes elsewhere\n"
        "node box takes new work again (up)\n"
        "removed node box\n"
    )
    assert fake.query("/nodes/box") == [[("force", "1")]]
    assert grid("node", "drain", "--json", "box") == 0
    assert json.loads(capsys.readouterr().out)["draining"] is True


def test_node_list_is_list(fake, grid, capsys):
    fake.answers["GET", "/nodes"] = {"nodes": [node(address="10.0.0.1")]}
    assert grid("node", "list", "-l") == 0
    assert capsys.readouterr().out == PLAIN_LIST


# ---- reserve and release

HELD = {
    "id": "a1-5", "holder": "me", "node": "box", "resources": {"cpu": 2, "memory": 4 * 10**9},
    "state": "active", "expires_at": None,
}  # fmt: skip


def test_reserve_prints_the_id(fake, grid, capsys):
    fake.answers["POST", "/allocations"] = HELD
    assert grid("reserve", "-c", "2", "--mem", "4GB", "me") == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("a1-5\n", "grid: me holds 2 cpu, 4 GB memory on box\n")
    assert fake.body("POST", "/allocations") == {
        "request": {"cpu": "2", "memory": "4GB"}, "state": "active",
        "lifetime": "until_released", "holder": "me",
    }  # fmt: skip


def test_reserve_for_a_while(fake, grid, capsys):
    fake.answers["POST", "/allocations"] = HELD | {"expires_at": "2026-01-02T03:04:05.000Z"}
    assert grid("reserve", "-c", "2", "--ttl", "90") == 0
    assert " until 2026-01-0" in capsys.readouterr().err
    sent = fake.body("POST", "/allocations")
    assert (sent["ttl_s"], sent["lifetime"]) == (90.0, "lease")
    assert grid("reserve", "-c", "2", "-q", "--ttl", "2h", "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == "a1-5"


def test_nothing_cannot_be_reserved(fake, grid, capsys):
    assert grid("reserve", "me") == 125
    assert "Give the resources to reserve" in capsys.readouterr().err


def test_no_room_is_said_in_the_controller_s_words(fake, grid, capsys):
    problem = {"detail": "no node has room", "code": "no_room", "hint": "Ask for less."}
    fake.answers["POST", "/allocations"] = (409, problem)
    assert grid("reserve", "-c", "99") == 125
    assert capsys.readouterr().err == "error: no node has room\nhint: Ask for less.\n"


def test_what_is_held_is_released_by_its_holder_too(fake, grid, capsys):
    fake.answers["POST", "/allocations/me/release"] = HELD
    assert grid("release", "me") == 0
    said = "a1-5 is released when its job has stopped: 2 cpu, 4 GB memory on box\n"
    assert capsys.readouterr().out == said


def test_release_says_what_it_gave_back(fake, grid, capsys):
    fake.answers["POST", "/allocations/a1-5/release"] = HELD | {"state": "released"}
    assert grid("release", "a1-5") == 0
    assert capsys.readouterr().out == "released a1-5: 2 cpu, 4 GB memory on box\n"
    assert grid("release", "nothing", "a1-5") == 125
    out, err = capsys.readouterr()
    assert "released a1-5" in out
    assert err.startswith("error: ")
    assert grid("release", "--json", "a1-5") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "released"


def test_an_address_is_said_to_be_declared_only(fake, grid, capsys):
    made = {"name": "far", "total": {"cpu": 1}}
    fake.answers["POST", "/nodes"] = {"nodes": [made]}
    assert grid("node", "register", "far", "-c", "1", "--address", "10.9.9.9") == 0
    assert "10.9.9.9 is declared only: nothing connects to it" in capsys.readouterr().err


def test_each_part_of_a_setting_has_a_line_of_its_own(fake, grid, capsys):
    queues = {"night": {"priority": "low", "owner_quota": {"cpu": 4}}, "day": {}}
    values = {"queues": {"value": queues, "from": "file"}, "http.port": {"value": 7, "from": "x"}}
    fake.answers["GET", "/config"] = {"values": values, "not_used_yet": []}
    assert grid("config", "show") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["queues.night.priority", "low", "file"],
        ["queues.night.owner_quota.cpu", "4", "file"],
        ["queues.day", "{}", "file"],
        ["http.port", "7", "x"],
    ]
