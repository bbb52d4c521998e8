"""Stands on a node: the starter, which is the parent of all commands, and what talks to it."""
