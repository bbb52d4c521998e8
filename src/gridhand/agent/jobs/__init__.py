"""The attempts that run on this node: prepare, limit and stop them."""
