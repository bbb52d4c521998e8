"""Explains why a request can never fit on the existing nodes, even if they were empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gridhand.core.explain.refusal import unknown_resource
from gridhand.core.explain.tied_requests import why_not_there
from gridhand.core.model.amount_text import at_least, at_most, request_text
from gridhand.core.model.gpus import Gpu, GpuRequest
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import BYTES

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot


def never_because(asked: Request, snapshot: Snapshot, permitted: Sequence[int]) -> tuple[str, ...]:
    """Return what no permitted node has, or that none has all of it together."""
    ledger = snapshot.ledger
    if not ledger.names:
        return ("there are no nodes",)
    nodes = [snapshot.use(row).node for row in permitted]
    if not nodes:
        return tuple(_why_none(asked, [use.node for use in ledger.nodes.values()]))
    unknown = unknown_resource(asked, ledger)
    reasons = [] if unknown is None else [str(unknown)]
    word = "node" if len(nodes) == len(ledger.names) else "permitted node"
    skip = unknown.name if unknown is not None else None
    reasons += [
        one for name in asked.amounts if name != skip for one in _amount(asked, name, nodes, word)
    ]
    if asked.gpu is not None:
        reasons += _devices(asked.gpu, nodes, word)
    return tuple(reasons) or (f"no single {word} has {_joined(asked)} together",)


def _why_none(asked: Request, nodes: list[Node]) -> Iterator[str]:
    found = False
    there = [node for node in nodes if asked.node in (None, node.name)]
    if asked.tied_to is not None and all(node.remote for node in there):
        found = True
        which = asked.node or "every node"
        yield f"{which} is not permitted: {why_not_there(asked.tied_to)}"
    for key, value in asked.labels.items():
        if all(node.labels.get(key) != value for node in nodes):
            found = True
            yield f"no node has the label {key}={value}"
    if not found:
        where = f"{asked.node} does not have the labels" if asked.node else "no node is permitted"
        yield where


def _amount(asked: Request, name: str, nodes: list[Node], word: str) -> Iterator[str]:
    most = max(node.capacity[name] for node in nodes)
    if most >= asked.amounts[name]:
        return
    of = " of" if name in BYTES else ""
    if most:
        yield f"no {word} has more than {at_most(name, most)}{of} {name}"
    else:
        yield f"no {word} has any {name}"


def _devices(asked: GpuRequest, nodes: list[Node], word: str) -> list[str]:
    """Return the first thing that the devices lack: kind, number or memory."""
    if not any(node.gpus for node in nodes):
        return [f"no {word} has gpus"]
    if asked.model is None and asked.capability is None:
        suited: list[tuple[Gpu, ...] | list[Gpu]] = [node.gpus for node in nodes]
    else:
        suited = [[gpu for gpu in node.gpus if asked.suits(gpu)] for node in nodes]
        if not any(suited):
            return list(_kinds(asked, nodes))
    kind = f" ({asked.kind()})" if asked.kind() else ""
    most = max(map(len, suited))
    if most < asked.devices:
        return [f"no {word} has more than {most} gpu{'s' * (most != 1)}{kind}"]
    if asked.memory_bytes is None:
        return []
    needed = asked.memory_bytes
    largest = max(gpu.memory_bytes for gpus in suited for gpu in gpus)
    if largest < needed:
        return [f"no device{kind} has more than {at_most('gpu_memory', largest)} of gpu_memory"]
    most = max(sum(gpu.memory_bytes >= needed for gpu in gpus) for gpus in suited)
    if most >= asked.devices:
        return []
    size = at_least("gpu_memory", needed)
    return [
        f"no {word} has more than {most} gpu{'s' * (most != 1)}{kind} with {size} of gpu_memory"
    ]


def _kinds(asked: GpuRequest, nodes: list[Node]) -> Iterator[str]:
    """Say that no device has the model, the capability, or both together."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    models = {gpu.model.lower(): gpu.model for gpu in gpus if gpu.model}
    known = bool(models.keys() & set(asked.models()))
    if asked.model is not None and not known:
        there = ", ".join(models[key] for key in sorted(models)) or "only devices without a model"
        wanted = " or ".join(asked.model.split("|"))
        yield f"no device is {_article(wanted)} {wanted} (there are {there})"
    highest = max((gpu.capability or (0,) for gpu in gpus), default=(0,))
    if asked.capability is not None and highest < asked.capability:
        wanted = ".".join(map(str, asked.capability))
        most = ".".join(map(str, highest)) if any(highest) else "unknown"
        yield f"no device has capability {wanted} (the highest is {most})"
    elif known or asked.model is None:
        yield f"no device is {asked.kind()}"


def _article(word: str) -> str:
    """Return the article as spoken: an H100, a T4, an RTX."""
    return "an" if word[:1].upper() in "AEFHILMNORSX8" else "a"


def _joined(asked: Request) -> str:
    return " and ".join(request_text(asked.resources).split())
