"""The options of a task: what it needs, and what happens if it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gridhand.core.errors import InvalidInput
from gridhand.core.jobs.spec import Priority
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources, canonical_name
from gridhand.library.backend import Duration, read_count, read_flag, read_ttl
from gridhand.library.functions.function_runner import HasRunner
from gridhand.library.job_methods import Asked

KEEP: Any = object()  # the default of options that stay as they are

# Names that other systems have for our options; any other keyword is a resource.
_HABITS = {
    "max_retries": "retries",
    "retry": "retries",
    "time_limit": "timeout",
    "timeout_s": "timeout",
    "detached": "detach",
}
_OPTIONS = ("retries", "timeout", "detach", "priority")
_RESOURCES = frozenset({"cpu", "memory", "gpu", "disk", "num_cpus", "num_gpus"})  # as most are


@dataclass(frozen=True)
class Options:
    """The options of a task, as they were given."""

    resources: Asked = None
    named: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    timeout: Duration | None = None
    name: str | None = None
    grid: HasRunner | None = None
    detach: bool = False
    priority: str | None = None

    @property
    def timeout_s(self) -> float | None:
        timeout_ms = read_ttl(self.timeout, "timeout")
        return None if timeout_ms is None else timeout_ms / 1000

    def checked(self) -> Options:
        read_count(self.retries, "retries", 0, 999)
        read_ttl(self.timeout, "timeout")
        read_flag(self.detach, "detach")
        if self.priority is not None:
            Priority.read(self.priority)
        if self.name is not None and not isinstance(self.name, str):
            raise InvalidInput("name", self.name, "a text")
        for name, value in self.named.items():
            if (meant := _meant_by(name)) is not None:
                raise InvalidInput(name, value, f"{meant}=, if that is meant; no resource")
        return self

    def updated(
        self, resources: Asked, named: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Options:
        """Return the same options with those given; None stands for the default of one.

        A request that is given as a whole replaces the resources. Keywords replace one each.
        """
        defaults: dict[str, Any] = {one.name: one.default for one in fields(self)}
        changes: dict[str, Any] = {
            name: defaults[name] if value is None else value
            for name, value in given.items()
            if value is not KEEP
        }
        if resources is not None:
            changes |= {"resources": resources, "named": dict(named)}
        elif named:
            changes |= {"resources": None, "named": self._named_with(named)}
        return replace(self, **changes).checked()

    def _named_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all resources and wishes by name; those given replace others or, if None, go."""
        new = {canonical_name(name) for name in given}
        known = {**_by_name(self.resources), **self.named}
        kept = {name: value for name, value in known.items() if canonical_name(name) not in new}
        return kept | {name: value for name, value in given.items() if value is not None}


def _by_name(resources: Asked) -> dict[str, Any]:
    """Return amounts that were given as a whole by their names."""
    if isinstance(resources, Request):
        raise InvalidInput("options", resources.resources, "a whole request instead of keywords")
    if isinstance(resources, Mapping):
        return dict(resources)
    words = str(resources or "").replace(",", " ").split()
    return {} if resources == Resources() else dict(word.split("=", 1) for word in words)


def _meant_by(name: str) -> str | None:
    """Return the option that a keyword is another name, or a misspelling, of."""
    if name in _RESOURCES:
        return None
    from difflib import get_close_matches

    return _HABITS.get(name) or next(iter(get_close_matches(name, _OPTIONS, 1, 0.75)), None)
