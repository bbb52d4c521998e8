"""A process that uses a grid until it is killed.

It says what it is about to do, does it, and says what came back, one line of JSON each. Started
once, it forks for every job it reads, so that a kill does not cost a new interpreter: jobs come
on its input, and after each one comes a line with how the child ended.
"""

import contextlib
import json
import os
import random
import signal
import sqlite3
import sys
import threading
from pathlib import Path

from gridhand import Grid, GridError
from gridhand.core.errors import StoreError
from gridhand.store.sql.sqlite import SqliteStore

LONGEST_S = 60  # then the child ends by itself, whatever has become of the test
SHORT_S = 0.03  # reservations that may lapse before anyone looks
TRIES = 200
_telling = threading.Lock()


def tell(**line):
    text = json.dumps(line).encode() + b"\n"
    with _telling:
        while text:
            text = text[os.write(1, text) :]


def facts(reply):
    """What can be said of a reply, as plain data."""
    if reply is None:
        return []
    if isinstance(reply, list):
        return [fact for one in reply for fact in facts(one)]
    if not hasattr(reply, "holder"):
        return [{"name": reply.name, "labels": dict(reply.labels)}]
    names = ("id", "owner", "holder", "node", "state", "lifetime", "group")
    fact = {name: getattr(reply, name) for name in names}
    return [fact | {"amounts": reply.resources.parts(), "gpus": sorted(reply.gpus)}]


def perform(grid, intent):
    """Make the call that an intent describes."""
    grid = grid.for_owner(intent["owner"])
    call = getattr(grid, intent["call"])
    return facts(call(*intent["args"], **intent["options"], op_id=intent["op_id"]))


def attempt(grid, intent):
    tell(do=intent)
    try:
        reply = perform(grid, intent)
    except GridError as error:
        tell(refused=intent["op_id"], code=error.code)
        return []
    tell(done=intent["op_id"], reply=reply)
    return reply


# ---- killing oneself


def arm(point, nth):
    """Die at the nth transaction: before it, in it, or after it and before anyone hears of it."""
    seen = 0

    def pass_by(here):
        nonlocal seen
        if here == point:
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    transaction, write = SqliteStore._transaction, SqliteStore._write

    @contextlib.contextmanager
    def _transaction(self):
        pass_by("before BEGIN")
        with transaction(self):
            pass_by("after BEGIN")
            yield
            pass_by("before COMMIT")
        pass_by("after COMMIT")

    def _write(self, *args):
        write(self, *args)
        pass_by("between rows and events")

    SqliteStore._transaction, SqliteStore._write = _transaction, _write


# ---- jobs


def churn(job):
    """Threads that each do something, and wait for the answer before they do the next thing."""
    if job["point"]:
        arm(job["point"], job["nth"])
    grid = Grid.at(job["path"])
    tell(ready=os.getpid())
    threads = [
        threading.Thread(target=Churner(grid, job, thread).run, daemon=True)
        for thread in range(job["threads"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    grid.close()


class Churner:
    """One thread of a worker, with an owner's name of its own."""

    def __init__(self, grid, job, thread):
        self.grid, self.job, self.thread = grid, job, thread
        self.owner = f"t{thread}"
        self.random = random.Random(f"{job['seed']}-{thread}")
        self.held = {
            fact["id"]: fact for fact in facts(grid.allocations()) if fact["owner"] == self.owner
        }
        self.count = 0

    def run(self):
        while self.count < self.job["calls"]:
            self.count += 1
            self.step()

    def step(self):
        roll = self.random.random()
        if self.thread == 0 and roll < 0.03:
            for _ in self.grid.prune(5.0, most=40):
                pass
        elif self.thread == 0 and roll < 0.08:
            self.inventory()
        elif self.held and self.random.random() < 0.25 + 0.06 * len(self.held):
            self.change()
        else:
            self.take()

    def intent(self, call, *args, **options):
        return {
            "owner": self.owner,
            "op_id": f"{self.job['seed']}-{self.thread}-{self.count}",
            "call": call,
            "args": args,
            "options": options,
        }

    def inventory(self):
        if self.random.random() < 0.7:
            round_ = str(self.job["seed"])
            intent = self.intent("register_node", "spare", {"scratch": 1}, labels={"round": round_})
        else:
            intent = self.intent("unregister", "spare")
        attempt(self.grid, intent)

    def take(self):
        draw = self.random
        amounts = draw.choice(
            [
                {"cpu": 1}, {"cpu": 0.0001}, {"cpu": 0.7, "memory": "333MB"}, {"memory": "1B"},
                {"gpu": 1}, {"gpu": 0.25}, {"gpu_memory": "3GB", "cpu": 0.5}, {"cpu": 2},
            ]
        )  # fmt: skip
        options = {}
        if draw.random() < 0.4:
            options["holder"] = f"h{draw.randrange(4)}"
        kind = draw.random()
        if kind < 0.2:
            intent = self.intent("allocate_group", [{"cpu": 0.5}, amounts], **options)
        elif kind < 0.4:
            ttl = draw.choice([SHORT_S, 600])
            intent = self.intent("reserve", amounts, ttl=ttl, **options)
        else:
            ttl = {"ttl": 600} if kind < 0.6 else {}
            intent = self.intent("allocate", amounts, **options, **ttl)
        for fact in attempt(self.grid, intent):
            self.held[fact["id"]] = fact

    def change(self):
        fact = self.random.choice(list(self.held.values()))
        call = "release"
        if self.random.random() < 0.5:
            if fact["state"] == "reserved":
                call = "confirm"
            elif fact["lifetime"] == "lease":
                call = "renew"
        reply = attempt(self.grid, self.intent(call, fact["id"]))
        if call == "release" or not reply:
            self.drop(fact)
        else:
            self.held[fact["id"]] = reply[0]

    def drop(self, fact):
        for id, other in list(self.held.items()):
            if id == fact["id"] or (fact["group"] and other["group"] == fact["group"]):
                del self.held[id]


def script(job):
    """A fixed list of calls. One that the store fails is told, and made again until it works."""
    grid = None if job["wait"] == "before" else Grid.at(job["path"])
    if job["wait"]:
        tell(ready=os.getpid())
        os.read(0, 1)  # until somebody is watching
    if grid is None:
        grid = insist({"op_id": "open"}, lambda: Grid.at(job["path"]))
    made = []
    for intent in job["steps"]:
        # `@n` is what call n was given.
        args = [made[int(arg[1:])] if str(arg).startswith("@") else arg for arg in intent["args"]]
        intent = intent | {"args": args}
        tell(do=intent)
        before = sorted(held.id for held in insist(intent, grid.allocations))
        reply = insist(intent, lambda intent=intent: perform(grid, intent), grid, job, before)
        tell(done=intent["op_id"], reply=reply)
        made.append(reply[0].get("id"))
    tell(end=grid.dump())
    grid.close()


def insist(intent, call, grid=None, job=None, before=None):
    """The answer to `call`, asked for again as long as the store cannot give it."""
    for _ in range(TRIES):
        try:
            return call()
        except StoreError as error:
            told = {"told": intent["op_id"], "code": error.code, "kind": type(error).__name__}
        if grid is not None:
            memory = sorted(held.id for held in insist(intent, grid.allocations))
            told |= {"before": before, "memory": memory, "store": live_rows(job["path"])}
        tell(**told)
    raise RuntimeError(f"the store did not work again: {told}")


def live_rows(path):
    """What the file itself says is live."""
    with contextlib.closing(sqlite3.connect(path, timeout=5)) as database:
        query = "SELECT 'a' || epoch || '-' || number FROM allocations WHERE live_node IS NOT NULL"
        return sorted(id for (id,) in database.execute(query))


JOBS = {"churn": churn, "script": script}


def run(job):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LONGEST_S)
    try:
        JOBS[job["job"]](job)
    except BaseException as error:
        import traceback

        tell(crash=repr(error), trace=traceback.format_exc())
        os._exit(1)
    os._exit(0)


def read_line():
    """A line of the input, and not a byte more: a child may read the next."""
    text = b""
    while not text.endswith(b"\n"):
        one = os.read(0, 1)
        if not one:
            return None
        text += one
    return text


def main():
    while (line := read_line()) is not None:
        job = json.loads(line)
        Path(job["path"]).parent.mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if child == 0:
            run(job)
        _, status = os.waitpid(child, 0)
        os.write(1, b"\n")  # a killed child may have stopped in the middle of a line
        tell(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main())
