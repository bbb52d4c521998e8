"""Counters of a controller, from which the page for Prometheus is made."""
