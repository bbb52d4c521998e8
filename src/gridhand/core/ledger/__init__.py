"""The ledger: nodes, allocations and open jobs, and how they change."""
