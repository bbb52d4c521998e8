"""The real server, for every test of this folder; `server.py` says how it is made."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from server import database, postgres, private

__all__ = ["database", "postgres", "private"]
