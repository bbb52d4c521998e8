"""Engines: they run jobs on nodes, behind one small protocol."""
