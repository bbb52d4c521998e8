"""The HTTP API of a controller as Python methods, and how to find or start one.

Every `grid` command imports this package, so importing it is cheap: no core, no asyncio, not even
`http.client`.
"""

from gridhand.client.client import Client, Log
from gridhand.client.controller_finder import connect

__all__ = ["Client", "Log", "connect"]
