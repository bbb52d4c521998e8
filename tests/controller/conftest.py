"""What the tests of the controller share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("fake_engine", "desks", "controller_machine")
