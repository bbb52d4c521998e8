"""Explains refusals: what is missing, who holds it, and what would help."""
