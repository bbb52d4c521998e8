"""The starter: the process that is the parent of every command on a node."""
