"""The keeper: the only code that changes a ledger."""
