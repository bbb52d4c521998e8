"""Real processes that are killed."""

from killed_workers import nursery, tools

__all__ = ["nursery", "tools"]
