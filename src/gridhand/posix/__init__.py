"""Primitives of the operating system, one place for each: locks, peers, /proc, cgroups, daemons."""
