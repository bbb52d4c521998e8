"""A whole cluster on a clock of its own: tasks replayed with the code that places real jobs."""
