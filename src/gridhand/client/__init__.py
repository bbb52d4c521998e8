"""The HTTP API of a controller as Python methods, and how to find or start one.

Every `grid` command comes this way, so nothing here costs much to import: no core, no asyncio, not
even `http.client`. Only `aio`, which nothing else imports, needs httpx.
"""

from gridhand.client.client import Client, Log, Session
from gridhand.client.starting import connect

__all__ = ["Client", "Log", "Session", "connect"]
