"""A real controller for each module."""

from controller_home import grid, here, home, pool, tools

__all__ = ["grid", "here", "home", "pool", "tools"]
