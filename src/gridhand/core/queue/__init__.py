"""The order in which waiting jobs are tried."""
