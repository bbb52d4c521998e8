"""Whether nodes that are served from elsewhere are alive."""
