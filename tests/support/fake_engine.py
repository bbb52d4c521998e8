"""An engine without processes: attempts run until a test says how they end.

It keeps what a node would keep, so it outlives the controllers that open it one after the other,
and it may be told to be away, or to lose what it is asked.
"""

from dataclasses import replace

from gridhand.core.errors import StoreInvalid
from gridhand.core.model.nodes import Node
from gridhand.core.rows.ledger import node_row
from gridhand.engines.base import AttemptReport, EndReport, Known, Seen


class FakeEngine:
    """One node. Nothing happens by itself: starts, stops and ends are asked for and counted."""

    def __init__(self, cpu=4, name="n1"):
        self.node = node_row(Node.of(name, cpu=cpu, memory="8GB"))
        self.running = {}
        self.ended = {}
        self.orders = []  # all that really were started, in order
        self.asked = []  # all that was asked for, what was lost on the way too
        self.stops = []
        self.signals = []
        self.paces = []  # how often it was asked to measure
        self.readers = []  # what was told of those that read
        self.epoch = 0
        self.away = False
        self.immediate = True  # what is told to stop does so at once
        self.sink = None

    # ---- what the controller asks

    async def look(self):
        return Seen(self.epoch, list(self.running))

    async def open(self, epoch, sink):
        if epoch < self.epoch:
            raise StoreInvalid(f"epoch {self.epoch} was here; {epoch} is over")
        self.epoch, self.sink, self.away = epoch, sink, False
        sink.node_changed(self.node, [])
        return self.known()

    def place(self, key, node, engine=""):
        pass

    async def start(self, orders):
        self.asked += [order.key for order in orders]
        if self.away:
            return
        for order in orders:
            self._begin(order)
        self.sink.spawned(
            [self.running[key] for key in [order.key for order in orders] if self.begun(key)]
        )
        over = [self.ended[key] for key in [order.key for order in orders] if key in self.ended]
        if over:
            self.sink.ended(over)

    def _begin(self, order):
        key = order.key
        if key not in self.running and key not in self.ended:
            self.orders.append(order)
            self.running[key] = report(*key, order.fence, state="running")
            self._take_turns(order.fence)

    def _take_turns(self, fence):
        """Of those with one fence the first runs, and the others wait: as the starter has it."""
        line = [key for key, one in self.running.items() if one.fence == fence]
        if line and not self.begun(line[0]):
            self.running[line[0]] = replace(self.running[line[0]], pid=len(self.orders))
            return [self.running[line[0]]]
        return []

    async def stop(self, key, reason, grace_ms):
        self.stops.append((key, str(reason)))
        if self.away:
            return
        if key in self.running:
            if not self.begun(key):
                self.end(key, reason=str(reason), code=None, ran_ms=0)
            elif self.immediate:
                self.end(key, reason=str(reason), signal=15, code=None)
        elif key in self.ended:
            self.sink.ended([self.ended[key]])
        else:
            end = {"reason": str(reason), "message": "it was stopped before it was started"}
            self.sink.ended([report(*key, None, end=end)])

    async def signal(self, key, signum):
        self.signals.append((key, signum))
        return key in self.running

    async def note_reader(self, key, offsets):
        self.readers.append((key, dict(offsets)))

    async def forget(self, keys):
        if not self.away:
            for key in keys:
                self.ended.pop(key, None)

    async def sample_every(self, every_ms, for_ms):
        self.paces.append((every_ms, for_ms))

    async def read_log(self, path, offset, limit):
        return []

    async def log_size(self, path):
        return 0

    def facts(self):
        return {"pid": 0}

    async def close(self, *, end):
        self.sink = None

    # ---- what a test does to it

    def known(self):
        return Known(list(self.running.values()), list(self.ended.values()))

    def end(self, key, *, reason="exit", code=0, tell=True, **more):
        """The process is over; without `tell` nobody hears of it until they ask."""
        running = self.running.pop(key)
        end = EndReport(**{"reason": reason, "code": code, "ran_ms": 5, **more})
        self.ended[key] = replace(running, state="ended", end=end)
        next_ones = self._take_turns(running.fence)
        if tell and self.sink is not None and not self.away:
            self.sink.ended([self.ended[key]])
            self.sink.spawned(next_ones)

    def give_back(self, key):
        """It has waited for its turn for too long."""
        assert not self.begun(key)
        self.end(key, reason="returned", code=None, ran_ms=0)

    def begun(self, key):
        return key in self.running and self.running[key].pid is not None

    def come_back(self):
        """After it was away: what it knows now, as an agent that is reached again tells."""
        self.away = False
        self.sink.returned(self.known())

    def started(self, key):
        return sum(order.key == key for order in self.orders)


def report(job, attempt, fence, *, state="ended", end=None, **more):
    """Return the report of an attempt; `end` may be given as a dictionary."""
    end = None if end is None else EndReport(**end)
    return AttemptReport(job, attempt, fence, state, end=end, **more)
