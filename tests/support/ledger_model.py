"""A second ledger, as plain as can be, to hold the real one against.

Rows are dictionaries of texts and integers, like those of a dump, and are never changed in place:
copying the tables is copying the state. Nothing is added up beforehand: every question counts all
live rows anew. It shares no code with `gridhand.core`; the two must agree because both are right.

A method that stands for a call takes the real answer (rows, or the code of an error), asserts that
it is the right one, and then makes the same change here. Where several answers are right, such as
the id that an allocation got, the given one is taken over.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import permutations
from math import ceil

UNIT = 10_000
KNOWN = {"cpu", "memory", "disk", "gpu", "gpu_memory", "bandwidth"}
DEVICE = ("gpu", "gpu_memory")
SAID = (
    "id", "number", "epoch", "owner", "holder", "node", "amounts", "devices", "state", "lifetime",
    "deadline", "ttl", "group", "made_at",
)  # fmt: skip


def devices_of(ask):
    """How many devices are asked for; the share and the memory of each (None: as the share)."""
    gpu, memory = ask["gpu"], ask["gpu_memory"]
    if 0 < gpu < UNIT:
        return 1, gpu, memory or None
    if memory:
        return max(1, gpu // UNIT), 0, memory
    return gpu // UNIT, UNIT, None


def same_ask(ask):
    """What tells one request from another."""
    where = ask["node"], tuple(ask["prefer"]), sorted(ask["exclude"]), sorted(ask["labels"].items())
    wanted = sorted(ask["amounts"].items())
    gpu = devices_of(ask)
    narrowed = (ask["gpu_model"], ask["gpu_capability"]) if gpu[0] else None
    return repr((wanted, gpu if gpu[0] else None, narrowed, where))


def said(row):
    """The part of an allocation's row that the model knows."""
    return {name: row[name] for name in SAID}


class Model:
    """Nodes, live and closed allocations, what strangers use, and the answers given to op ids."""

    def __init__(self, now=0, epoch=1):
        self.now = now
        self.epoch = epoch
        self.highest = 0  # the largest number ever given
        self.nodes = {}
        self.live = {}
        self.closed = {}
        self.foreign = {}
        self.asked = {}  # id -> what a holder asked for by that name
        self.chosen = {}  # node -> when it was last chosen for what could go elsewhere
        self.ops = {}

    def copy(self):
        other = Model(self.now, self.epoch)
        other.highest = self.highest
        for table in ("nodes", "live", "closed", "foreign", "asked", "ops", "chosen"):
            setattr(other, table, dict(getattr(self, table)))
        return other

    # ---- counting

    def on(self, name):
        return [row for row in self.live.values() if row["node"] == name]

    def holds(self, device):
        return [
            hold
            for row in self.live.values()
            for hold in row["devices"]
            if hold["device"] == device
        ]

    def plain(self, name):
        count = {}
        for row in self.on(name):
            for resource, amount in row["amounts"].items():
                count[resource] = count.get(resource, 0) + amount
        return count

    def held(self, name):
        count = self.plain(name)
        holds = [hold for row in self.on(name) for hold in row["devices"]]
        count["gpu"] = sum(hold["share"] for hold in holds)
        count["gpu_memory"] = sum(hold["memory"] for hold in holds)
        return {resource: amount for resource, amount in count.items() if amount}

    def total(self, name):
        node = self.nodes[name]
        count = {**node["capacity"], "gpu": 0, "gpu_memory": 0}
        for device in node["devices"]:
            holds = self.holds(device["id"])
            well = device["health"] == "ok"
            count["gpu"] += UNIT if well else sum(hold["share"] for hold in holds)
            count["gpu_memory"] += (
                device["memory"] if well else sum(hold["memory"] for hold in holds)
            )
        return {resource: amount for resource, amount in count.items() if amount}

    def available(self, name):
        held = self.held(name)
        left = {what: amount - held.get(what, 0) for what, amount in self.total(name).items()}
        return {what: amount for what, amount in left.items() if amount > 0}

    def overcommitted(self, name):
        node = self.nodes[name]
        if any(amount > node["capacity"].get(what, 0) for what, amount in self.plain(name).items()):
            return True
        return any(
            sum(hold["memory"] for hold in self.holds(device["id"])) > device["memory"]
            for device in node["devices"]
            if device["health"] == "ok"
        )

    def next_deadline(self):
        return min(
            (row["deadline"] for row in self.live.values() if row["deadline"] is not None),
            default=None,
        )

    def dump(self):
        """The state in the shape of a dump, in a fixed order."""
        return {
            "now": self.now,
            "foreign": self.foreign,
            "nodes": [
                self.nodes[name]
                | {
                    "overcommitted": self.overcommitted(name),
                    "held": self.held(name),
                    "available": self.available(name),
                }
                for name in sorted(self.nodes)
            ],
            "allocations": sorted(self.live.values(), key=lambda row: row["number"]),
        }

    # ---- deciding

    def permitted(self, ask):
        return [
            name
            for name in sorted(self.nodes)
            if ask["node"] in (None, name)
            and name not in ask["exclude"]
            and all(self.nodes[name]["labels"].get(k) == v for k, v in ask["labels"].items())
        ]

    def room(self, name, ask):
        """The holds that `ask` must get on the devices of a node; None where it does not fit."""
        node = self.nodes[name]
        if node["health"] != "up" or node["draining"] or self.overcommitted(name):
            return None
        held = self.plain(name)
        if any(
            amount > node["capacity"].get(what, 0) - held.get(what, 0)
            for what, amount in ask["amounts"].items()
        ):
            return None
        return self.pick(node, ask)

    def pick(self, node, ask):
        count, share, memory = devices_of(ask)
        if not count:
            return []
        found = []
        for device in node["devices"]:
            hold = self.hold_on(device, ask, share, memory)
            if hold is not None:
                holds = self.holds(device["id"])
                used = sum(one["share"] for one in holds)
                free = device["memory"] - sum(one["memory"] for one in holds)
                free -= self.foreign.get(device["id"], 0)
                # The fullest first, and untouched ones last; then by their place.
                untouched = not holds and not self.foreign.get(device["id"], 0)
                found.append((untouched, -used, free, device["index"], hold))
        found.sort(key=lambda one: one[:4])
        return [one[4] for one in found[:count]] if len(found) >= count else None

    def hold_on(self, device, ask, share, memory):
        """What `ask` would hold of this device, or None."""
        if device["health"] != "ok":
            return None
        model, least = ask["gpu_model"], ask["gpu_capability"]
        if model is not None and model.lower() != device["model"].lower():
            return None
        if least is not None and tuple(device["capability"] or ()) < tuple(least):
            return None
        holds, foreign = self.holds(device["id"]), self.foreign.get(device["id"], 0)
        if any(hold["exclusive"] for hold in holds):
            return None
        exclusive = share == UNIT
        if exclusive and (holds or foreign):
            return None
        takes = memory if memory is not None else device["memory"] * share // UNIT
        if sum(hold["share"] for hold in holds) + share > UNIT:
            return None
        if sum(hold["memory"] for hold in holds) + foreign + takes > device["memory"]:
            return None
        return {"device": device["id"], "share": share, "memory": takes, "exclusive": exclusive}

    def could_hold(self, name, ask):
        """Whether the node would do if nothing were held there, and it and its devices were well."""
        empty, node = Model(), self.nodes[name]
        devices = [{**device, "health": "ok"} for device in node["devices"]]
        empty.nodes[name] = {**node, "devices": devices, "health": "up", "draining": False}
        return empty.room(name, ask) is not None

    def refusal(self, ask):
        """The code of the error that `ask` must meet; None where it must be granted."""
        if ask["node"] is not None and ask["node"] not in self.nodes:
            return "unknown_node"
        permitted = self.permitted(ask)
        if any(self.room(name, ask) is not None for name in permitted):
            return None
        there = {what for node in self.nodes.values() for what in node["capacity"]}
        if self.nodes and any(what not in KNOWN | there for what in ask["amounts"]):
            return "unknown_resource"
        return "no_room" if any(self.could_hold(name, ask) for name in permitted) else "never_fits"

    def choices(self, ask, strategy):
        """The nodes that `strategy` may choose: one, or several where they come out alike."""
        fitting = [name for name in self.permitted(ask) if self.room(name, ask) is not None]
        fitting = [name for name in fitting if name in ask["prefer"]] or fitting
        if strategy == "first_available":
            return [max(fitting, key=lambda name: self.chosen.get(name, 0))] if fitting else []
        if strategy != "best_fit":
            return fitting  # how the others rank is tested for each of them
        scores = {name: self.left_behind(name, ask) for name in fitting}
        return [name for name in fitting if scores[name] - min(scores.values()) < 1e-9]

    def left_behind(self, name, ask):
        """What best fit keeps small: the parts left over, and GPUs that nobody asked for."""
        count, share, memory = devices_of(ask)
        capacity, held = self.nodes[name]["capacity"], self.plain(name)
        left = sum(
            Fraction(capacity[what] - held.get(what, 0) - amount, capacity[what])
            for what, amount in ask["amounts"].items()
        )
        devices = self.nodes[name]["devices"]
        if not count:
            return left + (len(ask["amounts"]) + 1 if devices else 0)
        largest = max(device["memory"] for device in devices)
        if memory and largest:
            share = max(share, min(UNIT, ceil(float(memory) * UNIT / largest)))
        idle = sum(self.idle(device) for device in devices)
        return left + Fraction(idle - count * share, UNIT * len(devices))

    def idle(self, device):
        """The largest share of a device that may still be held."""
        holds = self.holds(device["id"])
        if device["health"] != "ok" or any(hold["exclusive"] for hold in holds):
            return 0
        free = device["memory"] - sum(hold["memory"] for hold in holds)
        free -= self.foreign.get(device["id"], 0)
        shares = range(UNIT - sum(hold["share"] for hold in holds) + 1)
        fitting = bisect_right(shares, free, key=lambda share: device["memory"] * share // UNIT)
        return max(0, fitting - 1)

    # ---- holding

    def hold(self, owner, asks, *, state, ttl, holder, strategy, answer):
        """Allocate or reserve: all of `asks` as one, or nothing."""
        if holder is not None:
            before = self.of_holder(owner, asks, state, ttl, holder)
            if before is not None:
                assert answer == before, f"{holder} asks again: {before}, not {answer}"
                return
        trial = self.copy()
        if isinstance(answer, str):
            expected = self.first_refusal(asks, strategy)
            assert answer == expected, f"{asks} was answered {answer}, not {expected}"
            return
        assert len(answer) == len(asks)
        names = [holder] if len(asks) == 1 else [f"{holder}#{place}" for place in range(len(asks))]
        given = list(zip(asks, answer, strict=True))
        if not self.follows(given, strategy):
            # Only where their own order leads nowhere may a group be placed in another.
            assert len(asks) > 1, f"{asks} went to {answer[0]['node']}"
            assert strategy != "first_available" or self.first_refusal(asks, strategy)
            orders = permutations(given)
            assert any(self.follows(order, None) for order in orders), f"{asks} got {answer}"
        for ask, name, row in zip(asks, names, answer, strict=True):
            assert row["number"] > trial.highest, f"{row['number']} was given before"
            holders = {one["holder"] for one in trial.live.values() if one["owner"] == owner}
            assert row["holder"] not in holders, f"{row['holder']} holds something already"
            assert said(row) == {
                "id": f"a{self.epoch}-{row['number']}",
                "number": row["number"],
                "epoch": self.epoch,
                "owner": owner,
                "holder": row["holder"] if holder is None else name,
                "node": row["node"],
                "amounts": ask["amounts"],
                "devices": row["devices"],
                "state": state,
                "lifetime": "lease" if state == "active" and ttl is not None else "until_released",
                "deadline": None if ttl is None else self.now + ttl,
                "ttl": ttl,
                "group": None if len(asks) == 1 else answer[0]["group"],
                "made_at": self.now,
            }
            trial.live[row["id"]] = said(row)
            trial.highest = row["number"]
            trial.choose(ask, row["node"], row["number"])
            if holder is not None:
                trial.asked[row["id"]] = state, ttl, same_ask(ask)
        groups = {row["group"] for row in (*self.live.values(), *self.closed.values())}
        assert len(asks) == 1 or answer[0]["group"] not in {*groups, None}
        self.live, self.highest, self.asked = trial.live, trial.highest, trial.asked
        self.chosen = trial.chosen

    def follows(self, given, strategy):
        """Whether each of these, the ones before it placed, got what `strategy` would give it."""
        trial = self.copy()
        for ask, row in given:
            fits = trial.refusal(ask) is None and row["node"] in trial.permitted(ask)
            if not fits or trial.room(row["node"], ask) != row["devices"]:
                return False
            if strategy is not None and row["node"] not in trial.choices(ask, strategy):
                return False
            trial.live[row["id"]] = said(row)
            trial.choose(ask, row["node"], row["number"])
        return True

    def choose(self, ask, node, number):
        if ask["node"] is None:
            self.chosen[node] = number

    def of_holder(self, owner, asks, state, ttl, holder):
        """What a holder has, in full if it asks for that again, else `holder_busy`; or None."""
        mine = {row["holder"]: row for row in self.live.values() if row["owner"] == owner}
        names = [holder] if len(asks) == 1 else [f"{holder}#{place}" for place in range(len(asks))]
        if not any(name in mine for name in (*names, holder, f"{holder}#0")):
            return None
        held = [mine[name] for name in names if name in mine]
        wanted = [(state, ttl, same_ask(ask)) for ask in asks]
        if [self.asked.get(row["id"]) for row in held] != wanted:
            return "holder_busy"
        return held if len(self.members(held[0])) == len(held) else "holder_busy"

    def first_refusal(self, asks, strategy):
        """What the first member meets that finds no room, with those before it placed."""
        trial = self.copy()
        for place, ask in enumerate(asks):
            code = trial.refusal(ask)
            if code is not None:
                return code
            node = trial.choices(ask, strategy)[0]
            trial.choose(ask, node, trial.highest + place + 1)
            trial.live[f"trial {place}"] = {
                "node": node,
                "amounts": ask["amounts"],
                "devices": trial.room(node, ask),
            }
        return None

    def members(self, row):
        if row["group"] is None:
            return [row]
        return [one for one in self.live.values() if one["group"] == row["group"]]

    # ---- moves

    def move(self, id, move, *, ttl, answer, owner=None):
        """Confirm, renew or release, as `owner`; without one, as the bare ledger does it."""
        expected = self.refused_move(id, move, owner)
        if expected is not None:
            assert answer == expected, f"{move} {id}: {expected}, not {answer}"
            return
        row = self.live[id]
        for member in self.members(row):
            self.put(self.moved(member, move, ttl))
        after = self.live.get(id) or self.closed[id]
        assert answer == after, f"{move} {id}: {after}, not {answer}"

    def refused_move(self, id, move, owner):
        """The code of an error, or the row of what had ended before; None where it moves."""
        row = self.live.get(id) or (self.closed.get(id) if owner is not None else None)
        if row is None:
            return "unknown_allocation"
        if owner not in (None, row["owner"]):
            return "not_yours"
        lapsed = row["state"] == "expired" or (id in self.live and self.lapsed(row))
        if move == "release":
            return None if id in self.live else row
        if lapsed:
            return "reservation_expired" if move == "confirm" else "lease_expired"
        if row["state"] != {"confirm": "reserved", "renew": "active"}[move]:
            return "move_refused"
        return "move_refused" if move == "renew" and row["deadline"] is None else None

    def moved(self, row, move, ttl):
        if move == "release":
            return {**row, "state": "expired" if self.lapsed(row) else "released"}
        if move == "renew":
            ttl = ttl or row["ttl"]
        return {
            **row,
            "state": "active",
            "ttl": ttl,
            "deadline": None if ttl is None else self.now + ttl,
            "lifetime": row["lifetime"] if ttl is None else "lease",
        }

    def lapsed(self, row):
        return row["deadline"] is not None and row["deadline"] <= self.now

    def put(self, row):
        if row["state"] in ("reserved", "active"):
            self.live[row["id"]] = row
        else:
            del self.live[row["id"]]
            self.asked.pop(row["id"], None)
            self.closed[row["id"]] = row

    def expire(self):
        for row in list(self.live.values()):
            if self.lapsed(row):
                self.put({**row, "state": "expired"})

    # ---- nodes

    def register(self, node, *, answer):
        taken = {
            device["id"]: other["name"]
            for other in self.nodes.values()
            for device in other["devices"]
            if other["name"] != node["name"]
        }
        if any(device["id"] in taken for device in node["devices"]):
            assert answer == "invalid_input", f"{node} has a device of another: {answer}"
            return
        before = self.nodes.get(node["name"])
        if before is not None:
            there = {device["id"] for device in node["devices"]}
            lost = [
                {**device, "health": "lost"}
                for device in before["devices"]
                if device["id"] not in there and self.holds(device["id"])
            ]
            node = {**node, "devices": [*node["devices"], *lost], "draining": before["draining"]}
        assert answer == node, f"registered as {answer}, not {node}"
        self.nodes[node["name"]] = node

    def describe(self, name, *, answer, **fields):
        """Drain, resume, or change the health of a node."""
        if name not in self.nodes:
            assert answer == "unknown_node"
            return
        self.nodes[name] = {**self.nodes[name], **fields}
        assert answer == self.nodes[name]
        if fields.get("health") == "down":
            self.lose(name)

    def unregister(self, name, force, *, answer):
        if name not in self.nodes:
            assert answer == "unknown_node"
        elif self.on(name) and not force:
            assert answer == "node_in_use"
        else:
            assert answer is None, f"{name} could not be removed: {answer}"
            self.lose(name)
            del self.nodes[name]

    def lose(self, name):
        for row in self.on(name):
            for member in self.members(row):
                if member["id"] in self.live:
                    self.put({**member, "state": "lost"})

    def restart(self, epoch=None):
        """Read again what was written: every open deadline is at least its ttl from now."""
        self.epoch = epoch or self.epoch
        self.live = {
            id: row
            if row["deadline"] is None
            else {**row, "deadline": max(row["deadline"], self.now + row["ttl"])}
            for id, row in self.live.items()
        }
        self.chosen = {}
        for row in self.live.values():
            self.chosen[row["node"]] = max(self.chosen.get(row["node"], 0), row["number"])
