"""A controller that says what a test tells it to, and `grid` beside it."""

from fake_api import fake, grid, plain, start

__all__ = ["fake", "grid", "plain", "start"]
