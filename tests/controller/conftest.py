"""What the tests of the controller share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
for _name in ("fake_engine", "desks", "controller_machine"):
    if _name not in sys.modules:  # the tests of the API use the first, too
        pytest.register_assert_rewrite(_name)
