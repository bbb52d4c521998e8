"""The worker: a process that serves a node on another machine for a controller, over HTTP."""
