"""A worker that does what a test says, over HTTP, with no processes behind it."""

import itertools

from api_server import Api

_incarnations = itertools.count(1)


def node_row(name, cpu=4, memory_gb=8, **more):
    capacity = {"cpu": cpu * 10_000, "memory": memory_gb * 10**9}
    return {
        "name": name, "capacity": capacity, "devices": [], "labels": {}, "price": 0, "address": "",
        "health": "up", "draining": False, **more,
    }  # fmt: skip


def ended(job, attempt, fence, code=0, **end):
    how = {"reason": "exit", "code": code, **end}
    return {"job": job, "attempt": attempt, "fence": fence, "state": "ended", "end": how}


class ScriptedWorker:
    """Joins, heartbeats, takes orders and reports when it is told to."""

    def __init__(self, server, token, name, **has):
        self.name, self._row = name, node_row(name, **has)
        self.api = Api(server, server.url, token)
        self.incarnation, self.sequence = next(_incarnations), 0
        self.done, self.boot_id = [], "b1"

    def post(self, what, body):
        return self.api("POST", f"/nodes/{self.name}/{what}", body)

    def ok(self, what, body):
        return self.api.ok("POST", f"/nodes/{self.name}/{what}", body)

    def join(self, *attempts, **more):
        body = {"row": self._row, "incarnation": self.incarnation, "attempts": list(attempts)}
        joined = self.ok("join", {**body, **more})
        self.session = joined["session"]
        return joined

    def beat(self, *running, **more):
        self.sequence += 1
        body = {
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "boot_id": self.boot_id,
            "running": list(running),
        }
        return self.ok("heartbeat", {**body, **more})

    def come(self):
        """Join, and say that it lives."""
        self.join()
        self.beat()
        return self

    def orders(self, *, done=True, wait_s=0):
        """Take what waits; with `done`, say with the next request that it is carried out."""
        body = {"session": self.session, "done": self.done, "wait_s": wait_s}
        orders = self.ok("orders", body)["orders"]
        self.done = [order["number"] for order in orders] if done else []
        return orders

    def starts(self, **more):
        return [one["order"] for one in self.orders(**more) if one["do"] == "start"]

    def report(self, *attempts, **more):
        return self.ok("reports", {"session": self.session, "attempts": list(attempts), **more})

    def begin(self, order, pid=77):
        key = {name: order[name] for name in ("job", "attempt", "fence")}
        self.report({**key, "state": "running", "pid": pid, "ran_ms": 0})

    def end(self, order, **how):
        self.report(ended(order["job"], order["attempt"], order["fence"], **how))

    def send(self, order, data, offset=0, stream="stdout", **other):
        """Send output; return the status and the answer."""
        query = {"session": self.session, "job": order["job"], "attempt": order["attempt"]}
        asked = {**query, "stream": stream, "offset": offset, **other}
        words = "&".join(f"{name}={value}" for name, value in asked.items())
        import json

        target = f"/nodes/{self.name}/output?{words}"
        status, _, content = self.api.raw("POST", target, data)
        return status, json.loads(content)
