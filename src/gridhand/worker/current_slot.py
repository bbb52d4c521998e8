"""The slot of this process, if it is a worker."""

from __future__ import annotations

from typing import Any

# What the slot of this worker holds (`request`, `node`, `allocation`); None in other processes.
slot: dict[str, Any] | None = None
