"""Runs: what starts jobs on nodes, behind one small protocol."""
