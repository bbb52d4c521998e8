"""Checks of a request that was constructed directly instead of being read by `Request.of`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gridhand.core.errors import InvalidAmount, InvalidInput, InvalidRequest
from gridhand.core.model.gpus import GpuRequest, check_gpu_request
from gridhand.core.model.names import check_label, check_node_name
from gridhand.core.model.nodes import check_labels
from gridhand.core.model.quality import LEVELS
from gridhand.core.model.resources import MOST, Resources, check_name

if TYPE_CHECKING:
    from gridhand.core.model.requests import Request

DEVICE_NAMES = ("gpu", "gpu_memory")

_TYPES: tuple[tuple[str, type, str], ...] = (
    ("amounts", Resources, "Resources"),
    ("prefer", tuple, "a tuple of names of nodes"),
    ("exclude", frozenset, "a frozenset of names of nodes"),
    ("alternatives", tuple, "a tuple of requests"),
    ("apart_from", tuple, "a tuple of ids or holders"),
)


def check_strategy_name(value: object) -> str:
    """Return the name of a strategy. Whether there is one of that name, its controller decides."""
    if callable(value):
        function = "a name; a function is given to Grid.in_memory, or provided as an entry point"
        raise InvalidInput("strategy", value, function)
    return check_label(value, "strategy")


def check_request(request: Request) -> None:
    """Raise InvalidInput, which names the field, unless `Request.of` could have made it."""
    for name, kind, allowed in _TYPES:
        if not isinstance(value := getattr(request, name), kind):
            raise InvalidRequest(name, value, allowed)
    _check_amounts(request)
    _check_names(request)
    if request.tied_to not in (None, "folder", "caller"):
        raise InvalidRequest("tied_to", request.tied_to, "folder or caller")
    if request.labels or not isinstance(request.labels, Mapping):
        check_labels(request.labels)
    if request.quality is not None and request.quality not in list(LEVELS):
        raise InvalidRequest("quality", request.quality, f"one of {', '.join(LEVELS)}")
    for other in request.alternatives:
        _check_alternative(request, other)


def _check_amounts(request: Request) -> None:
    for name, parts in request.amounts.pairs:
        if check_name(name) in DEVICE_NAMES:
            raise InvalidRequest("amounts", name, "everything but devices; these go into gpu")
        if type(parts) is not int or not 0 < parts <= MOST:
            raise InvalidAmount(name, parts, f"a whole number of parts from 1 to {MOST}")
    if request.gpu is not None:
        if not isinstance(request.gpu, GpuRequest):
            raise InvalidRequest("gpu", request.gpu, "what Request.of makes of it")
        check_gpu_request(request.gpu)
    elif not request.amounts:
        raise InvalidRequest("resources", "nothing", "at least one amount above 0")


def _check_names(request: Request) -> None:
    if request.node is not None:
        check_node_name(request.node)
    for field in ("prefer", "exclude"):
        for name in getattr(request, field):
            check_node_name(name, field)
    if request.together_with is not None:
        check_label(request.together_with, "together_with")
    for name in request.apart_from:
        check_label(name, "apart_from")
    if request.strategy is not None:
        check_strategy_name(request.strategy)


def _check_alternative(request: Request, other: object) -> None:
    if not isinstance(other, type(request)):
        raise InvalidRequest("alternatives", other, "requests")
    if other.alternatives:
        raise InvalidRequest("alternatives", other.resources, "requests without their own")
    if other.tied_to != request.tied_to:
        raise InvalidRequest("tied_to", other.tied_to, "the same in every alternative")
    if other.strategy != request.strategy:
        raise InvalidRequest("strategy", other.strategy, "the same in every alternative")
    try:
        check_request(other)
    except InvalidInput as fault:
        raise fault.about("alternatives") from None
