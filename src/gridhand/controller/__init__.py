"""Keeps: the only code that changes a ledger, and what stands around it."""
