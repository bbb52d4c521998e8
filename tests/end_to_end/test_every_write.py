"""A kill or a failure at every single write of a commit (rows 3, 23 and 24 of docs/reliability.md).

strace counts the writes and syncs of the store's files, and at the chosen one kills the process or
fails the call, as a power cut or a dying disk would. It counts for each thread by itself, so it is
attached either before the store is opened or after it, when only the keeper writes.
"""

import shutil
import subprocess
from collections import Counter

import pytest

from gridhand import Grid
from gridhand.audit import same_state

STRACE = shutil.which("strace")
pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed")

NODE = {"cpu": 4, "memory": "4GB"}
OPTIONS = {"gpus": [{"memory": "10GB"}] * 2}
CALLS = [
    ("register_node", ["n", NODE], OPTIONS),
    ("allocate", [{"cpu": 1}], {"holder": "one"}),
    ("allocate_group", [[{"cpu": 1}, {"gpu": 1}]], {"holder": "two"}),
    ("reserve", [{"gpu": 0.5}], {"ttl": 600}),
    ("confirm", ["@3"], {}),  # what call 3 was given
    ("release", ["@1"], {}),
    ("allocate", [{"cpu": 0.5, "memory": "1GB"}], {"ttl": 600}),
    ("renew", ["@6"], {}),
]


STEPS = [
    {"owner": "ann", "op_id": f"op-{index}", "call": call, "args": args, "options": options}
    for index, (call, args, options) in enumerate(CALLS)
]


class Watched:
    """One child on a store, with strace looking on."""

    def __init__(self, tools, nursery, path):
        self.tools, self.nursery, self.path = tools, nursery, path

    def run(self, when, inject=None):
        """Everything the child said; its writes are counted in `calls`, by thread and kind."""
        self.nursery.start(job="script", path=str(self.path), wait=when, steps=STEPS)
        lines = self.nursery.until("ready", "ended")
        log = self.path.parent / "strace.log"
        command = [STRACE, "-f", "-o", str(log), "-p", str(lines[-1]["ready"])]
        for name in ("", "-wal", "-journal"):
            command += ["-P", f"{self.path}{name}"]
        command += ["-e", "trace=pwrite64,fdatasync,pread64"]
        command += ["-e", f"inject={inject}"] if inject else []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            while "attached" not in (said := strace.stderr.readline()):
                if not said:
                    pytest.skip("strace may not attach to processes here")
            self.nursery.go()
            lines += self.nursery.until("ended")
            strace.stderr.read()
        self.calls = Counter()
        for line in log.read_text().splitlines():
            thread, _, call = line.partition(" ")
            self.calls[thread, call.strip().partition("(")[0]] += 1
        self.injected = "INJECTED" in log.read_text()
        return lines

    def most(self, call):
        """How many of them the busiest thread made."""
        return max((count for (_, name), count in self.calls.items() if name == call), default=0)


@pytest.fixture
def watch(tools, nursery, tmp_path):
    """A new store for every point."""
    count = iter(range(10**6))

    def make():
        folder = tmp_path / str(next(count))
        folder.mkdir()
        return Watched(tools, nursery, folder / "grid.db")

    return make


def points(watch, when, calls=("pwrite64", "fdatasync")):
    """Every write and every sync, in order."""
    trial = watch()
    lines = trial.run(when)
    assert lines[-1]["ended"] == 0, lines
    assert not any("told" in line for line in lines)
    return [(call, number) for call in calls for number in range(1, trial.most(call) + 1)]


def some(found, count):
    """About `count` of each kind, spread over all, with the first and the last."""
    chosen = []
    for kind in dict.fromkeys(call for call, _ in found):
        these = [one for one in found if one[0] == kind]
        chosen += sorted({*these[:: max(1, len(these) // count)], these[-1]})
    return chosen


def kill_at(watch, tools, when, call, number):
    child = watch()
    lines = child.run(when, f"{call}:signal=KILL:when={number}")
    if lines[-1]["ended"] == 0:  # another thread made the first of them
        assert number > 1, lines
    else:
        assert lines[-1]["ended"] == -9, lines
    books = tools.Books()
    for line in lines:  # the books are kept of allocations: the node is not a spare one
        if line.get("do", {}).get("call") == "register_node" or line.get("done") == "op-0":
            continue
        books.read([line])
    aftermath = tools.Aftermath(child.path, books)
    with Grid.at(str(child.path)) as grid:
        grid.register_node(CALLS[0][1][0], NODE, **OPTIONS)
    aftermath.verify()
    return lines[-1]["ended"] == -9


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_write(watch, tools, when):
    chosen = some(points(watch, when), 8)
    killed = [kill_at(watch, tools, when, *point) for point in chosen]
    assert sum(killed) >= 12


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_write(watch, tools, when):
    every = points(watch, when)
    killed = sum(kill_at(watch, tools, when, *point) for point in every)
    print(f"\nkilled at {killed} of {len(every)} writes and syncs, attached {when} opening")
    assert killed > 0.9 * len(every)


# ---- failures

# A page that cannot be read may look like damage; it is read again when it is asked for again.
TOLD = ("store_unavailable", "store_outcome_unknown", "store_full", "store_damaged")


def fail_at(watch, tools, when, call, error, number, last=None):
    """The caller is told; memory is what the store has; the next call works; a restart agrees."""
    child = watch()
    span = f"{number}..{last}" if last else number
    lines = child.run(when, f"{call}:error={error}:when={span}")
    assert lines[-1]["ended"] == 0, lines[-2:]
    said = [line for line in lines if "told" in line]
    for line in said:
        assert line["code"] in TOLD, line
        if "memory" in line:
            assert line["memory"] == line["store"], line
    done = [line["done"] for line in lines if "done" in line]
    assert done == [f"op-{index}" for index in range(len(CALLS))]
    end = next(line["end"] for line in lines if "end" in line)
    assert len(end["allocations"]) == 4
    tools.check_file(child.path)
    with Grid.at(str(child.path)) as grid:
        restarted = grid.dump()
        assert grid.check() == []
        tools.fill_up(grid)
    for dump in (end, restarted):  # a restart gives every lease its time again
        for row in dump["allocations"]:
            row["deadline"] = row["deadline"] and 1
    assert same_state(end, restarted) == []
    return bool(said)


FAILURES = {
    "a sync fails": ("fdatasync", "EIO", 0),
    "a write fails": ("pwrite64", "EIO", 0),
    "the disk is full": ("pwrite64", "ENOSPC", 0),
    "the disk is full for a while": ("pwrite64", "ENOSPC", 9),
    "a read fails": ("pread64", "EIO", 0),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "error", "more"), FAILURES.values(), ids=FAILURES)
def test_a_write_that_fails(watch, tools, when, call, error, more):
    chosen = some(points(watch, when, [call]), 4)
    told = [
        fail_at(watch, tools, when, call, error, number, more and number + more)
        for _, number in chosen
    ]
    assert sum(told) >= (0 if call == "pread64" else 3)  # much of what is read was read before


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("call", "error", "more"), FAILURES.values(), ids=FAILURES)
def test_every_write_that_fails(watch, tools, when, call, error, more):
    every = points(watch, when, [call])
    told = sum(
        fail_at(watch, tools, when, call, error, number, more and number + more)
        for _, number in every
    )
    print(f"\n{call} {error}: {told} of {len(every)} were told to the caller, attached {when}")
