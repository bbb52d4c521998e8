"""Clients that are connected, and what ends with them."""
