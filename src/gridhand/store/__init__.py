"""Remembers: the only code that speaks SQL."""
