"""The basic values: resources, GPUs, nodes, requests, names, durations."""
