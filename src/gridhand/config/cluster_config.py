"""ClusterConfig: the whole of `cluster_config.yaml`, read, checked and written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import Field, ValidationError, model_validator

from gridhand.config.blocks import (
    AlertsBlock,
    EngineBlock,
    HttpBlock,
    NodeBlock,
    OwnerBlock,
    OwnerName,
    QueueBlock,
    QueueName,
    RetentionBlock,
    SchedulingBlock,
    SharingBlock,
)
from gridhand.config.config_errors import InvalidConfig, describe_errors
from gridhand.config.fields import Block, Granularity, GroupText, StrategyText
from gridhand.config.yaml_file import parse_yaml


class ClusterConfig(Block):
    """The configuration of a cluster. Everything has a default.

    >>> ClusterConfig.parse("name: lab\\nstrategy: pack").strategy
    'pack'
    """

    # The features of these blocks have not landed yet.
    NOT_USED_YET: ClassVar[frozenset[str]] = frozenset(
        {"nodes", "resource_sharing", "alerts", "engine"}
    )

    name: Annotated[str, Field(min_length=1, max_length=200)] = "gridhand"
    nodes: Annotated[tuple[NodeBlock, ...], Field(min_length=1)] | None = None
    resource_sharing: SharingBlock = SharingBlock()
    queues: dict[QueueName, QueueBlock] = Field(default_factory=dict)
    quotas: dict[OwnerName, OwnerBlock] = Field(default_factory=dict)
    scheduling: SchedulingBlock = SchedulingBlock()
    alerts: AlertsBlock = AlertsBlock()
    store: Annotated[str, Field(min_length=1)] | None = None
    engine: EngineBlock = EngineBlock()
    strategy: StrategyText = "default"
    memory_granularity: Granularity | None = None
    respect_foreign_use: bool = False
    retention: RetentionBlock = RetentionBlock()
    admin_group: GroupText | None = None  # of a machine-wide controller
    http: HttpBlock = HttpBlock()

    @model_validator(mode="after")
    def _unique_nodes(self) -> ClusterConfig:
        names = [node.name for node in self.nodes or ()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"each node once; {name} is there {names.count(name)} times")
        return self

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> ClusterConfig:
        """Read a file; raise InvalidConfig with all its problems at once."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise InvalidConfig(os.fspath(path), [("", f"cannot be read: {reason}")]) from error
        return cls.parse(text, os.fspath(path))

    @classmethod
    def parse(cls, text: str, source: str = "cluster_config.yaml") -> ClusterConfig:
        """Read a text; raise InvalidConfig with all its problems at once."""
        given = parse_yaml(text, source)
        try:
            return cls.model_validate(_as_tuples(given))
        except ValidationError as error:
            raise InvalidConfig(source, describe_errors(error, cls)) from error

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Write the values that were set to a file."""
        Path(path).write_text(self.as_yaml(), encoding="utf-8")

    def as_yaml(self) -> str:
        """Return the values that were set as YAML."""
        values = self.model_dump(mode="json", exclude_unset=True)
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    def not_used_yet(self) -> list[str]:
        """Return the keys of the file that have no effect yet."""
        return sorted(self.model_fields_set & self.NOT_USED_YET)


def _as_tuples(value: Any) -> Any:
    """Return the value with tuples for lists, which strict models of fixed values want."""
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
