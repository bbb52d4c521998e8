"""What this process is: a worker with a slot, or none."""

from __future__ import annotations

from typing import Any

# What the slot of this worker holds, as plain data; None in any other process.
slot: dict[str, Any] | None = None
