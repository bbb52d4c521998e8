"""Request: what work needs, and where it may and may not go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gridhand.core import quality as qualities
from gridhand.core.errors import InvalidInput, InvalidRequest
from gridhand.core.gpus import GpuAsk, read_gpu_ask
from gridhand.core.names import check_label, check_node_name
from gridhand.core.nodes import check_labels
from gridhand.core.resources import Resources

MOST_NODES = 10_000
MOST_ALTERNATIVES = 16
_DEVICE_NAMES = ("gpu", "gpu_memory")


class Layout(StrEnum):
    """How the pieces of a gang lie: anywhere, each on a node of its own, or all on one."""

    ANY = "any"
    APART = "apart"
    TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Request:
    """Plain amounts, devices, and hard (`node`, `exclude`, `labels`) and soft (`prefer`) wishes.

    `together_with` and `apart_from` name what is held already, by its id or its owner's holder:
    the node is to be the same, or none of theirs.
    `alternatives` are other requests that will do, best first; this one is tried before them.
    """

    amounts: Resources
    gpu: GpuAsk | None = None
    node: str | None = None
    prefer: tuple[str, ...] = ()
    exclude: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    quality: str | None = None
    alternatives: tuple[Request, ...] = ()
    together_with: str | None = None
    apart_from: tuple[str, ...] = ()

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
        **named: Any,
    ) -> Request:
        """Read a request as people write it.

        >>> Request.of(cpu=2, memory="4GB", quality="high").resources
        Resources('cpu=3 memory=5.2GB')
        """
        if isinstance(resources, Request):
            wishes = (
                gpu_model, gpu_capability, node, prefer, exclude, labels, quality, scaling,
                together_with, apart_from,
            )  # fmt: skip
            if named or alternatives or fallback or any(wishes):
                raise InvalidRequest("request", resources.resources, "it alone, or amounts instead")
            return resources._checked()
        asked, devices = _split_fields(resources)
        gpu_model = devices.get("gpu_model") if gpu_model is None else gpu_model
        gpu_capability = devices.get("gpu_capability") if gpu_capability is None else gpu_capability
        amounts = Resources.of(asked, **named)
        if not amounts:
            raise InvalidRequest("resources", resources or named, "at least one amount above 0")
        gpu = read_gpu_ask(amounts["gpu"], amounts["gpu_memory"], gpu_model, gpu_capability)
        base = cls(
            amounts=amounts.without(*_DEVICE_NAMES),
            gpu=gpu,
            node=None if node is None else check_node_name(node),
            prefer=_node_names("prefer", prefer),
            exclude=frozenset(_node_names("exclude", exclude)),
            labels=check_labels(labels or {}),
            together_with=None
            if together_with is None
            else check_label(together_with, "together_with"),
            apart_from=_held_names(apart_from),
        )
        if base.node in base.exclude:
            raise InvalidRequest("exclude", base.node, "nodes other than the pinned one")
        others = _alternatives(base, alternatives, fallback)
        ladder = [step for one in (base, *others) for step in _at_quality(one, quality, scaling)]
        return replace(ladder[0], alternatives=tuple(ladder[1:]))

    @property
    def resources(self) -> Resources:
        """All that is asked for, devices included, as it was written."""
        return self.amounts + self.gpu.resources() if self.gpu else self.amounts

    def choices(self) -> Iterator[Request]:
        """This request, then its alternatives: the first that fits wins."""
        yield self
        yield from self.alternatives

    def pinned(self, node: str) -> Request:
        """The same, on that node and nowhere else."""
        others = tuple(replace(one, node=node) for one in self.alternatives)
        return replace(self, node=check_node_name(node), alternatives=others)

    def avoiding(self, nodes: Iterable[str]) -> Request:
        """The same, on none of these nodes as long as others are there: it is apart from them."""
        kept_off = self.exclude.union(nodes)
        apart = self.apart_from or ("others",)
        others = tuple(
            replace(one, exclude=kept_off, apart_from=apart) for one in self.alternatives
        )
        return replace(self, exclude=kept_off, alternatives=others, apart_from=apart)

    def on_cpu(self) -> Request:
        """The same without devices: what `fallback="cpu"` means."""
        return replace(self, gpu=None)

    def at(self, level: str, overrides: Mapping[str, Any] | None = None) -> Request:
        """The request at a quality level. Device counts, shares and disk do not scale."""
        factors = qualities.factors(level, overrides)
        amounts = self.amounts.parts()
        for name in ("cpu", "memory"):
            amounts[name] = qualities.scaled(amounts.get(name, 0), factors[name])
        gpu = self.gpu
        if gpu is not None and gpu.memory_bytes is not None:
            gpu = gpu.scaled(qualities.scaled(gpu.memory_bytes, factors["gpu_memory"]))
        return replace(self, amounts=Resources(amounts), gpu=gpu, quality=level)

    def _checked(self) -> Request:
        """The same, if it could have been read: for one that was put together by hand."""
        if not isinstance(self.amounts, Resources):
            raise InvalidRequest("amounts", self.amounts, "Resources")
        if not isinstance(self.gpu, GpuAsk | None):
            raise InvalidRequest("gpu", self.gpu, "what Request.of makes of it")
        if not self.amounts and self.gpu is None:
            raise InvalidRequest("resources", "nothing", "at least one amount above 0")
        return self

    def key(self) -> str:
        """The same text for the same request: to tell a repeat from something else."""
        return "|".join(one._own_key() for one in self.choices())

    def _own_key(self) -> str:
        where = (self.node, self.prefer, sorted(self.exclude), sorted(self.labels.items()))
        near = f";{self.together_with};{self.apart_from}" if self._near else ""
        return f"{self.amounts};{self.gpu};{where};{self.quality}{near}"

    @property
    def _near(self) -> bool:
        return self.together_with is not None or bool(self.apart_from)


def _split_fields(given: Any) -> tuple[Any, dict[str, Any]]:
    """Apart from amounts, the mappings of the seeds may carry what narrows the devices."""
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


def _node_names(field_name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence | set | frozenset) or len(names) > MOST_NODES:
        raise InvalidInput(field_name, given, f"at most {MOST_NODES} names of nodes")
    return tuple(dict.fromkeys(check_node_name(name, field_name) for name in names))


def _held_names(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or len(names) > MOST_NODES:
        raise InvalidInput("apart_from", given, f"at most {MOST_NODES} ids or holders")
    return tuple(dict.fromkeys(check_label(name, "apart_from") for name in names))


def _alternatives(
    base: Request, given: Sequence[Request | Mapping[str, Any]], fallback: str | None
) -> list[Request]:
    if not isinstance(given, list | tuple) or len(given) > MOST_ALTERNATIVES:
        raise InvalidInput("alternatives", given, f"a list of at most {MOST_ALTERNATIVES} requests")
    others = [_in_the_place_of(base, one) for one in given]
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


def _in_the_place_of(base: Request, given: Request | Mapping[str, Any]) -> Request:
    """An alternative says other amounts; where it may go is as in the request itself."""
    other = given if isinstance(given, Request) else Request.of(given)
    if other.alternatives:
        raise InvalidRequest("alternatives", other.resources, "requests without their own")
    return replace(base, amounts=other.amounts, gpu=other.gpu)


def _at_quality(
    one: Request, quality: str | None, overrides: Mapping[str, Any] | None
) -> list[Request]:
    if quality is None:
        return [one.at("standard", overrides)] if overrides else [one]
    if quality == qualities.AUTO:
        return [one.at(level, overrides) for level in qualities.LEVELS]
    return [one.at(quality, overrides)]
