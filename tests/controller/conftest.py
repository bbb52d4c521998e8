"""What the tests of the controller share."""

import pytest

from job_desk import Desk


@pytest.fixture
def desk(tmp_path):
    desk = Desk(str(tmp_path / "grid.db"))
    yield desk
    desk.check()
    desk.backend.close()
