"""The agent: it prepares, watches and stops jobs on a node, over a starter that runs them."""
