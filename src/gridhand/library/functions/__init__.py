"""Tasks, futures and executors: calling Python functions with the resources they need."""
