"""The Python API: `Grid`, `AsyncGrid`, tasks, graphs and streams."""
