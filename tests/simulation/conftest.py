"""The machines and their model are shared by the tests of this folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("model", "asks", "ledger_machine", "keeper_machine")
