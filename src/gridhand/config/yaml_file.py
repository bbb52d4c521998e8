"""Reads YAML into plain values, and refuses what YAML would accept by mistake."""

from __future__ import annotations

from typing import Any

import yaml

from gridhand.config.config_errors import InvalidConfig

_MOST_CHARACTERS = 1_000_000


class _Loader(yaml.SafeLoader):
    """The safe loader without anchors, which can grow without bound, and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases are not allowed", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _marked(f"a key must be text, not {key!r}", key_node)
            if key in seen:
                raise _marked(f"{key} is there twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _marked(problem: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """Return the mapping in a YAML text; an empty text is an empty mapping."""
    if len(text) > _MOST_CHARACTERS:
        raise InvalidConfig(source, [("", f"has more than {_MOST_CHARACTERS:,} characters")])
    try:
        found = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InvalidConfig(source, [("", _describe(error))]) from error
    except RecursionError as error:
        raise InvalidConfig(source, [("", "is nested too deeply")]) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidConfig(source, [("", "must be a mapping of keys to values")])
    return found


def _describe(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "this is not YAML"
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
