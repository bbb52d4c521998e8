"""Decides: no I/O, no clock, no chance; the standard library, numpy and itself only."""
