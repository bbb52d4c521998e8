"""What the machines ask for: nodes and requests as plain data, and as the real thing."""

from __future__ import annotations

from hypothesis import strategies as st

from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request

GB = 10**9
UNIT = 10_000
NAMES = ("n1", "n2", "n3")
OWNERS = ("ann", "bob")
NAMED = st.sampled_from(NAMES)
# A name to hold under is one of few, so that it is taken; two of them look like ones given by us.
HOLDERS = st.sampled_from((None, None, None, None, "x", "y", "a1-7", "a1-30"))
TTLS = st.sampled_from((1, 5, 30, 60, 300, 500))
MAYBE_TTLS = st.sampled_from((None, None, 2, 20, 100, 500))

CPU = st.sampled_from((0, 20_000, 40_000, 80_000, 160_000))
MEMORY = st.sampled_from((0, 4 * GB, 8 * GB + 1, 32 * GB))
EXTRA = st.sampled_from(({}, {"fpga": UNIT}, {"disk": GB, "fpga": 2 * UNIT}))
LABELS = st.sampled_from(({}, {"zone": "a"}, {"zone": "b", "kind": "big"}))

_DEVICES = st.tuples(
    st.sampled_from((24 * GB + 7, 8 * GB, 10_000_019, 0)),
    st.sampled_from(("A100", "T4", "")),
    st.sampled_from(((7, 5), (8, 0), (10, 0), None)),
    st.sampled_from(("ok", "ok", "ok", "ok", "ok", "ok", "sick", "lost")),
)


def _node(name, cpu, memory, extra, labels, devices, ids):
    capacity = {"cpu": cpu, "memory": memory, **extra}
    return {
        "name": name,
        "capacity": {what: amount for what, amount in sorted(capacity.items()) if amount},
        "devices": [
            {
                "id": ids[place] or f"{name}/{place}",
                "index": place,
                "model": model,
                "memory": size,
                "capability": None if capability is None else list(capability),
                "health": health,
            }
            for place, (size, model, capability, health) in enumerate(devices)
        ],
        "labels": dict(sorted(labels.items())),
        "health": "up",
        "draining": False,
    }


_IDS = st.sampled_from(
    ((None,) * 3, (None,) * 3, ("GPU-a", None, "GPU-b"), (None, "GPU-b", "GPU-a"))
)
NODES = st.builds(
    _node, NAMED, CPU, MEMORY, EXTRA, LABELS, st.lists(_DEVICES, max_size=3) | st.lists(_DEVICES, min_size=2, max_size=3), _IDS
)  # fmt: skip


def renamed(row, name):
    """The same node under another name, and so with other devices, unless they have a UUID."""
    devices = [
        {**device, "id": device["id"].replace(f"{row['name']}/", f"{name}/")}
        for device in row["devices"]
    ]
    return {**row, "name": name, "devices": devices}


CHANGES = st.sampled_from(
    ("less", "less", "more", "more", "more", "nothing", "fewer devices", "smaller devices")
)


def changed(row, how, held):
    """The node of `row` as it might describe itself the next time; "less" than is held there."""
    capacity = row["capacity"]
    if how == "less":
        capacity = {what: held.get(what, amount // 4) - 1 for what, amount in capacity.items()}
    elif how in ("more", "nothing"):
        times = 3 if how == "more" else 0
        capacity = {what: amount * times for what, amount in capacity.items()}
    devices = [device for device in row["devices"] if device["health"] != "lost"]
    if how == "fewer devices":
        devices = devices[1:]
    if how == "smaller devices":
        devices = [{**device, "memory": device["memory"] // 5} for device in devices]
    return {
        **row,
        "capacity": {what: min(amount, 2**50) for what, amount in capacity.items() if amount > 0},
        "devices": [{**device, "index": place} for place, device in enumerate(devices)],
        "health": "up",
        "draining": False,
    }


def node_of(row):
    """The real node that `row` describes."""
    return Node.of(
        row["name"],
        {what: text(what, amount) for what, amount in row["capacity"].items()},
        gpus=[
            {
                "id": device["id"],
                "model": device["model"],
                "memory": f"{device['memory']}B",
                "capability": dotted(device["capability"]),
                "health": device["health"],
            }
            for device in row["devices"]
        ],
        labels=row["labels"],
    )


def text(what, amount):
    if what in ("memory", "disk", "gpu_memory"):
        return f"{amount}B"
    return f"{amount // UNIT}.{amount % UNIT:04}"


def dotted(capability):
    return None if capability is None else ".".join(map(str, capability))


_GPU = st.sampled_from(
    #  parts of a device, bytes on each
    (
        (0, 0), (0, 0), (0, 0), (0, 0),
        (UNIT, 0), (2 * UNIT, 0), (3 * UNIT, 0),  # whole devices
        (2500, 0), (3333, 0), (5000, 0), (9999, 0), (1, 0),  # shares
        (0, 8 * GB), (0, GB + 1), (0, 3),  # by memory
        (2 * UNIT, 4 * GB), (UNIT, 5_000_000),  # several by memory
        (2500, 10_000_000), (5000, 3 * GB),  # a share and that memory
    )
)  # fmt: skip
_AMOUNTS = st.builds(
    lambda cpu, memory, extra: {
        name: amount
        for name, amount in sorted({"cpu": cpu, "memory": memory, **extra}.items())
        if amount
    },
    st.sampled_from((0, 0, 1, 2500, 3333, 10_000, 10_000, 30_000)),
    st.sampled_from((0, 0, 0, 0, 1, GB, 3 * GB)),
    st.sampled_from(({},) * 30 + ({"fpga": UNIT}, {"fpga": 3333}, {"disk": 7}, {"licence": 1})),
)
_WHERE = st.sampled_from(
    #  pinned, preferred, excluded, labels
    (
        *[(None, (), (), {})] * 24,
        ("n1", (), (), {}), ("n2", (), (), {}), ("nowhere", (), (), {}),
        (None, ("n3", "n2"), (), {}), (None, ("n2",), ("n2",), {}), (None, (), ("n1",), {}),
        (None, (), ("n1", "n2", "n3"), {}), (None, (), (), {"zone": "a"}), (None, (), (), {"kind": "big"}),
    )
)  # fmt: skip
_KIND = st.sampled_from((*[(None, None)] * 9, ("a100", None), (None, (8, 0)), ("T4", (7, 5))))


def _ask(amounts, gpu, kind, where):
    parts, size = gpu
    if not amounts and not parts and not size:
        amounts = {"cpu": UNIT}
    model, capability = kind if parts or size else (None, None)
    node, prefer, exclude, labels = where
    return {
        "amounts": amounts,
        "gpu": parts,
        "gpu_memory": size,
        "gpu_model": model,
        "gpu_capability": capability,
        "node": node,
        "prefer": prefer,
        "exclude": list(exclude),
        "labels": labels,
    }


ASKS = st.builds(_ask, _AMOUNTS, _GPU, _KIND, _WHERE)
GANGS = st.lists(ASKS, min_size=2, max_size=3)


def request_of(ask):
    """The real request, as a person would write it."""
    amounts = {**ask["amounts"], "gpu": ask["gpu"], "gpu_memory": ask["gpu_memory"]}
    return Request.of(
        {what: text(what, amount) for what, amount in amounts.items() if amount},
        **{name: ask[name] for name in ("node", "prefer", "exclude", "labels", "gpu_model")},
        gpu_capability=dotted(ask["gpu_capability"]),
    )
