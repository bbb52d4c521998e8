"""What the tests of the controller share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
for _name in ("fake_engine", "desks", "controller_machine", "job_desk"):
    if _name not in sys.modules:  # the tests of the API use the first, too
        pytest.register_assert_rewrite(_name)


@pytest.fixture
def desk(tmp_path):
    from job_desk import Desk

    desk = Desk(str(tmp_path / "grid.db"))
    yield desk
    desk.check()
    desk.backend.close()
