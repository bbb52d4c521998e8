"""Choose a node and devices for a request."""
