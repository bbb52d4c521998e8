"""The command `grid`: one file per group of commands, each loaded only when it is called."""
