"""Graphs of functions: structure, assignment to nodes, pictures, and the state of a run."""
