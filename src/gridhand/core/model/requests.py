"""Request: the resources that work needs, and the nodes on which it may run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from gridhand.core.errors import InvalidInput, InvalidRequest
from gridhand.core.model import quality as qualities
from gridhand.core.model.gpus import GpuRequest, read_gpu_request
from gridhand.core.model.names import NodeName, check_label, check_node_name
from gridhand.core.model.nodes import check_labels
from gridhand.core.model.request_checks import DEVICE_NAMES, check_request, check_strategy_name
from gridhand.core.model.resources import MOST, Resources

MOST_NODES = 10_000
MOST_ALTERNATIVES = 16


class GangLayout(StrEnum):
    """Where the members of a gang go: anywhere, each on its own node, or all on one node."""

    ANY = "any"
    APART = "apart"
    TOGETHER = "together"


class Tie(StrEnum):
    """A thing that only the controller's own machine has, so that work which needs it stays there.

    FOLDER is the folder of a command, and CALLER the process that calls a function.
    """

    FOLDER = "folder"
    CALLER = "caller"


@dataclass(frozen=True, slots=True)
class Request:
    """Amounts, devices, hard constraints (`node`, `exclude`, `labels`) and preferences (`prefer`).

    `together_with` and `apart_from` name existing allocations of the same owner, by id or holder:
    the request must go to the same node, or to none of theirs. `alternatives` are other acceptable
    requests, best first; this one is tried before them. `strategy` names how the nodes that fit are
    ranked; None leaves that to the controller. `tied_to` keeps it off nodes that a worker on
    another machine serves.
    """

    amounts: Resources
    gpu: GpuRequest | None = None
    node: NodeName | None = None
    prefer: tuple[NodeName, ...] = ()
    exclude: frozenset[NodeName] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    quality: str | None = None
    alternatives: tuple[Request, ...] = ()
    together_with: str | None = None
    apart_from: tuple[str, ...] = ()
    strategy: str | None = None
    tied_to: Tie | None = None

    def __setstate__(self, state: Sequence[object]) -> None:
        """Restore what an earlier version pickled: fields that it did not have get defaults."""
        missing = [known.default for known in fields(self)[len(state) :]]
        for known, value in zip(fields(self), [*state, *missing], strict=True):
            object.__setattr__(self, known.name, value)

    @classmethod
    def of(
        cls,
        resources: Request | Resources | Mapping[str, Any] | str | None = None,
        /,
        *,
        gpu_model: str | Sequence[str] | None = None,
        gpu_capability: str | float | None = None,
        node: str | None = None,
        prefer: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        together_with: str | None = None,
        apart_from: str | Sequence[str] = (),
        quality: str | None = None,
        scaling: Mapping[str, Any] | None = None,
        alternatives: Sequence[Request | Mapping[str, Any]] = (),
        fallback: str | None = None,
        strategy: str | None = None,
        **named: Any,
    ) -> Request:
        """Read a request as users write it.

        >>> Request.of(cpu=2, memory="4GB", quality="high").resources
        Resources('cpu=3 memory=5.2GB')
        """
        if isinstance(resources, Request):
            constraints = (
                gpu_model, gpu_capability, node, prefer, exclude, labels, quality, scaling,
                together_with, apart_from, strategy,
            )  # fmt: skip
            if named or alternatives or fallback or any(constraints):
                raise InvalidRequest("request", resources.resources, "it alone, or amounts instead")
            check_request(resources)
            return resources
        _check_bytes(resources if isinstance(resources, Mapping) else {})
        _check_bytes(named)
        asked, devices = _split_fields(resources)
        gpu_model = devices.get("gpu_model") if gpu_model is None else gpu_model
        gpu_capability = devices.get("gpu_capability") if gpu_capability is None else gpu_capability
        amounts = Resources.of(asked, **named)
        if not amounts:
            raise InvalidRequest("resources", resources or named, "at least one amount above 0")
        gpu = read_gpu_request(amounts["gpu"], amounts["gpu_memory"], gpu_model, gpu_capability)
        base = cls(
            amounts=amounts.without(*DEVICE_NAMES),
            gpu=gpu,
            node=None if node is None else check_node_name(node),
            prefer=_node_names("prefer", prefer),
            exclude=frozenset(_node_names("exclude", exclude)),
            labels=check_labels(labels or {}),
            together_with=None
            if together_with is None
            else check_label(together_with, "together_with"),
            apart_from=_allocation_names(apart_from),
            strategy=None if strategy is None else check_strategy_name(strategy),
        )
        if base.node in base.exclude:
            raise InvalidRequest("exclude", base.node, "nodes other than the pinned one")
        others = _read_alternatives(base, alternatives, fallback)
        ladder = [step for each in (base, *others) for step in _at_quality(each, quality, scaling)]
        return replace(ladder[0], alternatives=tuple(ladder[1:]))

    @property
    def resources(self) -> Resources:
        """All requested amounts, devices included, as the user wrote them."""
        return self.amounts + self.gpu.resources() if self.gpu else self.amounts

    def choices(self) -> Iterator[Request]:
        """Yield this request, then its alternatives: the first that fits wins."""
        yield self
        yield from self.alternatives

    def pinned(self, node: str) -> Request:
        """Return this request restricted to one node."""
        name = check_node_name(node)
        others = tuple(replace(other, node=name) for other in self.alternatives)
        return replace(self, node=name, alternatives=others)

    def tied(self, tie: Tie) -> Request:
        """Return this request restricted to nodes of the controller's own machine."""
        others = tuple(replace(other, tied_to=tie) for other in self.alternatives)
        return replace(self, tied_to=tie, alternatives=others)

    @property
    def names_nodes(self) -> bool:
        """Whether it says itself which nodes it may go to, by name or by label."""
        return self.node is not None or bool(self.labels)

    def avoiding(self, nodes: Iterable[NodeName]) -> Request:
        """Return this request excluding the nodes of other gang members.

        `apart_from` is set, too: such an exclusion holds only while the others are there.
        """
        exclude = self.exclude.union(nodes)
        apart = self.apart_from or ("others",)
        others = tuple(
            replace(other, exclude=exclude, apart_from=apart) for other in self.alternatives
        )
        return replace(self, exclude=exclude, alternatives=others, apart_from=apart)

    def on_cpu(self) -> Request:
        """Return this request without devices: the meaning of `fallback="cpu"`."""
        return replace(self, gpu=None)

    def at(self, level: str, overrides: Mapping[str, Any] | None = None) -> Request:
        """Scale the request to a quality level. Device counts, shares and disk do not scale."""
        factors = qualities.factors(level, overrides)
        amounts = self.amounts.parts()
        for name in ("cpu", "memory"):
            amounts[name] = qualities.scaled(amounts.get(name, 0), factors[name])
        gpu = self.gpu
        if gpu is not None and gpu.memory_bytes is not None:
            gpu = gpu.with_memory(qualities.scaled(gpu.memory_bytes, factors["gpu_memory"]))
        return replace(self, amounts=Resources(amounts), gpu=gpu, quality=level)

    def rounded_up(self, step_bytes: int) -> Request:
        """Return the request with memory, also of its alternatives, in whole steps."""
        others = tuple(other.rounded_up(step_bytes) for other in self.alternatives)
        memory = -(-self.amounts["memory"] // step_bytes) * step_bytes
        amounts = Resources({**self.amounts.parts(), "memory": min(memory, MOST)})
        return replace(self, amounts=amounts, alternatives=others)

    def key(self) -> str:
        """Return a text that is equal for equal requests, to recognize a repeated one.

        It is stored with allocations, so it must stay as earlier versions wrote it.
        """
        return "|".join(choice._own_key() for choice in self.choices())

    def _own_key(self) -> str:
        where = (self.node, self.prefer, sorted(self.exclude), sorted(self.labels.items()))
        near = f";{self.together_with};{self.apart_from}" if self.names_allocations else ""
        gpu = None if self.gpu is None else self.gpu.key()
        ranked = "" if self.strategy is None else f";strategy={self.strategy}"
        tied = "" if self.tied_to is None else f";tied_to={self.tied_to}"
        return f"{self.amounts};{gpu};{where};{self.quality}{near}{ranked}{tied}"

    @property
    def names_allocations(self) -> bool:
        """Whether the answer depends on other allocations of the same owner."""
        return self.together_with is not None or bool(self.apart_from)


def _check_bytes(given: Mapping[str, Any]) -> None:
    """Raise if a bare number for memory, which counts MB, seems to count bytes."""
    for name in _IN_MB.intersection(given):
        value = given[name]
        if type(value) in (int, float) and _BYTES <= value < _TOO_MUCH:
            text = f'a text such as "{value / 10**9:g}GB"; a bare number is in MB'
            raise InvalidRequest(name, value, text)


_IN_MB = frozenset({"memory", "gpu_memory"})
_BYTES, _TOO_MUCH = 10**8, 10**18  # 100 TB or more, if it were MB


def _split_fields(given: Any) -> tuple[Any, dict[str, Any]]:
    """Split a mapping into amounts and device constraints, which older spellings mix."""
    if not isinstance(given, Mapping):
        return given, {}
    devices = {name: given[key] for key, name in _DEVICE_FIELDS.items() if key in given}
    if not devices:
        return given, devices
    return {key: value for key, value in given.items() if key not in _DEVICE_FIELDS}, devices


_DEVICE_FIELDS = {
    "gpu_model": "gpu_model",
    "gpu_type": "gpu_model",
    "gpu_capability": "gpu_capability",
    "gpu_compute_capability": "gpu_capability",
}


def _node_names(field_name: str, given: str | Sequence[str]) -> tuple[NodeName, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence | set | frozenset) or len(names) > MOST_NODES:
        raise InvalidInput(field_name, given, f"at most {MOST_NODES} names of nodes")
    return tuple(dict.fromkeys(check_node_name(name, field_name) for name in names))


def _allocation_names(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or len(names) > MOST_NODES:
        raise InvalidInput("apart_from", given, f"at most {MOST_NODES} ids or holders")
    return tuple(dict.fromkeys(check_label(name, "apart_from") for name in names))


def _read_alternatives(
    base: Request, given: Sequence[Request | Mapping[str, Any]], fallback: str | None
) -> list[Request]:
    if not isinstance(given, list | tuple) or len(given) > MOST_ALTERNATIVES:
        raise InvalidInput("alternatives", given, f"a list of at most {MOST_ALTERNATIVES} requests")
    others = [_read_alternative(base, other) for other in given]
    if fallback is None:
        return others
    if fallback != "cpu":
        raise InvalidInput("fallback", fallback, '"cpu"')
    if base.gpu is None:
        raise InvalidRequest("fallback", fallback, "it with gpu or gpu_memory")
    if not base.amounts:
        raise InvalidRequest(
            "fallback", fallback, "cpu or memory, too: without a GPU nothing is left"
        )
    return [*others, base.on_cpu()]


def _read_alternative(base: Request, given: Request | Mapping[str, Any]) -> Request:
    """Read an alternative: its amounts and devices, with the constraints of the request itself."""
    other = given if isinstance(given, Request) else Request.of(given)
    if other.alternatives:
        raise InvalidRequest("alternatives", other.resources, "requests without their own")
    return replace(base, amounts=other.amounts, gpu=other.gpu)


def _at_quality(
    request: Request, quality: str | None, overrides: Mapping[str, Any] | None
) -> list[Request]:
    if quality is None:
        return [request.at("standard", overrides)] if overrides else [request]
    if quality == qualities.AUTO:
        return [request.at(level, overrides) for level in qualities.LEVELS]
    return [request.at(quality, overrides)]
