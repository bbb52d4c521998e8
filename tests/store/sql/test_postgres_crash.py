"""The state in PostgreSQL survives `kill -9` of its owner at any moment (rows 1 to 4).

A process works on a store with several threads, says what it asks for and what it is answered, and
is killed. Then every answer must still be true, nothing else may count, and each call that was
under way, made again with the same op id, must take effect once. The next one goes on from there.

This file is also that process: it forks for every job that it reads, so that a kill does not cost
a new interpreter.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from gridhand import Grid, NoRoom
from gridhand.store.reader import audit

THREADS = 3
LONGEST_S = 60  # then the child ends by itself, whatever has become of the test


# ---- the process that is killed

_telling = threading.Lock()


def tell(**line):
    text = json.dumps(line).encode() + b"\n"
    with _telling:
        while text:
            text = text[os.write(1, text) :]


def perform(grid, intent):
    """Make the call that an intent describes; the ids it is about."""
    call = getattr(grid.for_owner(intent["owner"]), intent["call"])
    reply = call(*intent["args"], **intent["options"], op_id=intent["op_id"])
    return [held.id for held in (reply if isinstance(reply, list) else [reply])]


def churn(url, seed):
    signal.alarm(LONGEST_S)
    grid = Grid.at(url, wait=10)
    tell(ready=os.getpid())
    threads = [
        threading.Thread(target=churn_one, args=(grid, seed, number)) for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def churn_one(grid, seed, number):
    draw, owner = random.Random(f"{seed}-{number}"), f"t{number}"
    groups = {}
    for held in grid.allocations():
        if held.owner == owner:
            groups.setdefault(held.group or held.id, []).append(held.id)
    mine = list(groups.values())
    for count in range(100_000):
        intent = {"owner": owner, "op_id": f"{seed}-{number}-{count}", "args": [], "options": {}}
        roll = draw.random()
        if mine and roll < 0.1 + 0.08 * len(mine):
            intent |= {"call": "release", "args": mine.pop(draw.randrange(len(mine)))[:1]}
        elif roll < 0.3:
            intent |= {"call": "allocate_group", "args": [[{"cpu": 1}, {"cpu": 0.5, "memory": 7}]]}
        elif roll < 0.5:
            intent |= {"call": "reserve", "options": {"cpu": 1, "ttl": 600}}
        else:
            intent |= {"call": "allocate", "options": {"cpu": draw.choice([0.0001, 1, 2])}}
        tell(do=intent)
        try:
            ids = perform(grid, intent)
        except NoRoom:
            tell(refused=intent["op_id"])
            continue
        if intent["call"] != "release":
            mine.append(ids)
        tell(done=intent["op_id"], ids=ids)


def nursery():
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            try:
                churn(**json.loads(line))
            except BaseException as error:
                tell(crash=repr(error))
            os._exit(1)
        _, status = os.waitpid(child, 0)
        os.write(1, b"\n")  # a killed child may have stopped in the middle of a line
        tell(ended=os.waitstatus_to_exitcode(status))


# ---- the tests


class Rounds:
    """One store, whose owner is killed again and again."""

    def __init__(self, url, seed):
        self.url = url
        self.random = random.Random(seed)
        self.units = {}  # what was granted as one, by each of its ids
        self.live = set()
        self.closed = set()
        self.counts = Counter()
        with Grid.at(url) as grid:
            grid.register_node("a", cpu=20, memory="1GB")
            grid.register_node("b", cpu=15.5, memory="2GB")
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def kill(self):
        self.counts["kills"] += 1
        job = json.dumps({"url": self.url, "seed": self.counts["kills"]}) + "\n"
        self._process.stdin.write(job.encode())
        self._process.stdin.flush()
        lines = self._until("ready")
        time.sleep(self.random.uniform(0.002, 0.12))
        os.kill(lines[-1]["ready"], signal.SIGKILL)  # not another's until `ended` is heard
        lines += self._until("ended")
        assert lines[-1]["ended"] == -signal.SIGKILL
        self.pending = {}
        self._read(lines)
        self._verify()

    def _until(self, word):
        lines = []
        while not lines or word not in lines[-1]:
            text = self._process.stdout.readline()
            assert text, "the nursery is gone"
            try:
                lines.append(json.loads(text))
            except ValueError:  # what it was killed in the middle of saying
                continue
            assert "crash" not in lines[-1], lines[-1]
        return lines

    def _read(self, lines):
        for line in lines:
            if "do" in line:
                self.pending[line["do"]["op_id"]] = line["do"]
            elif "refused" in line:
                del self.pending[line["refused"]]
            elif "done" in line:
                self.counts["answered"] += 1
                self._take(self.pending.pop(line["done"]), line["ids"])

    def _take(self, intent, ids):
        if intent["call"] == "release":
            ended = self.units[ids[0]]
            self.live -= ended
            self.closed |= ended
        else:
            for id in ids:
                self.units[id] = set(ids)
            self.live |= set(ids)

    def _verify(self):
        assert audit(self.url).violations == []
        with Grid.at(self.url, wait=10) as grid:
            assert grid.check() == []
            held = {one.id for one in grid.allocations()}
            doubt = {
                id
                for intent in self.pending.values()
                if intent["call"] == "release"
                for id in self.units[intent["args"][0]]
            }
            assert self.live - doubt <= held, "an answer was lost"
            assert not self.closed & held, "what was given back is held again"
            for intent in self.pending.values():
                self._settle(grid, intent, held)
            held = {one.id for one in grid.allocations()}
            assert held == self.live, "and nothing else"
            assert grid.check() == []
            for _ in grid.prune(5.0, most=500):
                pass
        assert audit(self.url).violations == []

    def _settle(self, grid, intent, held):
        """Ask again what was not answered: it takes effect once, whichever time it was."""
        try:
            ids = perform(grid, intent)
        except NoRoom:
            return
        assert perform(grid, intent) == ids
        was = ids[0] not in held if intent["call"] == "release" else ids[0] in held
        self.counts["in flight, written" if was else "in flight, not written"] += 1
        self._take(intent, ids)


@pytest.fixture
def rounds(database):
    made = Rounds(database, "a seed")
    yield made
    made.close()


def test_killed_at_any_moment(rounds):
    for _ in range(20):
        rounds.kill()
    assert rounds.counts["answered"] > 60
    assert rounds.counts["in flight, written"] + rounds.counts["in flight, not written"] > 0


@pytest.mark.soak
def test_killed_two_hundred_times(rounds):
    began = time.monotonic()
    for _ in range(200):
        rounds.kill()
    took = time.monotonic() - began
    print(f"\n{200} kills in {took:.0f} s, {200 / took:.1f}/s: {dict(rounds.counts)}")
    assert rounds.counts["in flight, written"] > 0
    assert rounds.counts["in flight, not written"] > 0


if __name__ == "__main__":
    nursery()
